"""Start-up of a process that is one of several."""

import os

import jax

from meshkit.errors import MeshkitError

HEARTBEAT_SECONDS = 10
"""A lost process is noticed after this; JAX's own default leaves the others hanging for 100 s."""

LAUNCHERS = {"SLURM_NTASKS": "SLURM", "OMPI_COMM_WORLD_SIZE": "Open MPI", "JAX_NUM_PROCESSES": "JAX_NUM_PROCESSES"}


def start() -> None:
    """Join the other processes of the run, when the environment says that there are any.

    SLURM's and Open MPI's variables are understood by JAX itself; elsewhere set JAX_COORDINATOR_ADDRESS
    (host:port of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID. Called before any device is touched;
    does nothing in a process that has joined already, or that is alone.
    """
    processes = next((int(os.environ[name]) for name in LAUNCHERS if os.environ.get(name, "").isdigit()), 1)
    if processes == 1 or jax.distributed.is_initialized():
        return
    explicit = {}
    if "JAX_NUM_PROCESSES" in os.environ:
        missing = [name for name in ("JAX_COORDINATOR_ADDRESS", "JAX_PROCESS_ID") if name not in os.environ]
        if missing:
            raise MeshkitError(f"JAX_NUM_PROCESSES = {processes} needs {' and '.join(missing)} set too")
        explicit = {
            "coordinator_address": os.environ["JAX_COORDINATOR_ADDRESS"],
            "num_processes": processes,
            "process_id": int(os.environ["JAX_PROCESS_ID"]),
        }
    jax.distributed.initialize(**explicit, heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
