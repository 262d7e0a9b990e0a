"""What a forward keeps for its backward: the memory policies behind `recompute`.

A policy answers for one layer: what to save while going forward, and how to go backward from that.
`run_forward` and the others apply it to the layers of a chunk, one at a time, so that gradients
are added into their own place of the accumulator and no stage-sized temporary exists.

Shapes: B microbatch size, S sequence, H width; x_BSH has the sequence cut over tensor.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import memory
from jax.extend.core import Literal

from meshkit.pipeline import buffers
from meshkit.pipeline.buffers import Space, empty_activations
from meshkit.pipeline.chunks import Chunk
from meshkit.pipeline.context import Context
from meshkit.pipeline.split import SplitBackward
from meshkit.pipeline.stage import PRODUCT, Params
from meshkit.pipeline.trained import joined

Block = Callable[[Params, jax.Array, Context], jax.Array]
Saved = Any


class LayerPolicy(Protocol):
    """What one layer saves going forward, and its backward from that.

    as_made: whether what it saves is kept cut over tensor as it was made; else, what has the shape of an activation is
    kept cut along the sequence, even where it was gathered.
    """

    @property
    def as_made(self) -> bool: ...

    def forward(self, block: Block, params: Params, x_BSH: jax.Array, context: Context) -> tuple[jax.Array, Saved]:
        """y_BSH, and a tree of arrays for the backward. params: of this layer alone."""

    def backward(
        self, block: Block, params: Params, saved: Saved, dy_BSH: jax.Array, context: Context
    ) -> tuple[Params, jax.Array]:
        """Gradients of params and of x_BSH, from what `forward` saved and the gradient of y_BSH."""


class SaveInput:
    """Save the layer's input; go forward through the layer again before going backward (arXiv 1604.06174)."""

    as_made = False

    def forward(self, block: Block, params: Params, x_BSH: jax.Array, context: Context) -> tuple[jax.Array, Saved]:
        """y_BSH and x_BSH."""
        return block(params, x_BSH, context), x_BSH

    def backward(
        self, block: Block, params: Params, saved: Saved, dy_BSH: jax.Array, context: Context
    ) -> tuple[Params, jax.Array]:
        """Through the layer again, then back."""
        return jax.vjp(lambda p, x: block(p, x, context), params, saved)[1](dy_BSH)


@dataclasses.dataclass(frozen=True)
class SaveResiduals:
    """Save what `jax.vjp` needs, or of it what `saveable` (a `jax.checkpoint_policies` rule) allows.

    The pullback is a pytree. Of its leaves only those that depend on x are saved: the rest (weights,
    rotary tables, dropout masks) come back when the pullback is traced again for the backward, where
    its own forward, fed with zeros, is dead code that the compiler drops.
    """

    saveable: Callable[..., bool] | None = None

    @property
    def as_made(self) -> bool:
        """Products are never gathered; and queries, which may have the shape of an activation, are cut by heads."""
        return self.saveable is not None

    def forward(self, block: Block, params: Params, x_BSH: jax.Array, context: Context) -> tuple[jax.Array, Saved]:
        """y_BSH, and the leaves of the pullback that depend on x."""
        y_BSH, pullback = self._vjp(block, params, x_BSH, context)
        leaves = jax.tree.leaves(pullback)
        return y_BSH, [leaves[k] for k in self._depends_on_x(block, params, x_BSH, context)]

    def backward(
        self, block: Block, params: Params, saved: Saved, dy_BSH: jax.Array, context: Context
    ) -> tuple[Params, jax.Array]:
        """The pullback, put together again."""
        x_BSH = jnp.zeros_like(dy_BSH)
        _, pullback = self._vjp(block, params, x_BSH, context)
        leaves, tree = jax.tree.flatten(pullback)
        for k, value in zip(self._depends_on_x(block, params, x_BSH, context), saved, strict=True):
            leaves[k] = value
        return jax.tree.unflatten(tree, leaves)(dy_BSH)

    def _vjp(self, block: Block, params: Params, x_BSH: jax.Array, context: Context) -> tuple[jax.Array, Any]:
        run = lambda p, x: block(p, x, context)
        if self.saveable is not None:
            # Forward and backward are never in one another's sight, so nothing has to prevent their merging.
            run = jax.checkpoint(run, policy=self.saveable, prevent_cse=False)
        return jax.vjp(run, params, x_BSH)

    def _depends_on_x(self, block: Block, params: Params, x_BSH: jax.Array, context: Context) -> list[int]:
        """Which leaves of the pullback depend on x: found by following x through the traced forward."""

        def leaves(x_BSH: jax.Array, params: Params, context: Context) -> list[jax.Array]:
            return jax.tree.leaves(self._vjp(block, params, x_BSH, context)[1])

        jaxpr = jax.make_jaxpr(leaves)(x_BSH, params, context).jaxpr
        tainted = {jaxpr.invars[0]}
        for equation in jaxpr.eqns:
            if any(not isinstance(v, Literal) and v in tainted for v in equation.invars):
                tainted.update(equation.outvars)
        return [k for k, v in enumerate(jaxpr.outvars) if not isinstance(v, Literal) and v in tainted]


