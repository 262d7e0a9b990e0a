"""Weights onto a mesh, published or of a checkpoint: every device gets its own shard, read for it alone.

No more of a model is ever in host memory than one shard of one parameter.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Sharding

from meshkit.checkpoint import seal
from meshkit.checkpoint.find import address, few
from meshkit.checkpoint.record import Record, base_of
from meshkit.checkpoint.slices import Saved
from meshkit.errors import MeshkitError
from meshkit.hf.folder import Folder, Index
from meshkit.hf.weights import BLOCKS, Shape, Weights, dotted
from meshkit.models.config_json import is_checkpoint
from meshkit.pipeline.placement import EMPTY_LAYER
from meshkit.pipeline.stage import Params
from meshkit.pipeline.trained import joined, like
from meshkit.train_step import TrainStep


def load(path: str, step: TrainStep) -> Params:
    """The parameters of a published folder, or of a checkpoint, in the master layout of `step` and its dtypes.

    Of a checkpoint with adapters, those and its base's. Adapters that `step` has and `path` has not are drawn.
    Raises MeshkitError when they are not those of the step's model, or their files are damaged.
    """
    own, everything = step.stages.own, step.stages.shapes
    if not step.stages.frozen(everything):
        return _load(path, everything, step)
    base = load_frozen(base_of(path), step)
    if is_checkpoint(path) and Record.read(epath.Path(path)).base is not None:
        return joined(_load(path, own(everything), step), base)
    drawn = jax.jit(lambda seed: own(step.fresh(seed)), out_shardings=own(step.state_shardings["params"]))
    return joined(drawn(step.config.seed), base)


def load_frozen(path: str, step: TrainStep) -> Params:
    """The frozen ones alone; errors as for `load`."""
    frozen = step.stages.frozen(step.stages.shapes)
    return _load(path, frozen, step) if frozen else {}


def _load(path: str, wanted: Params, step: TrainStep) -> Params:
    stages = step.stages
    shapes = {dotted(p): leaf.shape for p, leaf in jax.tree_util.tree_leaves_with_path(wanted)}
    shapes = {name: _canonical(name, shape, stages.placement.layers, stages.vocab) for name, shape in shapes.items()}
    weights = _saved(path, shapes) if is_checkpoint(path) else Weights(Folder(path), shapes)

    def place(path: Any, shape: jax.ShapeDtypeStruct, sharding: Sharding, dtype: Any) -> jax.Array:
        name = dotted(path)
        read = lambda index: _stored(weights, name, shape.shape, index, step)
        return _placed(shape.shape, sharding, lambda index: read(index).astype(dtype))

    shardings, dtypes = (like(tree, wanted) for tree in (step.state_shardings["params"], step.dtypes))
    return jax.tree_util.tree_map_with_path(place, wanted, shardings, dtypes)


def _saved(path: str, shapes: dict[str, Shape]) -> Saved:
    folder = address(path)
    wrong = seal.damage(folder)
    if wrong:
        raise MeshkitError(f"{folder} is damaged: {few(wrong)}")
    saved = Saved(folder)
    for name in sorted(shapes.keys() | saved.shapes.keys()):
        then, now = saved.shapes.get(name), shapes.get(name)
        if then != now:
            raise MeshkitError(f"{folder}: {name} has the shape {then} and this model's {now}")
    return saved


def _canonical(name: str, stored: Shape, layers: int, vocab: int) -> Shape:
    rows = layers if name.startswith(BLOCKS) else vocab if name in ("embed.table", "head.table") else stored[0]
    return (rows, *stored[1:])


def _stored(weights: Weights | Saved, name: str, shape: Shape, index: Index, step: TrainStep) -> np.ndarray:
    """A slice of a parameter as the stages hold it: layers in their order, empty layers and padded rows zero."""
    of, *rest = (slice(*s.indices(size)) for s, size in zip(index, shape, strict=True))
    if name.startswith(BLOCKS):
        layers = step.stages.placement.order[of]
        read = weights.read_layers(name, [max(int(layer), 0) for layer in layers], tuple(rest))
        read[layers == EMPTY_LAYER] = 0
        return read
    rows = weights.shapes[name][0]
    read = weights.read(name, (slice(min(of.start, rows), min(of.stop, rows)), *rest))
    return np.pad(read, [(0, of.stop - of.start - len(read)), *[(0, 0)] * len(rest)])


def _placed(shape: Shape, sharding: Sharding, read: Callable[[Index], np.ndarray]) -> jax.Array:
    """An array whose shards are read and sent one after the other."""
    pieces = []
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        assert index is not None
        pieces.append(jax.block_until_ready(jax.device_put(read(index), device)))
    return jax.make_array_from_single_device_arrays(shape, sharding, pieces)
