"""What families have besides Llama: equal on every mesh, as the formulas say, and refused where it is wrong."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshkit.config import MeshShape, ModelConfig
from meshkit.errors import MeshkitError
from meshkit.models.experts import balance_loss, with_loss
from meshkit.models.families import FAMILIES, STYLES, Style
from meshkit.models.layers import Scores, attention
from meshkit.models.presets import check_cut, sizes
from tests.law import assert_equal, make_config

ALL_AT_ONCE = dict(window=3, global_every=2, attention_cap=1.0, logit_cap=0.5, qkv_bias=True, query_scale=3.0)
EXPERTS = dict(experts=4, chosen=2, balance=0.5)

CASES: dict[str, tuple[tuple[int, int, int], str, dict[str, Any], dict[str, Any]]] = {
    "all that a dense family may have": ((2, 2, 2), "gemma3", ALL_AT_ONCE, {}),
    "experts": ((2, 2, 2), "mixtral", EXPERTS, {"zero": 3}),
    "experts, split backwards": (
        (1, 4, 2),
        "qwen3-moe",
        EXPERTS | {"weigh": "all"},
        {"pipeline.schedule": "zero-bubble", "recompute": "selective"},
    ),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_one_device(case: str) -> None:
    shape, family, options, more = CASES[case]
    model = {"model.family": family, "model.options": options, "model.layers": 4, "model.head_dim": 4}
    assert_equal(make_config(shape, **model, **more))


# --- attention ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("window", [None, 1, 4, 9, 100])
@pytest.mark.parametrize("scores", [Scores(), Scores(scale=0.3), Scores(cap=0.8), Scores(scale=0.5, cap=2.0)])
def test_windows_and_caps(scores: Scores, window: int | None, dtype: Any) -> None:
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((2, 9, heads, 8)).astype(dtype) for heads in (4, 2, 2))
    expected = np.zeros(q.shape)
    for b, s, n in np.ndindex(2, 9, 4):
        seen = slice(max(0, s + 1 - (window or 99)), s + 1)
        x = k[b, seen, n // 2] @ q[b, s, n] * (scores.scale or 8**-0.5)
        x = scores.cap * np.tanh(x / scores.cap) if scores.cap else x
        expected[b, s, n] = np.exp(x) / np.exp(x).sum() @ v[b, seen, n // 2]
    with jax.enable_x64(True):
        given = [window] if window is None else [window, jnp.int32(window)]
        for how_far in given:
            actual = attention(*map(jnp.asarray, (q, k, v)), scores, how_far)
            assert actual.dtype == dtype
            np.testing.assert_allclose(actual, expected, atol=1e-14 if dtype == np.float64 else 2e-6)


# --- experts ------------------------------------------------------------------------------------


def test_the_balance_loss_is_one_when_all_are_equally_busy() -> None:
    even = jnp.full((3, 4, 6), 1 / 6)
    chosen = jnp.arange(24).reshape(1, 4, 6)[..., :3] % 6
    assert balance_loss(even, jnp.tile(chosen, (3, 1, 1))) == pytest.approx(3)
    one = jnp.zeros((3, 4, 6)).at[..., 0].set(1.0)
    assert balance_loss(one, jnp.zeros((3, 4, 1), jnp.int32)) == pytest.approx(3 * 6)


def test_a_loss_beside_counts_as_if_it_were_added() -> None:
    def beside(w: jax.Array) -> jax.Array:
        return (with_loss(w * 2, (w**2).sum()) ** 3).sum()

    def added(w: jax.Array) -> jax.Array:
        return ((w * 2) ** 3).sum() + (w**2).sum()

    w = jnp.arange(1.0, 4)
    np.testing.assert_allclose(jax.grad(beside)(w), jax.grad(added)(w))
    assert beside(w) == ((w * 2) ** 3).sum()


# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", STYLES)
def test_every_style_is_of_a_family(family: str) -> None:
    assert family in FAMILIES
    assert Style.of(family, {}) == sizes(ModelConfig(family=family)).style


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"windw": 3}, r"model\.options\.windw = 3: no such option of llama; known: .*, window, .*, chosen, .*, lora$"),
        ({"window": "wide"}, r"model\.options\.window = 'wide'"),
        ({"activation": "relu"}, r"model\.options\.activation = 'relu'"),
        ({"experts": 4, "chosen": 5}, r"model\.options\.chosen = 5 of model\.options\.experts = 4"),
    ],
)
def test_an_option_that_is_wrong_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(MeshkitError, match=said):
        sizes(ModelConfig(options=options))


def test_gpt2_has_no_options_but_adapters() -> None:
    with pytest.raises(MeshkitError, match=r"model\.options\.window = 3: no such option of gpt2; known: lora$"):
        sizes(ModelConfig(preset="tiny-gpt2", options={"window": 3}))


def test_every_option_is_in_the_readme() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    rows = [line for line in readme.splitlines() if line.startswith("| `")]
    missing = [f.name for f in dataclasses.fields(Style) if not any(f"`{f.name}`" in row for row in rows)]
    assert not missing


def test_experts_are_cut_whole() -> None:
    chosen = sizes(ModelConfig(family="mixtral", options={"experts": 6}))
    with pytest.raises(MeshkitError, match=r"model\.options\.experts = 6 does not split into mesh\.tensor = 4"):
        check_cut(chosen, MeshShape(data=1, tensor=4, pipe=1), 128)
