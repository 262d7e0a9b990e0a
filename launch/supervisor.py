"""Starts the processes of a run, watches them, and starts them again from the last checkpoint. No JAX.

What the end of a process means is in one table, `meaning`: it holds for every launcher.
"""

import ctypes
import dataclasses
import enum
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Protocol

from meshkit.errors import LATE, RESTART, SAVED

LOST_SECONDS = 5.0
"""What the others get after one is lost: they cannot go on without it, but may finish writing a checkpoint."""

POLL_SECONDS = 0.1


class Meaning(enum.Enum):
    """Of an exit code, for the run."""

    DONE = "done"
    SAVED = "was asked to end, and goes on when started again: no failure"
    RESTART = "may go on when started again"
    LOST = "its machine or memory is gone"
    MISTAKE = "would fail again"


def meaning(code: int) -> Meaning:
    """Of the exit code of a process; negative: the signal that ended it."""
    if code == 0:
        return Meaning.DONE
    if code == SAVED:
        return Meaning.SAVED
    if code in (RESTART, LATE, -signal.SIGABRT, 128 + signal.SIGABRT):  # JAX aborts when it loses a process
        return Meaning.RESTART
    if code < 0 or (code > 128 and code != 128 + signal.SIGINT):
        return Meaning.LOST
    return Meaning.MISTAKE


@dataclasses.dataclass(frozen=True)
class Ended:
    """How one attempt ended. codes: of every process. first: the number of the one that ended first, badly.

    lost: how many were lost, not counting those that were killed because of it.
    """

    codes: tuple[int, ...]
    first: int | None = None
    lost: int = 0

    @property
    def code(self) -> int:
        """The exit code of the first."""
        return 0 if self.first is None else self.codes[self.first]

    @property
    def meaning(self) -> Meaning:
        """Of that."""
        return meaning(self.code)


class Process(Protocol):
    """What a supervisor needs of a process; `subprocess.Popen` is one."""

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def wait(self) -> int: ...


Processes = Sequence[Process]


def never() -> bool:
    """A run that nobody wants to end early."""
    return False


class Supervisor:
    """Watches the processes of one attempt after another. A context manager for the time that signals are taken.

    grace: seconds between the SIGTERM that asks processes to save and end, and SIGKILL. say: shows a line.
    """

    def __init__(self, grace: float, say: Callable[[str], None]) -> None:
        self._grace, self._say = grace, say
        self._signals: list[int] = []
        self._before: dict[int, Any] = {}

    @property
    def stopped(self) -> int | None:
        """The signal that the supervisor was asked to stop with."""
        return self._signals[0] if self._signals else None

    def watch(self, processes: Processes, enough: Callable[[], bool] = never) -> Ended:
        """Until all have ended; when one ends badly, or a signal comes, the others are made to end.

        enough: asked at every look; once it is so, all are asked to save and end.
        """
        while True:
            codes = [process.poll() for process in processes]
            bad = [number for number, code in enumerate(codes) if code]
            if self.stopped is not None:
                self._say(f"{signal.Signals(self.stopped).name}: the run saves and ends, within {self._grace:g} s")
                return Ended(self._end(processes, self._grace))
            if not any(codes) and enough():
                return Ended(self._end(processes, self._grace))
            if bad:
                first = _first(bad, codes)
                lost = sum(meaning(codes[number] or 0) is Meaning.LOST for number in bad)
                self._say(f"process {first} {spell(codes[first] or 0)}: the others end too")
                if meaning(codes[first] or 0) is Meaning.SAVED:  # the others agreed on the step, and still write
                    return Ended(self._end(processes, self._grace, ask=False), first, lost)
                return Ended(self._end(processes, LOST_SECONDS), first, lost)
            if all(code == 0 for code in codes):
                return Ended(tuple(0 for _ in codes))
            time.sleep(POLL_SECONDS)

    def _end(self, processes: Processes, seconds: float, ask: bool = True) -> tuple[int, ...]:
        """The exit codes, at the latest after `seconds`: SIGTERM, which a run may heed, then SIGKILL."""
        if ask:
            for process in processes:
                process.terminate()
        end = time.monotonic() + seconds
        while any(process.poll() is None for process in processes):
            if time.monotonic() > end or len(self._signals) > 1:
                left = [number for number, process in enumerate(processes) if process.poll() is None]
                self._say(f"SIGKILL for process {', '.join(map(str, left))}, which did not end in {seconds:g} s")
                for process in processes:
                    process.kill()
                break
            time.sleep(POLL_SECONDS)
        return tuple(process.wait() for process in processes)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    def __enter__(self) -> "Supervisor":
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _first(bad: list[int], codes: Sequence[int | None]) -> int:
    """Of several found ended at once, the cause: a lost one makes others abort, not the other way round."""
    order = [Meaning.LOST, Meaning.MISTAKE, Meaning.RESTART, Meaning.SAVED]
    return min(bad, key=lambda number: order.index(meaning(codes[number] or 0)))


def end_with_parent() -> None:
    """Linux sends SIGTERM to the calling process when its parent is gone, however that ended."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def spell(code: int) -> str:
    """ "ended by SIGKILL", "ended with exit code 75"."""
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def say(text: str) -> None:
    """A line of the supervisor on the screen."""
    print(f"launch: {text}", file=sys.stderr, flush=True)
