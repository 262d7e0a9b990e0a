"""Finding the checkpoint that a run goes on from: the newest that is whole."""

import dataclasses
import os
from collections.abc import Callable

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils

from meshkit.checkpoint import seal
from meshkit.checkpoint.place import children, place
from meshkit.checkpoint.record import Record
from meshkit.checkpoint.store import History
from meshkit.config import AUTO, NEVER, RunConfig
from meshkit.errors import MeshkitError

FOLDER = "checkpoints"
DAMAGED = ".damaged"

NONE, FAILED = -1, -2

Note = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Origin:
    """A checkpoint to begin from. own: it is of this very run, which goes on as if never interrupted."""

    folder: epath.Path
    record: Record
    own: bool

    @property
    def history(self) -> History:
        """The metrics logged until then."""
        return ocp.Checkpointer(ocp.JsonCheckpointHandler()).restore(self.folder / "history")["records"]


def home(config: RunConfig, run_dir: str | os.PathLike[str]) -> epath.Path:
    """The folder of the checkpoints of the run in `run_dir`."""
    folder = config.checkpoint.folder
    if folder is None:
        return epath.Path(run_dir).absolute() / FOLDER
    return place(folder, f"checkpoint.folder = {folder!r}")


def find(config: RunConfig, note: Note) -> Origin | None:
    """What `resume` says to begin from; None: step 0.

    A damaged checkpoint is shown and set aside, and the one before it taken. Raises MeshkitError when none
    is whole, or a path holds none.
    """
    if config.resume == NEVER:
        if config.checkpoint.folder and steps_of(home(config, config.run_dir)):
            raise MeshkitError(
                f"checkpoint.folder = {config.checkpoint.folder!r}: holds checkpoints, and resume = 'never' begins "
                "another run: choose another folder"
            )
        return None
    own = newest_whole(home(config, config.run_dir), note)
    if own is not None:
        return Origin(own, Record.read(own), own=True)
    if config.resume == AUTO:
        return None
    folder = address(config.resume, f"resume = {config.resume!r}")
    wrong = seal.damage(folder)
    if wrong:
        raise MeshkitError(f"resume = {config.resume!r}: {folder} is damaged: {few(wrong)}")
    return Origin(folder, Record.read(folder), own=False)


def steps_of(folder: epath.Path) -> list[int]:
    """Steps of the checkpoints in `folder`, ascending."""
    return sorted(int(path.name) for path in children(folder) if path.name.isdecimal())


def address(path: str, said: str = "") -> epath.Path:
    """The checkpoint that a user means by `path`: itself, the newest of its folder, or of its run.

    said: as for `place`.
    """
    folder = place(path, said)
    if (folder / "record").is_dir():
        return folder
    for inside in (folder, folder / FOLDER):
        steps = steps_of(inside)
        if steps:
            return inside / str(steps[-1])
    aside = [child for inside in (folder, folder / FOLDER) for child in _aside(inside)]
    found = f"; set aside as damaged: {', '.join(map(str, aside))}" if aside else ""
    raise MeshkitError(f"{path}: no checkpoint, no folder of checkpoints and no run that has any{found}")


def free(path: str, said: str) -> epath.Path:
    """The place that a user means by `path`, for checkpoints that belong to none there. said: as for `place`.

    Raises MeshkitError where there are any, or a run has its own inside, which these would hide.
    """
    folder = place(path, said)
    if steps_of(folder) or steps_of(folder / FOLDER):
        raise MeshkitError(f"{said}: holds checkpoints already: choose another folder, or remove it first")
    return folder


def newest_whole(folder: epath.Path, note: Note) -> epath.Path | None:
    """The newest checkpoint of `folder` that is whole; None when it holds no checkpoint.

    Process 0 looks, and tells the others.
    """
    step = NONE
    if jax.process_index() == 0:
        step = _newest_whole(folder, note)
    step = int(multihost_utils.broadcast_one_to_all(np.int32(step)))
    if step == FAILED:
        raise MeshkitError(
            f"{folder}: no checkpoint is whole; those that were are set aside there as *{DAMAGED}. Set resume = "
            "'never' to begin anew in a numbered neighbour of run_dir, or resume to a checkpoint of another run"
        )
    return None if step == NONE else folder / str(step)


def _newest_whole(folder: epath.Path, note: Note) -> int:
    steps = steps_of(folder)
    for step in reversed(steps):
        wrong = seal.damage(folder / str(step))
        if not wrong:
            return step
        aside = folder / f"{step}{DAMAGED}"
        damaged = f"error: the checkpoint {folder / str(step)} is damaged ({few(wrong)}): it"
        try:
            if aside.exists():
                aside.rmtree()
            (folder / str(step)).rename(aside)
            note(f"{damaged} is set aside as {aside.name}")
        except OSError as error:
            note(f"{damaged} is passed over, and stays where it is ({error.strerror or error})")
    return FAILED if steps or _aside(folder) else NONE


def _aside(folder: epath.Path) -> list[epath.Path]:
    """The checkpoints of `folder` that were found damaged."""
    return [path for path in children(folder) if path.name.endswith(DAMAGED)]


def few(sentences: list[str], most: int = 3) -> str:
    """The first of the sentences in one line, and how many more there are."""
    more = f" and {len(sentences) - most} more" if len(sentences) > most else ""
    return "; ".join(sentences[:most]) + more
