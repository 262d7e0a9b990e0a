"""Whether a user's own model and loss take and give the shapes they should: said before anything is compiled.

Shapes: B samples, S sequence, H width, V vocabulary.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from meshkit.errors import MeshkitError
from meshkit.imports import check_callable
from meshkit.pipeline.context import Context
from meshkit.pipeline.stage import Params, Stages, outer
from meshkit.pipeline.vocab import TokenLoss

SAMPLES = 2
"""Samples of the pretend microbatch; more than one, so that a lost batch dim shows."""


def check_flow(stages: Stages, dtype: Any, sequence: int, apart: bool = False) -> None:
    """Trace `enter`, a block and `leave`: each takes x [B, S, H] and gives the like. Nothing is computed.

    dtype: what parameters and activations have in a step. apart: blocks must heed where documents end.
    """
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    params = jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape.shape, dtype), stages.shapes)
    layer = jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape.shape[1:], dtype), params["blocks"])
    width = params["embed"]["table"].shape[1]
    x_BSH = jax.ShapeDtypeStruct((SAMPLES, sequence, width), dtype)
    context = Context(0, jnp.arange(SAMPLES, dtype=jnp.int32), jax.random.key(0))
    for name, function in {
        "enter": lambda params, layer, x: stages.enter(outer(params), params, x, context),
        "a block": lambda params, layer, x: stages.block(layer, x, context),
        "leave": lambda params, layer, x: stages.leave(outer(params), params, x),
    }.items():
        got = jax.eval_shape(function, params, layer, x_BSH)
        if _spell(got) != _spell(x_BSH):
            raise MeshkitError(
                f"model.family: {name} takes x {_spell(x_BSH)} and gives {_spell(got)}: it must give the shape and "
                "dtype it takes; parameters come in the dtype that x has"
            )
    if apart:

        def block(segments_BS: jax.Array, layer: Params, x_BSH: jax.Array) -> jax.Array:
            return stages.block(layer, x_BSH, dataclasses.replace(context, segments_BS=segments_BS))

        traced = jax.make_jaxpr(block)(jax.ShapeDtypeStruct((SAMPLES, sequence), jnp.int32), layer, x_BSH).jaxpr
        if not any(traced.invars[0] in equation.invars for equation in traced.eqns):
            raise MeshkitError(
                "model.family: a block does not read context.segments_BS, so that attention would go on from one "
                "document into the next: set data.documents = 'joined', or see meshkit/models/layers.py's attention"
            )


def check_loss(loss: TokenLoss, vocab: int, dtype: Any, sequence: int) -> None:
    """Trace a user's loss: it gives a float for each token."""
    check_callable(loss, "loss", "logits", "targets")
    logits = jax.ShapeDtypeStruct((SAMPLES, sequence, vocab), jax.dtypes.canonicalize_dtype(dtype))
    targets = jax.ShapeDtypeStruct((SAMPLES, sequence), jnp.int32)
    got = jax.eval_shape(loss, logits, targets)
    if getattr(got, "shape", None) != targets.shape or not jnp.issubdtype(got.dtype, jnp.floating):
        raise MeshkitError(
            f"loss: for logits {_spell(logits)} and targets {_spell(targets)} it gives {_spell(got)}: it must give "
            f"one float a token, {list(targets.shape)}; the mean over tokens is taken later, by their weights"
        )


def _spell(value: Any) -> str:
    """An array's shape and dtype, as in [2, 16, 64] float32."""
    if not hasattr(value, "shape"):
        return f"a {type(value).__name__}"
    return f"{list(value.shape)} {value.dtype}"
