"""The run's folder and screen: owned by process 0; the other processes stay silent."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
import tomli_w
from jax.experimental import multihost_utils
from rich.console import Console
from rich.table import Table
from rich.text import Text

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
    def create(cls, config: RunConfig, fresh: bool) -> Self:
        """The folder named by `run_dir`, made if need be; if `fresh`, numbered beside one that holds a run.

        The resolved config is written there. Raises MeshkitError when it cannot be.
        """
        mine, number, reason = jax.process_index() == 0, FAILED, "see the message of process 0"
        if mine:
            try:
                number = _claim(config, fresh)
            except OSError as error:
                reason = error.strerror or str(error)
        # Process 0 tells all others which folder it is, or that there is none and they must stop too.
        number = int(multihost_utils.broadcast_one_to_all(np.int32(number)))
        if number == FAILED:
            raise MeshkitError(
                f"run_dir = {config.run_dir!r}: cannot be written ({reason}): choose a folder that can be made"
            )
        return cls(_numbered(config.run_dir, number), mine)

    def metrics(self, history: list[dict[str, float]]) -> Any:
        """A MetricsWriter in this folder, which goes on after the records of `history`."""
        return MetricsWriter(self.path, history) if self.mine else contextlib.nullcontext(_Silent())

    def progress(self, steps: int, start: int) -> Any:
        """A Progress on the screen, of a run that goes on after step `start`."""
        return Progress(steps, start) if self.mine else contextlib.nullcontext(_Silent())

    def show(self, summary: Mapping[str, Any]) -> None:
        """Print the summary at the end of a run."""
        if not self.mine:
            return
        table = Table(title="run", show_header=False, title_justify="left")
        for name, value in summary.items():
            title, spell = SPELLED.get(name, (name.replace("_", " "), _spell))
            table.add_row(title, Text(spell(value)))
        Console().print(table)


def note(text: str) -> None:
    """A line on the screen of process 0, before there is a Progress."""
    if jax.process_index() == 0:
        Console().print(text, markup=False, highlight=False, soft_wrap=True)


FAILED = 0


def _claim(config: RunConfig, fresh: bool) -> int:
    """Make the folder with the config in it, the first that holds no run yet if `fresh`, and return its number."""
    free = (n for n in itertools.count(1) if not (_numbered(config.run_dir, n) / CONFIG_FILE).exists())
    number = next(free) if fresh else 1
    path = _numbered(config.run_dir, number)
    path.mkdir(parents=True, exist_ok=True)
    values = config.model_copy(update={"run_dir": str(path)}).model_dump(exclude_none=True)
    (path / CONFIG_FILE).write_text(tomli_w.dumps(values), encoding="utf-8")
    return number


def _numbered(run_dir: str, number: int) -> Path:
    return Path(run_dir if number == 1 else f"{run_dir}-{number}")


class _Silent:
    """Stands in for the writer and the screen in processes other than 0."""

    def begin(self) -> None: ...
    def write(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def update(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def note(self, text: str) -> None: ...


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"


def _spell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        return "  ".join(f"{k} {_spell(v)}" for k, v in value.items())
    return str(value)


SPELLED: dict[str, tuple[str, Callable[[Any], str]]] = {
    "ideal_bubble": ("bubble, ideal", _percent),
    "simulated_bubble": ("bubble of this schedule", _percent),
    "memory_bytes_a_device": ("memory a device", _mebibytes),
    "step_seconds": ("seconds a step", _spell),
    "predicted_step_seconds": ("seconds a step, predicted", _spell),
    "predicted_memory_bytes_a_device": ("memory a device, predicted", _mebibytes),
    "held_out_loss": ("held-out loss", _spell),
    "held_out_loss_of_counting": ("of models by counting", _spell),
    "milliseconds": ("median milliseconds", _spell),
    "run_dir": ("files", str),
}
"""Lines of the summary whose title or value reads otherwise on the screen than in JSON."""
