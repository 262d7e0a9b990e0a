"""Published weights into a checkpoint, and a checkpoint into a folder that others can load, tensor by tensor.

In host memory are a slice of CHUNK bytes (import), or the tensors of one file and the layers that one chunk of the
checkpoint holds (export).
"""

import json
import math
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from etils import epath

from meshkit.checkpoint import seal
from meshkit.checkpoint.find import address, few, free
from meshkit.checkpoint.layout import Name
from meshkit.checkpoint.record import Record, base_of, of_run
from meshkit.checkpoint.slices import Array, Saved, Streamed
from meshkit.config import ModelConfig, RunConfig
from meshkit.errors import MeshkitError
from meshkit.hf.adapters import Merged
from meshkit.hf.adapters import write as write_adapters
from meshkit.hf.folder import INDEX, SINGLE, Folder
from meshkit.hf.weights import BLOCKS, Shape, Weights, joint, shapes_of
from meshkit.models import names
from meshkit.models.config_json import CONFIG, is_checkpoint, read_json, write
from meshkit.models.presets import Sizes
from meshkit.models.published import TOKENS

CHUNK = 1 << 26
"""Bytes of a slice, about."""

EMBEDDING = "embed.table"

FILE = 1 << 30
"""Bytes of a file that is written, about."""

BESIDE = (
    "tokenizer*",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
    "chat_template*",
)
"""What a folder has besides weights and config.json: what goes with the text."""


# --- import -------------------------------------------------------------------------------------


def import_folder(path: str, to: str) -> epath.Path:
    """The weights of a published model as a checkpoint in the folder `to`, and where it is; in their own dtype.

    Raises MeshkitError, and writes nothing, for a folder that `Folder` or `Weights` refuse.
    """
    weights = Weights(Folder(path))
    target = free(to, f"--to {to}")
    arrays = {}
    for name, shape in weights.shapes.items():
        dtype = weights.dtype(name)
        arrays[_path(name)] = shape, dtype, _chunk(name, shape, jnp.dtype(dtype).itemsize)

    def fill(path: Name, array: Array) -> None:
        name = ".".join(path[1:])
        for index in _slices(array.shape, array.chunk_layout.write_chunk.shape):
            if name.startswith(BLOCKS):
                layers, *rest = index
                values = weights.read_layers(name, range(layers.start, layers.stop), tuple(rest))
            else:
                values = weights.read(name, index)
            array[index].write(values.astype(array.dtype.numpy_dtype)).result()

    record = of_run(RunConfig(model=ModelConfig(init_from=str(Path(path).absolute()))), weights.folder.sizes, "")
    with Streamed(target, arrays, fill) as checkpoint:
        return checkpoint.write(Record(**vars(record) | {"holds": "weights"}))


def _path(name: str) -> Name:
    return ("params", *name.split("."))


