"""Start-up of a process that is one of several, and what all must agree on."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

import jax
import numpy as np
from jax.experimental import multihost_utils

from meshkit.errors import MeshkitError

HEARTBEAT_SECONDS = 10
"""A lost process is noticed after this; JAX's own default leaves the others hanging for 100 s."""

BY_HAND = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")

LAUNCHERS = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
"""How many processes SLURM or Open MPI started; JAX finds out the rest by itself."""


def start() -> None:
    """Join the other processes of the run, when the environment says that there are any.

    That is with JAX_COORDINATOR_ADDRESS (host:port of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID;
    else with what SLURM or Open MPI set. Called before any device is touched; does nothing in a process
    that has joined already, or that is alone. Raises MeshkitError for variables that do not go together.
    """
    if jax.distributed.is_initialized():
        return
    given = [name for name in BY_HAND if os.environ.get(name)]
    if given:
        arguments = _by_hand(given)
        alone = arguments["num_processes"] == 1
    else:
        arguments = {}
        alone = all(os.environ.get(name, "1") == "1" for name in LAUNCHERS)
    if not alone:
        jax.distributed.initialize(**arguments, heartbeat_timeout_seconds=HEARTBEAT_SECONDS)


def _by_hand(given: list[str]) -> dict[str, Any]:
    """The arguments of `jax.distributed.initialize`, from the three variables."""
    missing = [name for name in BY_HAND if name not in given]
    if missing:
        raise MeshkitError(
            f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} set in the environment and "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not: set all three, or none to run alone"
        )
    address, count, number = (os.environ[name] for name in BY_HAND)
    if not (count.isdigit() and number.isdigit() and int(number) < int(count)):
        raise MeshkitError(
            f"JAX_NUM_PROCESSES = {count!r} and JAX_PROCESS_ID = {number!r}: the first is how many processes there "
            "are, the second numbers them from 0"
        )
    return {"coordinator_address": address, "num_processes": int(count), "process_id": int(number)}


def agreed(answer: bool) -> bool:
    """The answer of process 0, in every process."""
    return bool(multihost_utils.broadcast_one_to_all(np.bool_(answer)))


class Preemption:
    """Whether this machine is about to be taken away: a SIGTERM came. A context manager for the time of a run.

    The signal only sets `asked`, so that the run can save and end; SIGKILL, which follows it, cannot be caught.
    Not watched outside the main thread, where Python takes no signals, nor in one of several processes, where
    JAX's own notifier takes it.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread() and jax.process_count() == 1:
            self._before = signal.signal(signal.SIGTERM, self._ask)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
