"""ZeRO (arXiv 1910.02054): what each replica holds of weights, gradients and moments, and what it fetches.

level  master weights, moments  gradients          working weights
0      whole                    whole              whole
1      cut over data            whole, then cut    gathered once a step
2      cut over data            cut, a layer of a microbatch at a time   gathered once a step
3      cut over data            cut, likewise      gathered a layer at a time, whenever one is used

Levels 2 and 3 cut the blocks only; tables and norms are few and go as in level 1. Used inside the
region that is manual over (data, pipe). Data peers stand on the same stage, so that a gather or
scatter inside the layer loop is safe under a stage gate.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from meshkit.mesh import DATA, TENSOR
from meshkit.pipeline import collectives
from meshkit.pipeline.stage import Params
from meshkit.sharding import UNCUT


@dataclasses.dataclass(frozen=True)
class Zero:
    """The moves over `data` at one level.

    dims: the dim of each parameter that is cut over data (UNCUT: none). specs: how the compiler cuts
    each parameter over tensor.
    """

    level: int
    dims: Params
    specs: Params

    def working(self, master: Params, dtype: Any) -> Params:
        """The weights that the pipeline gets, in the compute dtype."""
        gather = lambda weight, dim: _gather(weight.astype(dtype), dim)  # noqa: E731
        cast = lambda weight, dim: weight.astype(dtype)  # noqa: E731
        return _moved(master, self.dims, gather, cast if self.level == 3 else gather)

    def accumulators(self, master: Params, working: Params, dtype: Any) -> Params:
        """Zeros to add gradients to."""
        like = working | {"blocks": master["blocks"]} if self.level >= 2 else working
        return jax.tree.map(lambda p, spec: _cut(jnp.zeros(p.shape, dtype), spec), like, self.specs)

    def fetch(self, layer: Params) -> Params:
        """One layer's weights, whole, from what `working` holds of them."""
        return jax.tree.map(_gather, layer, self._layer_dims) if self.level == 3 else layer

    def deposit(self, gradient: Params) -> Params:
        """One layer's gradient, as the accumulators want it."""
        scatter = lambda g, dim: g if dim == UNCUT else collectives.psum_scatter(g, DATA, dim)  # noqa: E731
        return jax.tree.map(scatter, gradient, self._layer_dims) if self.level >= 2 else gradient

    def reduced(self, accumulated: Params) -> Params:
        """The accumulated gradients summed over replicas, in the master layout.

        The only data-parallel reduction of levels 0 and 1: once a step, after the pipeline.
        """
        scattered_before = lambda g, dim: g if dim != UNCUT else _reduce(g, dim)  # noqa: E731
        return _moved(accumulated, self.dims, _reduce, scattered_before if self.level >= 2 else _reduce)

    @property
    def _layer_dims(self) -> Params:
        return _of_a_layer(self.dims["blocks"])


Move = Callable[[jax.Array, int], jax.Array]


def _moved(params: Params, dims: Params, move: Move, move_layer: Move) -> Params:
    """`move(array, dim)` on every parameter; on blocks `move_layer`, a layer at a time.

    On whole stacks a gather or scatter along an inner dim makes a transposed second copy.
    """
    rest = {name: jax.tree.map(move, value, dims[name]) for name, value in params.items() if name != "blocks"}
    layer_dims = _of_a_layer(dims["blocks"])
    blocks = lax.scan(lambda _, x: (None, jax.tree.map(move_layer, x, layer_dims)), None, params["blocks"])[1]
    return rest | {"blocks": blocks}


def _of_a_layer(dims: Params) -> Params:
    """The dims of blocks' parameters without the leading one of layers."""
    return jax.tree.map(lambda dim: dim if dim == UNCUT else dim - 1, dims)


def _gather(weight: jax.Array, dim: int) -> jax.Array:
    return weight if dim == UNCUT else collectives.all_gather(weight, DATA, dim)


def _reduce(gradient: jax.Array, dim: int) -> jax.Array:
    if dim == UNCUT:
        return collectives.psum(gradient, DATA)
    return collectives.psum_scatter(gradient, DATA, dim)


def _cut(array: jax.Array, spec: Any) -> jax.Array:
    return lax.with_sharding_constraint(array, spec) if collectives.axis_size(TENSOR) > 1 else array
