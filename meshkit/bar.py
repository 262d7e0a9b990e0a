"""A bar on a terminal, lines elsewhere: what shows how far a run or a preparation is."""

from types import TracebackType
from typing import Self

import rich.progress
from rich.console import Console


class Bar:
    """A context manager; `_bar` moves while it is entered, and is None where `console` is no terminal."""

    def __init__(self, console: Console, *columns: rich.progress.ProgressColumn) -> None:
        self._console = console
        self._bar = rich.progress.Progress(*columns, console=console) if console.is_terminal else None

    def _print(self, text: str) -> None:
        """A line as it is, above the bar if there is one."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()
