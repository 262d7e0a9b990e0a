"""Looking at checkpoints without training: what is there, whether it is whole, and a copy in another form."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from meshkit.checkpoint import seal
from meshkit.checkpoint.find import Origin, address, few, free, steps_of
from meshkit.checkpoint.layout import tree_of
from meshkit.checkpoint.place import place
from meshkit.checkpoint.record import Record
from meshkit.checkpoint.slices import arrays_of
from meshkit.checkpoint.store import Checkpoints
from meshkit.config import CheckpointConfig
from meshkit.errors import MeshkitError


def all_of(path: str) -> list[epath.Path]:
    """The checkpoints that a user means by `path`: itself, those of its folder, or of its run; by step."""
    newest = address(path)
    if newest == place(path):
        return [newest]
    return [newest.parent / str(step) for step in steps_of(newest.parent)]


def listed(path: str) -> list[dict[str, Any]]:
    """A row for each checkpoint. `error` instead of its content where it cannot be read."""
    rows = []
    for folder in all_of(path):
        row: dict[str, Any] = {"path": str(folder), "bytes": seal.size(folder)}
        try:
            record = Record.read(folder)
            row |= {name: getattr(record, name) for name in ("step", "saved", "samples", "held_out_loss", "holds")}
        except MeshkitError as error:
            row["error"] = str(error)
        rows.append(row)
    return rows


def shown(path: str) -> dict[str, Any]:
    """The record of one checkpoint, and name, dtype and shape of each of its arrays."""
    folder = address(path)
    arrays = {"/".join(name): (str(array.dtype), list(array.shape)) for name, array in arrays_of(folder).items()}
    parameters = sum(math.prod(shape) for name, (_, shape) in arrays.items() if name.startswith("params/"))
    record = dataclasses.asdict(Record.read(folder))
    return {"path": str(folder), "parameters": parameters, **record, "arrays": arrays}


def verified(path: str) -> dict[str, list[str]]:
    """What is wrong with each checkpoint, every file read; an empty list: it is whole."""
    return {str(folder): seal.damage(folder) for folder in all_of(path)}


def convert(path: str, out: str, weights: bool, dtype: str | None) -> epath.Path:
    """A copy of a checkpoint in the folder `out`, and where it is.

    weights: the parameters alone, for a new training to begin with. dtype: that of the copied parameters; other
    than their own it takes `weights`, as a state goes on in its own. The copy goes through this host's memory.
    Raises MeshkitError for a damaged checkpoint, a dtype without `weights`, or a place that cannot be written.
    """
    folder = address(path)
    if dtype is not None and not weights:
        raise MeshkitError(f"--dtype {dtype} takes --weights: a state goes on in the dtypes that it has")
    wrong = seal.damage(folder)
    if wrong:
        raise MeshkitError(f"{folder} is damaged: {few(wrong)}")
    record = Record.read(folder)
    names = [name for name in arrays_of(folder) if not weights or name[0] == "params"]
    target = free(out, f"--out {out}")
    state = _on_host(folder, names, dtype)
    record = dataclasses.replace(record, holds="weights" if weights else record.holds)
    notes: list[str] = []
    with Checkpoints(target, CheckpointConfig(), notes.append) as copies:
        copies.save(state, record, Origin(folder, record, own=False).history)
    if copies.whole is None:
        raise MeshkitError(notes[-1].removeprefix("error: "))
    return target / str(record.step)


def _on_host(folder: epath.Path, names: list[Any], dtype: str | None) -> dict[str, Any]:
    """Those arrays of the checkpoint, as NumPy's."""
    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray, dtype=None if dtype is None else jax.numpy.dtype(dtype))
    arguments = tree_of(dict.fromkeys(names, as_numpy))
    return ocp.PyTreeCheckpointer().restore(
        folder / "state",
        args=ocp.args.PyTreeRestore(
            item=tree_of(dict.fromkeys(names, 0)), restore_args=arguments, partial_restore=True
        ),
    )
