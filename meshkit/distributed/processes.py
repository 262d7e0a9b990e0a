"""Start-up of a process that is one of several, and its end; the answers of process 0."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax._src import distributed as runtime  # the one way to the store that the processes share
from jax.experimental import multihost_utils

from meshkit.distributed import launchers, rendezvous, watchdog
from meshkit.errors import RESTART, MeshkitError

HEARTBEAT_SECONDS = 10
"""A lost process is noticed after this; JAX's own default leaves the others hanging for 100 s."""

LAST_WORDS_SECONDS = 3
"""So long a process that fails waits for others that fail too, so that each can say why."""


def start() -> None:
    """Join the other processes of the run, when the environment says that there are any (see `launchers`).

    Called before any device is touched; does nothing in a process that has joined already, or that is alone.
    Raises MeshkitError for variables that cannot be or do not go together, an address that cannot work, and (LateError)
    processes that do not come.
    """
    launchers.preempted_exit()  # read again as the run ends: too late for a mistake
    watchdog.seconds()
    if jax.distributed.is_initialized():
        return
    place = launchers.find()
    if place is None:
        return
    rendezvous.check(place)
    try:
        with rendezvous.saying_what_is_waited_for("the others", place), _within(rendezvous.JOIN_SECONDS, place):
            jax.distributed.initialize(
                place.address,
                place.count,
                place.number,
                place.devices,
                initialization_timeout=2 * rendezvous.JOIN_SECONDS,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            )
    except jax.errors.JaxRuntimeError as error:
        raise rendezvous.LateError(
            f"{place}: the run could not gather at {place.address} ({str(error).splitlines()[0]}): see what the other "
            "processes say"
        ) from None


@contextlib.contextmanager
def _within(seconds: float, place: launchers.Place) -> Iterator[None]:
    """The end of this process when the others have not joined by then: at its own time limit JAX aborts, with an exit
    code that no supervisor could tell from that of a crash."""

    def leave() -> None:
        error = rendezvous.LateError(
            f"{place}: the others have not all joined at {place.address} after {seconds} s: start them, or see what "
            "they say"
        )
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)

    with rendezvous.after(seconds, leave):
        yield


def agreed(answer: bool) -> bool:
    """The answer of process 0, in every process."""
    return bool(multihost_utils.broadcast_one_to_all(np.bool_(answer)))


def store() -> Any:
    """The key-value store of the run's processes: it works without their devices."""
    return runtime.global_state.client


@contextlib.contextmanager
def failing_at_once() -> Iterator[None]:
    """Of several processes, one that fails says why and ends at once.

    JAX would wait at exit for the others, who may be waiting for this one. Alone, errors pass through.
    """
    try:
        yield
    except BaseException as error:
        if not jax.distributed.is_initialized():
            raise
        code, text = _last_words(error)
        print(text, file=sys.stderr)
        _leave(code)


def _last_words(error: BaseException) -> tuple[int, str]:
    """Exit code, and what to print."""
    if isinstance(error, MeshkitError):
        return error.exit_code, f"error: {error}"
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
        return RESTART, f"error: {process()} lost another one, or its devices failed: {str(error).splitlines()[0]}"
    return 1, "".join(traceback.format_exception(error))


def _leave(code: int) -> None:
    # Who fails together leaves together: the end of process 0 is the end of all.
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # the others have not failed, or are gone
        store().wait_at_barrier("meshkit/leave", 1000 * LAST_WORDS_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def process() -> str:
    """ "process 3 of 8"."""
    return f"process {jax.process_index()} of {jax.process_count()}"
