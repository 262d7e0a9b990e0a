"""Eight simulated CPU devices for every test, set before anything imports JAX; children inherit them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[1] / ".cache" / "jax"

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# Compiled programs are kept between runs of the tests.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")


@pytest.fixture(scope="module")
def programs_of_many_steps() -> Iterator[None]:
    """Programs that run often are compiled here, and quickly: LLVM hardly optimizes.

    A program that XLA:CPU loads from the cache on disk may mix up its collectives: it stops or aborts
    after some hundred steps.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    def use(cache: bool) -> None:
        jax.config.update("jax_enable_compilation_cache", cache)
        jax.config.update("jax_disable_most_optimizations", not cache)
        compilation_cache.reset_cache()

    use(cache=False)
    yield
    use(cache=True)


@pytest.fixture
def float64() -> Iterator[None]:
    import jax

    with jax.enable_x64(True):
        yield
