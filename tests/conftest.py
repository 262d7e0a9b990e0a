"""Eight simulated CPU devices for every test, set before anything imports JAX; children inherit them."""

import os
import tempfile
from collections.abc import Iterator

import pytest

from meshkit.simulate import QUICK

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["NPROC"] = "32"  # threads: with two, eight devices that wait for each other may wait for ever
# A program that XLA:CPU loads from a cache on disk may mix up its collectives: it stops or aborts.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
# Programs that run for a moment: the partitioner works as ever, LLVM hardly at all.
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), *(f"--{name}={value}".lower() for name, value in QUICK.items())]
)
# Text that tests prepare is not kept at home.
os.environ["XDG_CACHE_HOME"] = os.environ.get("MESHKIT_TEST_CACHE") or tempfile.mkdtemp(prefix="meshkit-tests-")


@pytest.fixture
def float64() -> Iterator[None]:
    import jax

    with jax.enable_x64(True):
        yield
