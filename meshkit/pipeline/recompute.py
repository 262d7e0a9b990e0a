"""What a forward keeps for its backward: the memory policies behind `recompute`.

A policy answers for one layer: what to save while going forward, and how to go backward from that.
`run_forward` and `run_backward` apply it to the layers of a chunk, one at a time, so that gradients
are added into their own place of the accumulator and no stage-sized temporary exists.

Shapes: B microbatch size, S sequence, H width; x_BSH has the sequence cut over tensor.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.extend
import jax.numpy as jnp
from jax import lax

from meshkit.pipeline import buffers
from meshkit.pipeline.buffers import empty_activations
from meshkit.pipeline.stage import Context, Params

COSTS = {"full": {"F": 1.0, "B": 4.0}, "none": {"F": 1.0, "B": 2.0}}
"""Time of a forward and a backward in forwards: a backward costs two, and "full" goes forward again
twice, once through the stage and once through each layer."""

Block = Callable[[Params, jax.Array, Context], jax.Array]
Saved = Any


@dataclasses.dataclass(frozen=True)
class Chunk:
    """The layers that one action works on, and how to reach them in the stage's stacks.

    first: where the chunk starts in the stage's stacks of layers; layers: how many it has.
    fetch: (stacks, index) -> one layer's working parameters. deposit: (stacks of gradients, index, one
    layer's gradient) -> the stacks with it added. context: k-th layer of the chunk -> its Context.
    """

    first: jax.Array | int
    layers: int
    fetch: Callable[[Params, Any], Params]
    deposit: Callable[[Params, Any, Params], Params]
    context: Callable[[Any], Context]
    unroll: int


class LayerPolicy(Protocol):
    """What one layer saves going forward, and its backward from that."""

    def forward(self, block: Block, params: Params, x_BSH: jax.Array, context: Context) -> tuple[jax.Array, Saved]: ...

    def backward(
        self, block: Block, params: Params, saved: Saved, dy_BSH: jax.Array, context: Context
    ) -> tuple[Params, jax.Array]: ...


class SaveInput:
    """Save the layer's input; go forward through the layer again before going backward (arXiv 1604.06174)."""

    def forward(self, block: Block, params: Params, x_BSH: jax.Array, context: Context) -> tuple[jax.Array, Saved]:
        return block(params, x_BSH, context), x_BSH

    def backward(
        self, block: Block, params: Params, saved: Saved, dy_BSH: jax.Array, context: Context
    ) -> tuple[Params, jax.Array]:
        return jax.vjp(lambda p, x: block(p, x, context), params, saved)[1](dy_BSH)


class SaveResiduals:
    """Save what `jax.vjp` needs, so that nothing is computed twice.

    The pullback is a pytree. Of its leaves only those that depend on x are saved: the rest (weights,
    rotary tables, dropout masks) come back when the pullback is traced again for the backward, where
    its own forward, fed with zeros, is dead code that the compiler drops.
    """

    def forward(self, block: Block, params: Params, x_BSH: jax.Array, context: Context) -> tuple[jax.Array, Saved]:
        y_BSH, pullback = jax.vjp(lambda p, x: block(p, x, context), params, x_BSH)
        leaves = jax.tree.leaves(pullback)
        return y_BSH, [leaves[k] for k in _depends_on_x(block, params, x_BSH, context)]

    def backward(
        self, block: Block, params: Params, saved: Saved, dy_BSH: jax.Array, context: Context
    ) -> tuple[Params, jax.Array]:
        x_BSH = jnp.zeros_like(dy_BSH)
        _, pullback = jax.vjp(lambda p, x: block(p, x, context), params, x_BSH)
        leaves, tree = jax.tree.flatten(pullback)
        for k, value in zip(_depends_on_x(block, params, x_BSH, context), saved, strict=True):
            leaves[k] = value
        return jax.tree.unflatten(tree, leaves)(dy_BSH)


