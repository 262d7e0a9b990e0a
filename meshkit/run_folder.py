"""The run's folder and screen: owned by process 0; the other processes stay silent."""

import contextlib
import dataclasses
import fcntl
import itertools
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import jax
import numpy as np
import tomli_w
from jax.experimental import multihost_utils
from rich.console import Console
from rich.table import Table
from rich.text import Text

from meshkit.checkpoint.place import is_url
from meshkit.config import NEVER, RunConfig
from meshkit.errors import MeshkitError
from meshkit.metrics import MetricsWriter, Progress

CONFIG_FILE = "config.toml"
LOCK_FILE = "lock"


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Where a run's files are: config.toml, metrics.jsonl, TensorBoard events. A context manager: no other run may
    write there meanwhile.

    mine: whether this process, 0, writes them. lock: the file that keeps other runs out, None in other processes.
    """

    path: Path
    mine: bool
    lock: IO[str] | None

    @classmethod
    def create(cls, config: RunConfig, fresh: bool, lock: IO[str] | None = None) -> Self:
        """The folder named by `run_dir`, made if need be; if `fresh`, numbered beside one that holds a run.

        lock: its own, if `reserved` has it already. The resolved config is written there. Raises MeshkitError when it
        cannot be, or another run is at work there.
        """
        number, lock = _in_process_0(config, lambda: _claim(config, fresh, lock))
        return cls(_numbered(config.run_dir, number), jax.process_index() == 0, lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.lock is not None:
            self.lock.close()

    def metrics(self, history: list[dict[str, float]]) -> Any:
        """A MetricsWriter in this folder, which goes on after the records of `history`.

        Raises MeshkitError when these cannot be written.
        """
        if not self.mine:
            return contextlib.nullcontext(_Silent())
        try:
            return MetricsWriter(self.path, history)
        except OSError as error:  # a disk that is full
            raise MeshkitError(f"{self.path}: the metrics cannot be written ({error.strerror}): make room") from None

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


@contextlib.contextmanager
def reserved(config: RunConfig) -> Iterator[IO[str] | None]:
    """The lock of a run that goes on, held from before its checkpoints are read: another could be writing them.

    None where no run is there yet, or in processes other than 0. Raises MeshkitError when another is at work there.
    """
    path = Path(config.run_dir)
    there = lambda: config.resume != NEVER and (path / CONFIG_FILE).exists()
    _, lock = _in_process_0(config, lambda: (1, _locked(path) if there() else None))
    with lock or contextlib.nullcontext():
        yield lock


def note(text: str) -> None:
    """A line on the screen of process 0, before there is a Progress."""
    if jax.process_index() == 0:
        Console().print(text, markup=False, highlight=False, soft_wrap=True)


FAILED = 0

Lock = IO[str] | None


def _in_process_0(config: RunConfig, claim: Callable[[], tuple[int, Lock]]) -> tuple[int, Lock]:
    """What `claim` returns there, and the same number in all processes; MeshkitError in all when it raises OSError."""
    number, lock, reason = FAILED, None, "cannot be written (see the message of process 0)"
    if jax.process_index() == 0:
        try:
            number, lock = claim()
        except OSError as error:
            reason = f"cannot be written ({error.strerror})" if error.strerror else str(error)
    # Process 0 tells all others which folder it is, or that there is none and they must stop too.
    number = int(multihost_utils.broadcast_one_to_all(np.int32(number)))
    if number == FAILED:
        raise MeshkitError(f"run_dir = {config.run_dir!r}: {reason}: choose another folder")
    return number, lock


def _claim(config: RunConfig, fresh: bool, lock: Lock) -> tuple[int, IO[str]]:
    """Make the folder with the config in it, the first that holds no run yet if `fresh`.

    Returns its number, and its lock.
    """
    free = (n for n in itertools.count(1) if not (_numbered(config.run_dir, n) / CONFIG_FILE).exists())
    number = next(free) if fresh else 1
    path = _numbered(config.run_dir, number)
    if is_url(config.run_dir):
        raise OSError("its files take a file system, and only checkpoint.folder can be a bucket")
    path.mkdir(parents=True, exist_ok=True)
    lock = lock or _locked(path)
    values = config.model_copy(update={"run_dir": str(path)}).model_dump(exclude_none=True)
    (path / CONFIG_FILE).write_text(tomli_w.dumps(values), encoding="utf-8")
    return number, lock


def _locked(path: Path) -> IO[str]:
    """The folder's lock file, locked until it is closed or the process ends, however it ends.

    Raises OSError when a run that lives holds it; its message says which.
    """
    lock = (path / LOCK_FILE).open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        who = lock.read().strip() or "another process"
        lock.close()
        raise OSError(f"{who} trains there, and two runs would mix their files") from None
    except OSError as error:
        warnings.warn(
            f"{path}: its file system has no locks ({error.strerror}): start no second run there, nothing stops it",
            stacklevel=2,
        )
    lock.truncate(0)
    print(f"process {os.getpid()} on {socket.gethostname()}", file=lock, flush=True)
    return lock


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
    "ideal_bubble": ("bubble, ideal of 1F1B", _percent),
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
