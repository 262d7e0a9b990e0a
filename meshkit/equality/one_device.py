"""The reference: training as it is without meshkit. The model called whole, `jax.value_and_grad`, Optax.

No mesh, no pipeline, no TrainStep: what this file and the train step agree on, neither has from the other.

Shapes: M microbatches, B samples of a microbatch over all replicas, S sequence, V vocabulary.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from meshkit.pipeline.context import Context
from meshkit.pipeline.stage import Params, Stages
from meshkit.pipeline.trained import joined
from meshkit.pipeline.vocab import TokenLoss

Batch = dict[str, Any]
"""`tokens`, `targets`, `weights`, and `segments` if any: [M, B, S] arrays, as TrainStep takes them."""


def cross_entropy(logits_BSV: jax.Array, targets_BS: jax.Array) -> jax.Array:
    """−log p(target) of each token, [B, S]."""
    logp_BSV = jax.nn.log_softmax(logits_BSV)
    return -jnp.take_along_axis(logp_BSV, targets_BS[..., None], axis=-1)[..., 0]


def mean_loss(
    stages: Stages, params: Params, batch: Batch, key: jax.Array | None, loss: TokenLoss | None, dtype: Any
) -> jax.Array:
    """Weighted mean of the token losses of a batch, forward in `dtype`."""
    # Samples are numbered microbatch by microbatch; only dropout cares.
    tokens, targets, weights = (batch[k].reshape(-1, batch[k].shape[-1]) for k in ("tokens", "targets", "weights"))
    model = stages.model(jax.tree.map(lambda p: p.astype(dtype), params))
    segments = batch["segments"].reshape(tokens.shape) if "segments" in batch else None
    logits_BSV = model(tokens, Context(-1, jnp.arange(len(tokens)), key, 1 / len(tokens), segments_BS=segments))
    losses_BS = (loss or cross_entropy)(logits_BSV, targets)
    weights = weights.astype(losses_BS.dtype)
    return (losses_BS * weights).sum() / weights.sum()


def gradient(
    stages: Stages, loss: TokenLoss | None, dtype: Any, compiler_options: dict[str, Any] | None = None
) -> Callable[[Params, Batch, jax.Array | None], tuple[jax.Array, Params]]:
    """The jitted function (params, batch, key) -> (mean loss, gradients of what is trained)."""

    def value(own: Params, params: Params, batch: Batch, key: jax.Array | None) -> jax.Array:
        return mean_loss(stages, joined(own, params), batch, key, loss, dtype)

    def value_and_gradients(params: Params, batch: Batch, key: jax.Array | None) -> tuple[jax.Array, Params]:
        return jax.value_and_grad(value)(stages.own(params), params, batch, key)

    return jax.jit(value_and_gradients, compiler_options=compiler_options)


def train(
    stages: Stages,
    params: Params,
    batches: Sequence[Batch],
    rule: optax.GradientTransformation,
    seed: int,
    loss: TokenLoss | None,
    dtype: Any,
    compiler_options: dict[str, Any] | None = None,
) -> tuple[list[float], list[Params], Params]:
    """A step for each batch with the whole Optax `rule` (clipping is part of it).

    Returns the losses, the gradients of each step, and the parameters after the last.
    """
    value_and_grad = gradient(stages, loss, dtype, compiler_options)
    update = jax.jit(functools.partial(_update, rule), compiler_options=compiler_options)
    state = jax.jit(rule.init)(stages.own(params))
    losses, trees = [], []
    for step, batch in enumerate(batches):
        value, gradients = value_and_grad(params, batch, step_key(seed, step))
        own, state = update(stages.own(params), state, gradients)
        params = joined(own, params)
        losses.append(float(value))
        trees.append(gradients)
    return losses, trees, params


def step_key(seed: int, step: int) -> jax.Array:
    """The random key of a step: a function of the run's seed and the step alone."""
    return jax.random.fold_in(jax.random.key(seed), step)


def _update(rule: optax.GradientTransformation, params: Params, state: Any, gradients: Params) -> tuple[Params, Any]:
    updates, state = rule.update(gradients, state, params)
    return optax.apply_updates(params, updates), state