def _depends_on_x(block: Block, params: Params, x_BSH: jax.Array, context: Context) -> list[int]:
    """Which leaves of the pullback depend on x: found by following x through the traced forward."""

    def leaves(x_BSH: jax.Array, params: Params, context: Context) -> list[jax.Array]:
        return jax.tree.leaves(jax.vjp(lambda p, x: block(p, x, context), params, x_BSH)[1])

    jaxpr = jax.make_jaxpr(leaves)(x_BSH, params, context).jaxpr
    tainted = {jaxpr.invars[0]}
    for equation in jaxpr.eqns:
        if any(not isinstance(v, jax.extend.core.Literal) and v in tainted for v in equation.invars):
            tainted.update(equation.outvars)
    return [k for k, v in enumerate(jaxpr.outvars) if not isinstance(v, jax.extend.core.Literal) and v in tainted]


def empty(policy: LayerPolicy, block: Block, chunk: Chunk, blocks: Params, x_BSH: jax.Array, slots: int) -> Saved:
    """Buffers for what `slots` microbatches save in a chunk: leaves [slot, layer, …]."""
    layer = jax.eval_shape(lambda: chunk.fetch(blocks, 0))
    saved = jax.eval_shape(lambda p, x: policy.forward(block, p, x, chunk.context(0))[1], layer, x_BSH)
    leading = (slots, chunk.layers)
    return jax.tree.map(lambda a: (empty_activations if a.shape == x_BSH.shape else buffers.empty)(leading, a), saved)


def run_forward(
    policy: LayerPolicy, block: Block, chunk: Chunk, blocks: Params, x_BSH: jax.Array, kept: Saved, slot: Any
) -> tuple[jax.Array, Saved]:
    """Through the layers of a chunk, saving into `kept[slot, layer]`."""

    def one(carry: tuple[jax.Array, Saved], k: jax.Array) -> tuple[tuple[jax.Array, Saved], None]:
        x_BSH, kept = carry
        y_BSH, saved = policy.forward(block, chunk.fetch(blocks, chunk.first + k), x_BSH, chunk.context(k))
        return (y_BSH, jax.tree.map(lambda b, a: buffers.put(b, a, slot, k), kept, saved)), None

    return lax.scan(one, (x_BSH, kept), jnp.arange(chunk.layers, dtype=jnp.int32), unroll=chunk.unroll)[0]


def run_backward(
    policy: LayerPolicy,
    block: Block,
    chunk: Chunk,
    blocks: Params,
    gradients: Params,
    dy_BSH: jax.Array,
    kept: Saved,
    slot: Any,
) -> tuple[jax.Array, Params]:
    """Back through the layers of a chunk from `kept[slot, layer]`: dx, and `gradients` added to."""

    def one(carry: tuple[jax.Array, Params], k: jax.Array) -> tuple[tuple[jax.Array, Params], None]:
        dy_BSH, gradients = carry
        saved = jax.tree.map(lambda b: buffers.get(b, slot, k), kept)
        params = chunk.fetch(blocks, chunk.first + k)
        dparams, dx_BSH = policy.backward(block, params, saved, dy_BSH, chunk.context(k))
        return (dx_BSH, chunk.deposit(gradients, chunk.first + k, dparams)), None

    order = jnp.arange(chunk.layers, dtype=jnp.int32)[::-1]
    return lax.scan(one, (dy_BSH, gradients), order, unroll=chunk.unroll)[0]


def forward_only(block: Block, chunk: Chunk, blocks: Params, x_BSH: jax.Array) -> jax.Array:
    """Through the layers of a chunk, saving nothing."""

    def one(x_BSH: jax.Array, k: jax.Array) -> tuple[jax.Array, None]:
        return block(chunk.fetch(blocks, chunk.first + k), x_BSH, chunk.context(k)), None

    return lax.scan(one, x_BSH, jnp.arange(chunk.layers, dtype=jnp.int32), unroll=chunk.unroll)[0]
