"""`generate`: what a model sees, what is drawn from its distribution, and that a seed repeats it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from meshkit.generate import generate

VOCAB, WINDOW = 11, 8
PROMPT = np.arange(3, 7)


class Successor(nnx.Module):
    """After token t comes t + 1 (mod VOCAB), for sure; it is called with a full window, a sample at a time."""

    def __call__(self, tokens_BS: jax.Array, context: Any) -> jax.Array:
        assert tokens_BS.shape == (1, WINDOW)
        assert context.key is None  # nothing is dropped
        return 1e3 * jax.nn.one_hot((tokens_BS + 1) % VOCAB, VOCAB)


class SumOfAll(nnx.Module):
    """The next token is the sum of those seen so far (mod VOCAB): every token of the window matters."""

    def __call__(self, tokens_BS: jax.Array, context: Any) -> jax.Array:
        return 1e3 * jax.nn.one_hot(jnp.cumsum(tokens_BS, -1) % VOCAB, VOCAB)


class Unsure(nnx.Module):
    """Tokens 0, 1, 2 with the weights of its parameter, whatever went before."""

    def __init__(self) -> None:
        self.logits = nnx.Param(jnp.log(jnp.array([0.6, 0.3, 0.1])))

    def __call__(self, tokens_BS: jax.Array, context: Any) -> jax.Array:
        return jnp.broadcast_to(self.logits.get_value(), (*tokens_BS.shape, 3))


def sums(prompt: list[int], tokens: int, window: int) -> list[int]:
    """What SumOfAll writes, in plain Python."""
    history = list(prompt)
    for _ in range(tokens):
        history.append(sum(history[-window:]) % VOCAB)
    return history[len(prompt) :]


@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_sure_is_written(seed: int) -> None:
    written = generate(Successor(), PROMPT, 20, WINDOW, seed)
    assert written.dtype == np.int32
    np.testing.assert_array_equal(written, (7 + np.arange(20)) % VOCAB)


@pytest.mark.parametrize("length", [1, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW])
def test_the_model_sees_the_latest_window_and_nothing_else(length: int) -> None:
    prompt = [(3 * k + 1) % VOCAB for k in range(length)]
    written = generate(SumOfAll(), np.array(prompt), 2 * WINDOW, WINDOW)
    assert written.tolist() == sums(prompt, 2 * WINDOW, WINDOW)


def test_a_seed_repeats_and_another_differs() -> None:
    texts = [generate(Unsure(), PROMPT % 3, 64, WINDOW, seed).tolist() for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_tokens_come_as_often_as_the_model_says(temperature: float) -> None:
    draws = 1000
    written = generate(Unsure(), np.array([0]), draws, WINDOW, temperature=temperature)
    share = np.bincount(written, minlength=3) / draws
    expected = np.array([0.6, 0.3, 0.1]) ** (1 / temperature)
    expected /= expected.sum()
    assert np.all(np.abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / draws))