POLICIES: dict[str, LayerPolicy] = {
    "full": SaveInput(),
    "selective": SaveResiduals(jax.checkpoint_policies.save_only_these_names(PRODUCT)),
    "none": SaveResiduals(),
}
"""What `recompute` names. full: a stage's input is kept, its layers' inputs are made again for the backward.
selective: outputs of linears (values named PRODUCT) are kept; norms, activations and attention are made
again. none: all that the backward needs is kept."""


def empty(
    policy: LayerPolicy,
    block: Block,
    chunk: Chunk,
    blocks: Params,
    x_BSH: jax.Array,
    slots: int,
    space: Space = memory.Space.Device,
) -> Saved:
    """Buffers for what `slots` microbatches save in a chunk (see `_by_layer`)."""

    def layers(leading: tuple[int, ...]) -> Saved:
        def one(a: jax.ShapeDtypeStruct) -> jax.Array:
            along_sequence = a.shape == x_BSH.shape and not policy.as_made
            return (empty_activations if along_sequence else buffers.empty)(leading, a, space)

        return jax.tree.map(one, saved_shapes(policy, block, chunk, blocks, x_BSH))

    return _by_layer(chunk, slots, layers)


def saved_shapes(policy: LayerPolicy, block: Block, chunk: Chunk, blocks: Params, x_BSH: jax.Array) -> Saved:
    """Shapes of what a layer saves."""

    def saved(x_BSH: jax.Array) -> Saved:
        own, frozen = chunk.fetch(blocks, 0)
        return policy.forward(_beside(block, frozen), own, x_BSH, chunk.context(0))[1]

    return jax.eval_shape(saved, x_BSH)


def _beside(block: Block, frozen: Params) -> Block:
    """`block` as a function of the trained parameters, beside these frozen ones."""
    return lambda own, x_BSH, context: block(joined(own, frozen), x_BSH, context)


def run_forward(
    policy: LayerPolicy, block: Block, chunk: Chunk, blocks: Params, x_BSH: jax.Array, kept: Saved, slot: Any
) -> tuple[jax.Array, Saved]:
    """Through the layers of a chunk, saving into `kept[slot, layer]`."""

    def one(carry: tuple[jax.Array, Saved], k: jax.Array, _: Any) -> tuple[jax.Array, Saved]:
        x_BSH, kept = carry
        own, frozen = chunk.fetch(blocks, k)
        y_BSH, saved = policy.forward(_beside(block, frozen), own, x_BSH, chunk.context(k))
        return y_BSH, _put(kept, saved, slot, k)

    return chunk.each(one, (x_BSH, kept))


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

    def one(carry: tuple[jax.Array, Params], k: jax.Array, kept: Saved) -> tuple[jax.Array, Params]:
        dy_BSH, gradients = carry
        own, frozen = chunk.fetch(blocks, k)
        dlayer, dx_BSH = policy.backward(_beside(block, frozen), own, _get(kept, slot, k), dy_BSH, chunk.context(k))
        return dx_BSH, chunk.deposit(gradients, k, dlayer)

    return chunk.each(one, (dy_BSH, gradients), kept, backward=True)


