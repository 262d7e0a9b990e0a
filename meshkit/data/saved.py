"""Folders that the `datasets` package wrote with `save_to_disk`: which Arrow files they are made of, by split.

A data set is a folder with dataset_info.json and state.json, which names its Arrow files in order; one of several
splits is a folder with dataset_dict.json and a data set for each split.
"""

import json
from pathlib import Path
from typing import Any

from meshkit.errors import MeshkitError

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
TRAIN, HELD_OUT = "train", ("validation", "test")  # of several splits, how those that are read are called


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote the folder."""
    return (folder / SPLITS).is_file() or ((folder / STATE).is_file() and (folder / INFO).is_file())


def files(folder: Path) -> list[tuple[Path, str]]:
    """The Arrow files of a saved folder, each with the split that it belongs to: "train", "held_out" or "" (any).

    Of several splits, `train` is for training and `validation`, else `test`, is held out; without these two, `train` is
    like a folder of a single split. Others are not read: what is kept for a test must not be trained on.
    Raises MeshkitError for a folder that is malformed, lacks a file, or has no split called train.
    """
    if not (folder / SPLITS).is_file():
        return [(path, "") for path in _arrow_files(folder)]
    names = _read(folder / SPLITS, "splits", list)
    if TRAIN not in names:
        raise MeshkitError(
            f"{folder / SPLITS}: its splits are {', '.join(map(str, names))}, none is called {TRAIN!r}: name the "
            "folders of those to read"
        )
    held_out = next((name for name in HELD_OUT if name in names), None)
    found = [(path, TRAIN if held_out else "") for path in _arrow_files(folder / TRAIN)]
    return found + [(path, "held_out") for path in (_arrow_files(folder / held_out) if held_out else [])]


def _arrow_files(folder: Path) -> list[Path]:
    state = folder / STATE
    if _read(state, "_indices_data_files", list, optional=True):
        raise MeshkitError(
            f"{state}: _indices_data_files: its rows are chosen by an index, which is not read here: save it after "
            "flatten_indices()"
        )
    paths = []
    for entry in _read(state, "_data_files", list):
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not (folder / name).is_file():
            raise MeshkitError(f"{state}: _data_files: {name!r} is no file of the folder")
        paths.append(folder / name)
    return paths


def _read(path: Path, field: str, kind: type, optional: bool = False) -> Any:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MeshkitError(f"{path}: cannot be read as JSON: {error}") from None
    value = values.get(field) if isinstance(values, dict) else None
    if not isinstance(value, kind) and not (optional and value is None):
        raise MeshkitError(f"{path}: {field} is {value!r}, not a {kind.__name__}")
    return value
