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
from jax.sharding import PartitionSpec as P

from meshkit.mesh import DATA, TENSOR
from meshkit.pipeline import collectives
from meshkit.pipeline.collectives import after, over_tensor
from meshkit.pipeline.stage import Params
from meshkit.pipeline.trained import joined, like, part
from meshkit.sharding import UNCUT


@dataclasses.dataclass(frozen=True)
class Zero:
    """The moves over `data` at one level.

    dims: the dim of each parameter that is cut over data (UNCUT: none). specs: how the compiler cuts
    each parameter over tensor. trained: whether it is; what is frozen is cut at level 3 alone, as it has neither
    moments nor master weights.
    """

    level: int
    dims: Params
    specs: Params
    trained: Params

    def working(self, master: Params, dtype: Any) -> Params:
        """The weights that the pipeline gets, in the compute dtype."""
        gather = lambda weight, dim, spec: _gather(weight.astype(dtype), dim, spec)
        if self.level in (1, 2) and collectives.axis_size(DATA) > 1:
            own, frozen = (part(master, self.trained, wanted) for wanted in (True, False))
            return joined(self._moved(own, gather), jax.tree.map(lambda weight: weight.astype(dtype), frozen))
        return self._moved(master, gather, lambda weight, dim, spec: weight.astype(dtype))

    def accumulators(self, master: Params, working: Params, dtype: Any) -> Params:
        """Zeros to add gradients to."""
        shapes = working | {"blocks": master["blocks"]} if self.level >= 2 else working
        shapes = part(shapes, self.trained, True)
        return jax.tree.map(lambda p, spec: _cut(jnp.zeros(p.shape, dtype), spec), shapes, like(self.specs, shapes))

    def fetch(self, layer: Params) -> tuple[Params, Params]:
        """One layer's weights, whole, from what `working` holds of them: those trained, and those frozen."""
        whole = self._on_a_layer(_gather, layer) if self.level == 3 else layer
        own, frozen = (part(whole, self.trained["blocks"], wanted) for wanted in (True, False))
        return own, frozen

    def deposit(self, gradient: Params) -> Params:
        """One layer's gradient, as the accumulators want it."""
        return self._on_a_layer(_scatter, gradient) if self.level >= 2 else gradient

    def reduced(self, loss: jax.Array, accumulated: Params) -> tuple[jax.Array, Params]:
        """The loss and the accumulated gradients summed over replicas, these in the master layout.

        The only data-parallel reduction of levels 0 and 1: once a step, after the pipeline.
        """
        loss = collectives.psum(loss, DATA)
        if collectives.axis_size(DATA) == 1:
            return loss, accumulated
        if self.level <= 1:
            return loss, self._moved(accumulated, _reduce, before=loss)
        # What is cut is reduced already.
        kept = lambda g, dim, spec: g if dim != UNCUT else _reduce(g, dim, spec)
        stacks = accumulated["blocks"]
        order = after(jnp.zeros(()), stacks, like(self.specs["blocks"], stacks))
        ordered = jax.tree.map(lambda g: g + order.astype(g.dtype), accumulated)
        return loss, self._moved(ordered | {"blocks": stacks}, _reduce, kept)

    def _moved(
        self, params: Params, move: "Move", move_stack: "Move | None" = None, before: jax.Array | None = None
    ) -> Params:
        """`move(array, dim, spec)` on every parameter; on the blocks' stacks `move_stack`, or `move` a layer at a time.

        On whole stacks a gather or scatter along an inner dim makes a transposed second copy. The loop over layers
        begins when all else has been moved, and the scalar `before` is there.
        """
        dims, specs = like(self.dims, params), like(self.specs, params)
        rest = {k: jax.tree.map(move, v, dims[k], specs[k]) for k, v in params.items() if k != "blocks"}
        stacks = params["blocks"]
        if move_stack is None:
            begin = after(jnp.zeros(()), (rest, before), ({k: specs[k] for k in rest}, None if before is None else P()))
            moved = _by_layer(lambda layer: self._on_a_layer(move, layer), stacks, begin)
        else:
            moved = jax.tree.map(move_stack, stacks, dims["blocks"], specs["blocks"])
        return rest | {"blocks": moved}

    def _on_a_layer(self, move: "Move", layer: Params) -> Params:
        """`move` on the parameters of one layer: dims and specs without the leading dim of layers."""

        def of_a_layer(array: jax.Array, dim: int, spec: P) -> jax.Array:
            return move(array, dim if dim == UNCUT else dim - 1, P(*spec[1:]))

        return jax.tree.map(of_a_layer, layer, like(self.dims["blocks"], layer), like(self.specs["blocks"], layer))


def _by_layer(function: Callable[[Params], Params], stacks: Params, zero: jax.Array) -> Params:
    """The stacks of `function(layer)`.

    `lax.scan` would stack them into zeros that nothing ties to a time: XLA makes them when the step begins, and holds
    them through the whole pipeline. These wait for the smallest of the stacks that are moved.
    """
    leaves, tree = jax.tree.flatten(stacks)
    smallest = min(range(len(leaves)), key=lambda i: leaves[i].size)
    zero, leaves[smallest] = lax.optimization_barrier((zero, leaves[smallest]))
    stacks, layers = jax.tree.unflatten(tree, leaves), len(leaves[0])
    layer = lambda k: jax.tree.map(lambda stack: lax.dynamic_index_in_dim(stack, k, keepdims=False), stacks)
    empty = jax.tree.map(lambda a: jnp.full((layers, *a.shape), zero, a.dtype), jax.eval_shape(function, layer(0)))

    def step(k: jax.Array, done: Params) -> Params:
        return jax.tree.map(lambda stack, a: lax.dynamic_update_index_in_dim(stack, a, k, 0), done, function(layer(k)))

    return lax.fori_loop(0, layers, step, empty)


Move = Callable[[jax.Array, int, P], jax.Array]
"""(array, the dim that is cut over data or UNCUT, how the array is cut over tensor) -> array."""


# The moves are made on the slices that tensor peers hold: left to the compiler, each gathers its
# peers' slices, moves the whole, and cuts it again.


def _gather(weight: jax.Array, dim: int, spec: P) -> jax.Array:
    if dim == UNCUT:
        return weight
    return over_tensor([spec], spec)(lambda w: collectives.all_gather(w, DATA, dim))(weight)


def _scatter(gradient: jax.Array, dim: int, spec: P) -> jax.Array:
    if dim == UNCUT:
        return gradient
    return over_tensor([spec], spec)(lambda g: collectives.psum_scatter(g, DATA, dim))(gradient)


def _reduce(gradient: jax.Array, dim: int, spec: P) -> jax.Array:
    if dim == UNCUT:
        return over_tensor([spec], spec)(lambda g: collectives.psum(g, DATA))(gradient)
    return _scatter(gradient, dim, spec)


def _cut(array: jax.Array, spec: Any) -> jax.Array:
    return lax.with_sharding_constraint(array, spec) if collectives.axis_size(TENSOR) > 1 else array