def _chunk(name: str, shape: Shape, size: int) -> Shape:
    """A layer, an expert, and as many rows as make CHUNK."""
    alone = (2 if len(shape) == 4 else 1) if name.startswith(BLOCKS) else 0
    rows = max(1, CHUNK // (size * math.prod(shape[alone + 1 :])))
    return (*(1,) * alone, *(min(rows, n) for n in shape[alone : alone + 1]), *shape[alone + 1 :])


def _slices(shape: Shape, chunk: Shape) -> Iterator[tuple[slice, ...]]:
    """The chunks of an array, in order."""
    grid = [range(0, size, step) for size, step in zip(shape, chunk, strict=True)]
    for start in np.ndindex(*map(len, grid)):
        yield tuple(
            slice(r[k], min(r[k] + step, size)) for r, k, step, size in zip(grid, start, chunk, shape, strict=True)
        )


# --- export -------------------------------------------------------------------------------------


def export_checkpoint(
    path: str, to: str, dtype: str | None = None, like: str | None = None, merge: bool = False
) -> Path:
    """A folder that `transformers` loads, from a checkpoint, and where it is; of adapters alone, one that `peft` loads.

    dtype: of the weights; None: as in the checkpoint. like: a published folder whose tokenizer and token ids go with.
    merge: adapters are added to their base's weights, whose dtype they get.
    Raises MeshkitError, and leaves nothing, for a damaged checkpoint, a model that is not published, adapters whose
    base is not there, or a folder that is there already.
    """
    folder, target = address(path), Path(to)
    wrong = seal.damage(folder)
    if wrong:
        raise MeshkitError(f"{folder} is damaged: {few(wrong)}")
    if target.exists():
        raise MeshkitError(f"--to {to}: is there already: choose another folder, or remove it first")
    record = Record.read(folder)
    sizes, alone = record.sizes.base, record.base is not None and not merge
    source = _merged(folder, record) if merge else Saved(folder)
    kind = dtype or source.dtype(EMBEDDING if EMBEDDING in source.shapes else min(source.shapes))
    config = write(sizes, kind)
    if like is not None:
        config |= {name: value for name, value in read_json(Path(like) / CONFIG).items() if name.endswith(TOKENS)}
    building = target.parent / f".{target.name}-{uuid.uuid4().hex[:8]}"
    try:
        building.mkdir(parents=True)
        if alone:
            write_adapters(building, Saved(folder), record, jnp.dtype(kind))
        else:
            _write_files(building, _published(source, sizes, jnp.dtype(kind)))
            (building / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for file in [file for pattern in BESIDE for file in Path(like).glob(pattern)] if like is not None else []:
            shutil.copy(file, building / file.name)
        building.rename(target)
    except OSError as error:
        raise MeshkitError(f"--to {to}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def _merged(folder: epath.Path, record: Record) -> Merged:
    adapters = record.sizes.adapters
    if adapters is None:
        raise MeshkitError(f"--merge: {folder} has no adapters: without --merge it is exported as it is")
    base = base_of(str(folder))
    read = Saved(epath.Path(base)) if is_checkpoint(base) else Weights(Folder(base))
    return Merged(read, Saved(folder), adapters)


def _published(source: Saved | Merged, sizes: Sizes, dtype: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Their tensors, one after the other: name and values. source: what is exported."""
    for theirs, ours in joint(sizes, shapes_of(sizes)).items():
        tensor = names.tensors(sizes)[ours[0]]
        columns = [_matrices(source, name) for name in ours]
        for parts in zip(*columns, strict=True):
            numbers, values = parts[0][0], np.concatenate([values for _, values in parts], -1).astype(dtype)
            layer, expert = (*numbers, None, None)[:2]
            name = theirs.format(layer=layer, expert=expert)
            yield name, np.ascontiguousarray(values.T if tensor.transposed else values)


def _matrices(source: Saved | Merged, name: str) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """The matrices (or vectors) of a parameter with their layer and expert, as many layers read as a chunk holds."""
    first_dim, *rest = source.shapes[name]
    everything = (slice(None),) * len(rest)
    if not name.startswith(BLOCKS):
        yield (), source.read(name, (slice(None), *everything))
        return
    step = source.layers_at_once(name)
    for first in range(0, first_dim, step):
        read = source.read_layers(name, range(first, min(first + step, first_dim)), everything)
        for layer, values in enumerate(read, first):
            if values.ndim == 3:
                yield from (((layer, expert), matrix) for expert, matrix in enumerate(values))
            else:
                yield (layer,), values


def _write_files(folder: Path, tensors: Iterator[tuple[str, np.ndarray]]) -> None:
    """Files of about FILE bytes, and their index if there is more than one."""
    from safetensors.numpy import save_file

    placed: list[list[str]] = []
    waiting: dict[str, np.ndarray] = {}
    total = 0

    def flush() -> None:
        save_file(waiting, folder / f"{len(placed)}.part", metadata={"format": "pt"})
        placed.append(list(waiting))
        waiting.clear()

    for name, values in tensors:
        waiting[name] = values
        total += values.nbytes
        if sum(array.nbytes for array in waiting.values()) >= FILE:
            flush()
    if waiting:
        flush()
    several = len(placed) > 1
    named = lambda k: f"model-{k + 1:05d}-of-{len(placed):05d}.safetensors" if several else SINGLE
    for k in range(len(placed)):
        (folder / f"{k}.part").rename(folder / named(k))
    if several:
        table = {tensor: named(k) for k, inside in enumerate(placed) for tensor in inside}
        index = {"metadata": {"total_size": total}, "weight_map": table}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
