"""Simulated CPU devices: a mesh of any size on one machine, to try, test and verify a layout."""

import importlib.metadata
import os

from meshkit.errors import MeshkitError

THREADS_A_DEVICE = 4
"""A simulated device waits for its peers in a thread of its own for each exchange under way. With as many
threads as cores, the runtime's default, all may wait and none be left to arrive: a deadlock."""

QUICK: dict[str, int | bool] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""For programs that run a few times on CPU, compiler options: the partitioner works as ever, LLVM hardly at all."""

if importlib.metadata.version("jaxlib").startswith("0.10."):
    QUICK["xla_cpu_use_fusion_emitters"] = False  # a third less to compile; later versions have no choice


def simulate_cpu_devices(count: int) -> None:
    """Make this process's JAX offer `count` CPU devices, whatever else the machine has.

    Call it before JAX touches a device; calling it again with the same `count` changes nothing.
    Raises MeshkitError when JAX already runs with other devices.
    """
    import jax

    # What XLA:CPU takes for the number of processors, when it starts: the size of its thread pools.
    os.environ["NPROC"] = str(max(count * THREADS_A_DEVICE, os.cpu_count() or 1))
    try:
        jax.config.update("jax_num_cpu_devices", count)
        jax.config.update("jax_platforms", "cpu")
        # A program loaded from the cache on disk may mix up its collectives on CPU: it stops or aborts.
        jax.config.update("jax_enable_compilation_cache", False)
    except RuntimeError:  # JAX's word for: a backend is already started
        present = jax.local_devices()
        if len(present) != count or present[0].platform != "cpu":
            raise MeshkitError(
                f"{count} simulated CPU devices were asked for, but JAX already runs in this process with "
                f"{len(present)} {present[0].platform} devices: set devices = {len(present)}, or start a new "
                f"process with JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES={count} in its environment"
            ) from None
