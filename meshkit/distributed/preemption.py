"""Whether the run's machines are about to be taken away: a SIGTERM came, to any of its processes."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

import jax
from jax.experimental import multihost_utils


class Preemption:
    """A context manager for the time of a run. `asked`: the run ends before its last step.

    A SIGTERM only leaves a note, so that the run can save and end; SIGKILL, which follows it, cannot be caught.
    In one of several processes JAX's own notifier takes it. Not watched outside the main thread, where Python
    takes no signals.
    """

    def __init__(self) -> None:
        self.asked = False
        self._signalled = False
        self._before: Any = None

    def reached(self, step: int) -> bool:
        """Whether the run ends after `step`, the same in every process. Each asks after every step."""
        if jax.process_count() > 1:
            self.asked = multihost_utils.reached_preemption_sync_point(step)
        else:
            self.asked = self._signalled
        return self.asked

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread() and jax.process_count() == 1:
            self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
