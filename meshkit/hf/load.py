"""Published weights onto a mesh: every device gets its own shard, read from the files for it alone.

No more of a model is ever in host memory than one shard of one parameter.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from meshkit.errors import MeshkitError
from meshkit.hf.folder import Folder, Index
from meshkit.hf.weights import BLOCKS, Shape, Weights, dotted
from meshkit.pipeline.placement import EMPTY_LAYER
from meshkit.pipeline.stage import Params
from meshkit.train_step import TrainStep


def load(path: str, step: TrainStep) -> Params:
    """The parameters of the folder `path` in the master layout of `step`, cast to its master dtype.

    Raises MeshkitError when the folder's tensors are not those of the step's model.
    """
    stages = step.stages
    shapes = {dotted(p): leaf.shape for p, leaf in jax.tree_util.tree_leaves_with_path(stages.shapes)}
    canonical = {name: _canonical(name, shape, stages.placement.layers, stages.vocab) for name, shape in shapes.items()}
    weights = Weights(Folder(path), canonical)

    def place(path: Any, shape: jax.ShapeDtypeStruct, sharding: Sharding) -> jax.Array:
        name = dotted(path)
        read = lambda index: _stored(weights, name, shape.shape, index, step)
        return _placed(shape.shape, sharding, lambda index: read(index).astype(step.wide))

    return jax.tree_util.tree_map_with_path(place, stages.shapes, step.state_shardings["params"])


def _canonical(name: str, stored: Shape, layers: int, vocab: int) -> Shape:
    rows = layers if name.startswith(BLOCKS) else vocab if name in ("embed.table", "head.table") else stored[0]
    return (rows, *stored[1:])


def _stored(weights: Weights, name: str, shape: Shape, index: Index, step: TrainStep) -> np.ndarray:
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


def check(path: str, model: Any) -> None:
    """MeshkitError when a model of the user's own shall begin with published weights."""
    if model is not None:
        raise MeshkitError(f"model.init_from = {path!r}: a model of one's own has no published weights")
