"""A look at what a model learned: it goes on from a prompt, a token at a time.

Made for a glance at a small model on one device; serving is other software's work.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshkit.pipeline.stage import Context, Params


def generate(
    model: Any, prompt: np.ndarray, tokens: int, window: int, seed: int = 0, temperature: float = 0.8
) -> np.ndarray:
    """`tokens` ids that follow `prompt` [n], drawn from the model's distribution; int32 [tokens].

    model: an NNX model called whole. window: how many of the latest tokens it sees.
    """
    from flax import nnx

    graph, state = nnx.split(model)
    # The window is filled from the left; a causal model does not see the zeros behind the last token.
    history = np.zeros(window + tokens, np.int32)
    prompt = prompt[-window:]
    history[: len(prompt)] = prompt
    step = jax.jit(functools.partial(_next, graph, window=window, temperature=temperature))
    for end in range(len(prompt), len(prompt) + tokens):
        start = max(0, end - window)
        key = jax.random.fold_in(jax.random.key(seed), end)
        history[end] = step(state, history[start : start + window], end - start, key)
    return history[len(prompt) : len(prompt) + tokens]


def _next(
    graph: Any,
    state: Params,
    tokens_S: jax.Array,
    length: jax.Array,
    key: jax.Array,
    *,
    window: int,
    temperature: float,
) -> jax.Array:
    from flax import nnx

    model = nnx.merge(graph, state)
    logits_SV = model(tokens_S[None], Context(-1, jnp.zeros(1, jnp.int32), None))[0]
    return jax.random.categorical(key, logits_SV[length - 1] / temperature)
