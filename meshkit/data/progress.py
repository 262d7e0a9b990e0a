"""How far a preparation is: a bar on a terminal, a line now and then elsewhere, on standard error."""

import time
from datetime import timedelta

import rich.progress
from rich.console import Console

from meshkit.bar import Bar

PERIOD = 10.0  # seconds between lines


class ByteProgress(Bar):
    """Called with (bytes done, bytes in all); a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(
            console or Console(stderr=True),
            rich.progress.DownloadColumn(),
            rich.progress.BarColumn(),
            rich.progress.TransferSpeedColumn(),
            rich.progress.TimeRemainingColumn(),
        )
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
