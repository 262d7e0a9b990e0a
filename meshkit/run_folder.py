"""The run's folder and screen: owned by process 0; the other processes stay silent."""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import jax
import tomli_w
from rich.console import Console
from rich.table import Table

from meshkit.config import RunConfig
from meshkit.errors import MeshkitError
from meshkit.metrics import MetricsWriter, Progress

CONFIG_FILE = "config.toml"


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Where a run's files are: config.toml, metrics.jsonl, TensorBoard events."""

    path: Path
    mine: bool

    @classmethod
    def create(cls, config: RunConfig) -> Self:
        """A fresh folder named by `run_dir`, or numbered beside it when that holds a run already.

        The resolved config is written there. Raises MeshkitError when it cannot be.
        """
        path, number = Path(config.run_dir), 1
        if jax.process_index() != 0:
            return cls(path, mine=False)
        while (path / CONFIG_FILE).exists():
            number += 1
            path = Path(f"{config.run_dir}-{number}")
        try:
            path.mkdir(parents=True, exist_ok=True)
            values = config.model_copy(update={"run_dir": str(path)}).model_dump(exclude_none=True)
            (path / CONFIG_FILE).write_text(tomli_w.dumps(values), encoding="utf-8")
        except OSError as error:
            raise MeshkitError(f"run_dir = {config.run_dir!r}: cannot be written: {error.strerror}") from None
        return cls(path, mine=True)

    def metrics(self) -> Any:
        """A MetricsWriter in this folder."""
        return MetricsWriter(self.path) if self.mine else contextlib.nullcontext(_Silent())

    def progress(self, steps: int) -> Any:
        """A Progress on the screen."""
        return Progress(steps) if self.mine else contextlib.nullcontext(_Silent())

    def show(self, summary: Mapping[str, Any]) -> None:
        """Print the summary at the end of a run."""
        if not self.mine:
            return
        table = Table(title="run", show_header=False, title_justify="left")
        for name, value in summary.items():
            table.add_row(name.replace("_", " "), _spell(value))
        Console().print(table)


class _Silent:
    """Stands in for the writer and the screen in processes other than 0."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def update(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def note(self, text: str) -> None: ...


def _spell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        return "  ".join(f"{k} {_spell(v)}" for k, v in value.items())
    return str(value)
