"""Eight simulated CPU devices for every test, set before anything imports JAX; children inherit them."""

import os
import tempfile
from collections.abc import Iterator

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["NPROC"] = "32"  # threads: with two, eight devices that wait for each other may wait for ever
# A program that XLA:CPU loads from a cache on disk may mix up its collectives: it stops or aborts.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
# Text that tests prepare is not kept at home.
os.environ["XDG_CACHE_HOME"] = os.environ.get("MESHKIT_TEST_CACHE") or tempfile.mkdtemp(prefix="meshkit-tests-")


@pytest.fixture(scope="module")
def compiled_quickly() -> Iterator[None]:
    """Programs that only have to be compiled quickly: LLVM hardly optimizes."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def float64() -> Iterator[None]:
    import jax

    with jax.enable_x64(True):
        yield
