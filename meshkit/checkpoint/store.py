"""The checkpoints of a run: saved in the background while training goes on, kept by rule, found whole or refused."""

import contextlib
import errno
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import jax
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers

from meshkit.checkpoint import seal
from meshkit.checkpoint.layout import Tree
from meshkit.checkpoint.place import children
from meshkit.checkpoint.record import Record
from meshkit.config import CheckpointConfig
from meshkit.distributed import processes
from meshkit.errors import MeshkitError

TEMPORARY = ".orbax-checkpoint-tmp"
"""In the name of a folder that Orbax has not finished."""

SECONDS = 4 * 3600
"""A save may take so long before it is given up; training goes on meanwhile."""

# Orbax logs tracebacks of what is said here in a sentence, itself and through asyncio, whose tasks it leaves: nothing
# else in meshkit has any.
logging.getLogger("absl").setLevel(logging.CRITICAL)
logging.getLogger("asyncio").addFilter(lambda record: "exception was never retrieved" not in record.getMessage())
warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)

_show_unraisable = sys.unraisablehook


def _unraisable(event: Any) -> None:
    """Once a write has failed, Orbax no longer listens; what others answer later, even at exit, has nowhere to go."""
    if "Event loop is closed" not in str(event.exc_value):
        _show_unraisable(event)


sys.unraisablehook = _unraisable

History = list[dict[str, float]]


class Checkpoints:
    """What a run saves, into `folder`. A context manager: leaving it waits for the save under way.

    note: shows a line to the user. whole: the step of the checkpoint that the run goes on from. A save that fails
    is shown, its leavings are removed, and training goes on.
    """

    def __init__(
        self, folder: epath.Path, config: CheckpointConfig, note: Callable[[str], None], whole: int | None = None
    ) -> None:
        self.folder, self._config, self._note = folder, config, note
        self.whole = whole  # the step of the last save that was finished
        self.last = self._shown = whole  # of the last begun, and of the last whose end was shown
        self._began = time.monotonic()
        options = ocp.CheckpointManagerOptions(
            preservation_policy=_policy(config),
            best_fn=lambda metrics: metrics["held_out_loss"],
            best_mode="min",
            cleanup_tmp_directories=True,
            async_options=ocp.options.AsyncOptions(
                timeout_secs=SECONDS,
                post_finalization_callback=self._seal,
                # Else writers wait for a folder that a full disk does not give, hours after the run.
                create_directories_asynchronously=False,
            ),
        )
        try:
            if folder.exists() and not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            self._manager = ocp.CheckpointManager(folder, options=options)
        except OSError as error:
            raise MeshkitError(
                f"{folder}: no checkpoint can be written there ({error.strerror or error}): choose another folder"
            ) from None

    def due(self, step: int, logged: bool) -> bool:
        """Whether `every` or `keep` ask for a checkpoint of `step`. logged: its metrics are read anyway."""
        periods, kept = self._config.periods, self._config.kept
        if any(count and step % count == 0 for count in (periods.get("steps"), kept.get("every"))):
            return True
        # Clocks differ between processes, and asking process 0 costs a wait: only when there is one already.
        late = time.monotonic() - self._began >= 60 * periods.get("min", math.inf)
        return "min" in periods and logged and processes.agreed(late)

    def is_best(self, history: History) -> bool:
        """Whether `keep` asks for a checkpoint of the step of the last record, as it is the best by held-out loss."""
        *before, last = [record.get("held_out_loss", math.inf) for record in history]
        return "best" in self._config.kept and last < min(before, default=math.inf)

    def save(self, tree: Tree, record: Record, history: History) -> None:
        """Save `tree` as the checkpoint of `record.step`; returns when the devices may go on.

        It waits for the save before it, if that is still under way.
        """
        self.wait()
        self._clear()
        self.last, self._began = record.step, time.monotonic()
        metrics = None if record.held_out_loss is None else {"held_out_loss": record.held_out_loss}
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(tree),
            record=ocp.args.JsonSave(record.to_json()),
            history=ocp.args.JsonSave({"records": history}),
        )
        try:
            self._manager.save(record.step, args=items, metrics=metrics, force=True)
        except Exception as error:  # whatever a file system raises, training goes on
            self._failed(error)

    def look(self) -> None:
        """Show how the last save went, if it has ended since the last look."""
        if self.last != self._shown and not self._manager.is_saving_in_progress():
            self.wait()

    def wait(self) -> None:
        """Wait for the save under way, and show how it went."""
        if self.last == self._shown:
            return
        try:
            self._manager.wait_until_finished()
        except Exception as error:  # as above
            self._failed(error)
            return
        self._shown = self.whole = self.last
        if jax.process_index() == 0:
            with contextlib.suppress(OSError):  # a disk that is full now: what training goes on from is sealed
                seal.seal_commit(self.folder / str(self.last))
        seconds = time.monotonic() - self._began
        self._note(f"checkpoint of step {self.last} saved to {self.folder / str(self.last)} in {seconds:.1f} s")

    def _failed(self, error: Exception) -> None:
        self._shown = self.last
        left = f"the one of step {self.whole} is whole" if self.whole is not None else "there is none before it"
        self._note(
            f"error: the checkpoint of step {self.last} could not be written to {self.folder}; {left}. "
            f"The reason: {_reason(error)}"
        )
        self._clear()

    def _clear(self) -> None:
        """Remove what failed saves left. Writes that Orbax left behind may still add to it: then at the next chance."""
        if jax.process_index() == 0:
            others = [path for path in children(self.folder) if TEMPORARY in path.name]
            for path in {*self._unfinished(), *others}:
                with contextlib.suppress(OSError):
                    path.rmtree(missing_ok=True)

    def _seal(self) -> None:
        """Called when every file is written, before Orbax commits."""
        (folder,) = self._unfinished()
        seal.seal(folder)

    def _unfinished(self) -> list[epath.Path]:
        """The folder of the save under way: of a temporary name, or, in a bucket, not sealed yet."""
        final = self.folder / str(self.last)
        named = [path for path in children(self.folder) if path.name.startswith(f"{self.last}{TEMPORARY}")]
        return named or [final] * (final.exists() and not seal.is_sealed(final))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.wait()
        self._clear()
        with contextlib.suppress(Exception):  # Orbax raises once more what was shown as the save failed
            self._manager.close()


def _policy(config: CheckpointConfig) -> Any:
    """Which checkpoints stay: the latest always, and all that a rule of `keep` names."""
    kept = config.kept
    rules: list[Any] = [checkpoint_managers.LatestN(kept.get("last", 1))]
    if "every" in kept:
        rules.append(checkpoint_managers.EveryNSteps(kept["every"]))
    if "best" in kept:
        rules.append(
            checkpoint_managers.BestN(
                n=kept["best"],
                get_metric_fn=lambda metrics: metrics["held_out_loss"],
                reverse=True,
                keep_checkpoints_without_metrics=False,
            )
        )
    return checkpoint_managers.AnyPreservationPolicy(rules)


def _reason(error: Exception) -> str:
    """One line of an error that may be long: storage names a path several times before it says what was wrong."""
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:1000]