def run_input_gradient(
    policy: LayerPolicy,
    block: Block,
    chunk: Chunk,
    blocks: Params,
    dy_BSH: jax.Array,
    kept: Saved,
    slot: Any,
    held: Saved,
    hold_slot: Any,
) -> tuple[jax.Array, Saved]:
    """The first half of `run_backward`: dx, and what the second half needs, into `held[hold_slot, layer]`."""

    def one(carry: tuple[jax.Array, Saved], k: jax.Array, kept: Saved) -> tuple[jax.Array, Saved]:
        dy_BSH, held = carry
        ready = chunk.fetch(blocks, k), chunk.context(k)
        passing = _get(kept, slot, k), dy_BSH
        dx_BSH, values = _split(policy, block, ready, passing).first(ready, passing)
        return dx_BSH, _put(held, values, hold_slot, k)

    return chunk.each(one, (dy_BSH, held), kept, backward=True)


def run_weight_gradient(
    policy: LayerPolicy,
    block: Block,
    chunk: Chunk,
    blocks: Params,
    gradients: Params,
    x_BSH: Any,
    held: Saved,
    slot: Any,
) -> Params:
    """The second half: `gradients` with those added that `held[slot, layer]` gives.

    x_BSH: any activation or its ShapeDtypeStruct; only its shape and dtype are looked at.
    """
    passing = saved_shapes(policy, block, chunk, blocks, x_BSH), x_BSH

    def one(gradients: Params, k: jax.Array, held: Saved) -> Params:
        ready = chunk.fetch(blocks, k), chunk.context(k)
        dlayer = _split(policy, block, ready, passing).second(ready, _get(held, slot, k))
        return chunk.deposit(gradients, k, dlayer)

    return chunk.each(one, gradients, held, backward=True)


def empty_held(policy: LayerPolicy, block: Block, chunk: Chunk, blocks: Params, x_BSH: Any, slots: int) -> Saved:
    """Buffers for what `slots` microbatches hold between the halves of a backward (see `_by_layer`)."""
    ready = jax.eval_shape(lambda: (chunk.fetch(blocks, 0), chunk.context(0)))
    passing = saved_shapes(policy, block, chunk, blocks, x_BSH), x_BSH
    held = _split(policy, block, ready, passing).held
    return _by_layer(chunk, slots, lambda leading: [buffers.empty(leading, a) for a in held])


def forward_only(block: Block, chunk: Chunk, blocks: Params, x_BSH: jax.Array) -> jax.Array:
    """Through the layers of a chunk, saving nothing."""

    def one(x_BSH: jax.Array, k: jax.Array, _: Any) -> jax.Array:
        return block(joined(*chunk.fetch(blocks, k)), x_BSH, chunk.context(k))

    return chunk.each(one, x_BSH)


def _split(policy: LayerPolicy, block: Block, ready: Any, passing: Any) -> SplitBackward:
    def backward(ready: Any, passing: Any) -> tuple[Params, jax.Array]:
        ((own, frozen), context), (saved, dy_BSH) = ready, passing
        return policy.backward(_beside(block, frozen), own, saved, dy_BSH, context)

    return SplitBackward(backward, ready, passing)


def _by_layer(chunk: Chunk, slots: int, layers: Callable[[tuple[int, ...]], Saved]) -> Saved:
    """Buffers for all layers of a chunk: stacked, leaves [slot, layer, …], or layer -> leaves [slot, …].

    Unrolled layers have buffers of their own: with one slot each, the compiler sees that what a backward
    reads is what its forward wrote, and needs no buffer at all.
    """
    return {k: layers((slots,)) for k in range(chunk.rows)} if chunk.unrolled else layers((slots, chunk.rows))


def _put(kept: Saved, saved: Saved, slot: Any, k: Any) -> Saved:
    if isinstance(kept, dict):
        return kept | {k: jax.tree.map(lambda b, a: buffers.put(b, a, slot), kept[k], saved)}
    return jax.tree.map(lambda b, a: buffers.put(b, a, slot, k), kept, saved)


def _get(kept: Saved, slot: Any, k: Any) -> Saved:
    if isinstance(kept, dict):
        return jax.tree.map(lambda b: buffers.get(b, slot), kept[k])
    return jax.tree.map(lambda b: buffers.get(b, slot, k), kept)
