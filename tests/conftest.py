"""Eight simulated CPU devices for every test, set before anything imports JAX; children inherit them."""

import os
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache" / "jax"

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# Compiled programs are kept between runs of the tests.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")
