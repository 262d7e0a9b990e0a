"""A watchdog in each process: a run that hangs ends by itself, and says where it was.

A process that dies is noticed by the others. One that lives and waits for ever, in a collective that a peer does not
join or for a file that a server does not give, is noticed by nobody else.
"""

import collections
import contextlib
import faulthandler
import math
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from meshkit.errors import RESTART, MeshkitError

VARIABLE = "MESHKIT_WATCHDOG"
FLOOR = 300.0
"""Seconds without progress that are always granted. The variable sets another number; 0: no watchdog."""

FACTOR = 10
"""Times the median step that are granted, if that is more."""

HOUR = 3600.0
"""Granted to what takes no known time: reading a checkpoint, compiling."""

REMEMBERED = 101  # steps that the median is taken of


class Watchdog:
    """Ends the process with exit code RESTART when nothing is done for too long. A context manager.

    folder: where the stacks are written, to hang-N.txt. name: of the process, "process 3 of 8". floor: seconds.
    """

    def __init__(self, folder: Path, name: str, number: int, floor: float | None = None) -> None:
        self._file, self._name = folder / f"hang-{number}.txt", name
        self._floor = seconds() if floor is None else floor
        self._lock = threading.Lock()
        self._seconds: collections.deque[float] = collections.deque(maxlen=REMEMBERED)
        self._step, self._finished_at = 0, 0.0
        self._done, self._doing, self._granted = "nothing yet", "starting", HOUR
        self._waited = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def begins(self, action: str, granted: float = 0.0) -> None:
        """`action` begins, so what came before it is done. granted: seconds that it may take, whatever a step does."""
        with self._lock:
            self._done, self._doing, self._granted, self._waited = self._doing, action, granted, 0.0
            if granted:
                self._finished_at = 0.0  # no measure for a step

    def finished(self, step: int) -> None:
        """`step` is finished on the devices."""
        with self._lock:
            now = time.monotonic()
            if self._finished_at:
                self._seconds.append(now - self._finished_at)
            self._step, self._finished_at, self._waited = step, now, 0.0

    @property
    def limit(self) -> float:
        """Seconds that may pass without progress."""
        return max(self._floor, self._granted, FACTOR * statistics.median(self._seconds or [0.0]))

    def _watch(self) -> None:
        tick = min(1.0, self._floor / 4)
        while not self._end.wait(tick):
            with self._lock:
                # Own ticks, not the clock: while the whole process is stopped, as by Ctrl-Z, nobody hangs.
                self._waited += tick
                if self._waited > self.limit:
                    self._bark()

    def _bark(self) -> None:
        """Say where it was, and end the process: no exception would reach a thread that waits in C++."""
        text = (
            f"error: {self._name} hangs: no progress in {self._waited:.0f} s (limit {self.limit:.0f} s: the larger of "
            f"{VARIABLE} = {self._floor:g} and {FACTOR} times the median step). Last step finished: {self._step}; last "
            f"action completed: {self._done}; since then: {self._doing}. The stacks of all threads are in {self._file}"
        )
        print(text, file=sys.stderr, flush=True)
        try:
            with self._file.open("a") as file:
                print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=file, flush=True)
                faulthandler.dump_traceback(file)
        except OSError:  # the very file system may be what hangs or is full
            pass
        faulthandler.dump_traceback(sys.__stderr__ or 2)
        os._exit(RESTART)

    def __enter__(self) -> Self:
        if self._floor:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()


def seconds() -> float:
    """The floor that the environment sets; MeshkitError for one that is no number of seconds."""
    text = os.environ.get(VARIABLE) or str(FLOOR)
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise MeshkitError(f"{VARIABLE} = {text!r}: it is a number of seconds, or 0 for no watchdog")
