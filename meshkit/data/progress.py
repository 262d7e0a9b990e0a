"""How far a preparation is: a bar on a terminal, a line now and then elsewhere, on standard error."""

import time
from datetime import timedelta
from types import TracebackType
from typing import Self

import rich.progress
from rich.console import Console

PERIOD = 10.0  # seconds between lines


class ByteProgress:
    """Called with (bytes done, bytes in all); a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar = _bar(self._console) if self._console.is_terminal else None
        self._task = self._bar.add_task("prepared", total=None) if self._bar else None
        self._began: tuple[float, int] | None = None
        self._next = 0.0

    def __call__(self, done: int, total: int) -> None:
        """Show it."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total)
            return
        now = time.monotonic()
        if self._began is None:
            self._began, self._next = (now, done), now + PERIOD
            if done:
                self._print(f"going on at {done / 1e6:,.1f} of {total / 1e6:,.1f} MB")
        elif now >= self._next:
            self._next = now + PERIOD
            speed = (done - self._began[1]) / (now - self._began[0])
            left = timedelta(seconds=round((total - done) / speed)) if speed else "?"
            self._print(f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB, {speed / 1e6:.2f} MB/s, ETA {left}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()


def _bar(console: Console) -> rich.progress.Progress:
    return rich.progress.Progress(
        rich.progress.DownloadColumn(),
        rich.progress.BarColumn(),
        rich.progress.TransferSpeedColumn(),
        rich.progress.TimeRemainingColumn(),
        console=console,
    )
