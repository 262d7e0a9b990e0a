"""Learning rates at their corners, what is decayed, and that no update sees a padded row."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from meshkit.config import ModelConfig, OptimizerConfig
from meshkit.errors import MeshkitError
from meshkit.models.build import builder
from meshkit.models.presets import sizes
from meshkit.optimizer import build, learning_rate, state_specs
from meshkit.pipeline.stage import Params, Stages, functional

RULES = ["adamw", "lion", "adafactor", "muon", "sgd"]
SCHEDULES = ["cosine", "linear", "constant", "wsd"]
STEPS, MOST_STEPS = 10, 100


def rates(steps: int, **keys: Any) -> np.ndarray:
    """The learning rate of every step, and the one after the last."""
    rate = learning_rate(OptimizerConfig(**keys), steps)
    return np.asarray(jax.vmap(rate)(jnp.arange(MOST_STEPS + 1)))[: steps + 1]


# --- the learning rate ----------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(SCHEDULES), st.integers(0, 40), st.integers(1, 40), st.floats(0, 1))
def test_a_rate_rises_to_its_peak_and_ends_at_its_share(
    schedule: str, warmup: int, rest: int, final_scale: float
) -> None:
    steps = warmup + rest
    keys: dict[str, Any] = {"decay_steps": rest} if schedule == "wsd" else {}
    rate = rates(steps, schedule=schedule, warmup_steps=warmup, learning_rate=2.0, final_scale=final_scale, **keys)
    assert (rate[:steps] > 0).all(), "the first step learns already, and so does the last"
    assert (np.diff(rate[: warmup + 1]) > 0).all()
    assert rate[warmup] == pytest.approx(2.0)
    assert (np.diff(rate[warmup:]) <= 1e-6).all()
    assert rate[steps] == pytest.approx(2.0 if schedule == "constant" else 2.0 * final_scale, abs=1e-6)


def test_the_warm_up_is_a_straight_line() -> None:
    rate = rates(10, schedule="constant", warmup_steps=4, learning_rate=1.0)
    assert rate == pytest.approx([0.2, 0.4, 0.6, 0.8, *[1.0] * 7])


def test_cosine_and_linear_are_half_way_at_half_time() -> None:
    for schedule in ("cosine", "linear"):
        rate = rates(100, schedule=schedule, learning_rate=1.0, final_scale=0.2)
        assert rate[50] == pytest.approx(0.6, rel=1e-5)


def test_wsd_is_stable_then_decays() -> None:
    rate = rates(20, schedule="wsd", warmup_steps=5, learning_rate=1.0, final_scale=0.0)  # decay: a fifth, 4 steps
    assert rate[5:17] == pytest.approx([1.0] * 12)
    assert rate[16:21] == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"warmup_steps": 11}, "optimizer.warmup_steps = 11 do not fit into steps = 10"),
        (
            {"schedule": "wsd", "warmup_steps": 6, "decay_steps": 5},
            "optimizer.warmup_steps = 6 and optimizer.decay_steps = 5 do not fit into steps = 10",
        ),
    ],
)
def test_a_warm_up_that_does_not_fit_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(MeshkitError, match=said):
        learning_rate(OptimizerConfig(**keys), 10)


# --- the rules ------------------------------------------------------------------------------------


def stages(multiple: int = 1, preset: str = "tiny") -> Stages:
    """A tiny model: tables, norms and matrices (with tiny-gpt2: positions, biases); vocabulary padded to `multiple`."""
    small = dict(layers=2, width=16, heads=2, kv_heads=2, mlp_width=32, vocab=13, context=8)
    return functional(builder(sizes(ModelConfig(preset=preset, **small)), multiple))


def rule(name: str, of: Stages, **keys: Any) -> optax.GradientTransformation:
    values = {"name": name, "schedule": "constant", "learning_rate": 0.1, **keys}
    config = OptimizerConfig.model_validate(values)
    return build(config, STEPS, of)


def values(shapes: Params, seed: int) -> Params:
    """Random leaves."""
    dice = np.random.default_rng(seed)
    return jax.tree.map(lambda shape: jnp.asarray(dice.standard_normal(shape.shape), jnp.float32), shapes)


def padded_like(params: Params, of: Stages) -> Params:
    """`params` with zero rows up to the padded shapes of `of`."""

    def pad(value: jax.Array, shape: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.pad(value, [(0, big - small) for small, big in zip(value.shape, shape.shape, strict=True)])

    return jax.tree.map(pad, params, of.shapes)


def after(name: str, of: Stages, params: Params, gradients: list[Params], **keys: Any) -> Params:
    """Parameters after the updates."""
    update = rule(name, of, **keys)
    state = update.init(params)
    step = jax.jit(update.update)
    for gradient in gradients:
        changes, state = step(gradient, state, params)
        params = optax.apply_updates(params, changes)
    return params


def names(tree: Params) -> dict[str, Any]:
    flat = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: isinstance(x, P))
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in flat}


@pytest.mark.parametrize("name", RULES)
def test_padded_rows_stay_zero_and_change_no_other(name: str) -> None:
    true, padded = stages(1), stages(8)
    params, gradients = values(true.shapes, 0), [values(true.shapes, seed) for seed in (1, 2)]
    expected = names(after(name, true, params, gradients))
    actual = names(after(name, padded, padded_like(params, padded), [padded_like(g, padded) for g in gradients]))
    assert actual["embed.table"].shape == (16, 16)
    for leaf, value in expected.items():
        np.testing.assert_allclose(actual[leaf][: len(value)], value, rtol=1e-6, atol=1e-7, err_msg=leaf)
        assert not actual[leaf][len(value) :].any()


@pytest.mark.parametrize("name", RULES)
def test_matrices_are_decayed_and_vectors_are_not(name: str) -> None:
    """Without a gradient, decay is the only change, and no momentum gathers it."""
    of = stages(preset="tiny-gpt2")
    params = values(of.shapes, 0)
    changed = names(after(name, of, params, [jax.tree.map(jnp.zeros_like, params)] * 3, weight_decay=0.5))
    for leaf, value in names(params).items():
        matrix = leaf.endswith((".kernel", ".table", "positions"))
        np.testing.assert_allclose(changed[leaf], value * (0.95**3 if matrix else 1), rtol=1e-5, err_msg=leaf)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_goes_against_the_gradient(name: str) -> None:
    of = stages()
    params, gradient = values(of.shapes, 0), values(of.shapes, 1)
    moved = jax.tree.map(jnp.subtract, after(name, of, params, [gradient], weight_decay=0.0), params)
    for leaf, change in names(moved).items():
        assert (np.asarray(change) * np.asarray(names(gradient)[leaf])).sum() < 0, leaf


def test_muon_orthogonalises_each_layers_matrices_and_leaves_the_rest_to_adam() -> None:
    of = stages()
    params, gradient = values(of.shapes, 0), values(of.shapes, 1)
    muon = names(jax.tree.map(jnp.subtract, after("muon", of, params, [gradient], weight_decay=0.0), params))
    nadam = optax.nadamw(0.1, 0.9, 0.95, weight_decay=0.0)
    adam = names(nadam.update(gradient, nadam.init(params), params)[0])
    for leaf, change in muon.items():
        if leaf.startswith("blocks.") and leaf.endswith(".kernel"):
            for layer in range(len(change)):  # singular values come near one another
                after_muon, before = (np.linalg.svd(x[leaf][layer], compute_uv=False) for x in (muon, names(gradient)))
                assert after_muon.min() / after_muon.max() > 2 * before.min() / before.max(), leaf
        else:
            np.testing.assert_allclose(change, adam[leaf], rtol=1e-3, atol=1e-6, err_msg=leaf)


def test_a_layer_is_orthogonalised_by_itself() -> None:
    of = stages()
    params, gradient = values(of.shapes, 0), values(of.shapes, 1)
    other = jax.tree.map(lambda g: g, gradient)
    other["blocks"] = jax.tree.map(lambda g: g.at[1].multiply(-3.0), gradient["blocks"])
    one, two = (names(after("muon", of, params, [g], weight_decay=0.0)) for g in (gradient, other))
    for leaf, value in one.items():
        if leaf.startswith("blocks."):
            np.testing.assert_allclose(value[0], two[leaf][0], atol=1e-6, err_msg=leaf)


# --- where the state lies -------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_a_moment_lies_where_its_parameter_does(name: str) -> None:
    of = stages(8)
    state = jax.eval_shape(rule(name, of).init, of.shapes)
    specs = state_specs(state, of.shapes, of.specs, P())
    known = {leaf: (shape.shape, names(of.specs)[leaf]) for leaf, shape in names(of.shapes).items()}
    flat = jax.tree_util.tree_leaves_with_path(state)
    chosen = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, P))
    assert len(flat) == len(chosen)
    mirrored = set()
    for (path, leaf), spec in zip(flat, chosen, strict=True):
        written = jax.tree_util.keystr(path, simple=True, separator=".")
        owner = next((known_name for known_name in known if written.endswith("." + known_name)), None)
        if owner is not None and known[owner][0] == leaf.shape:
            assert spec == known[owner][1], written
            mirrored.add(owner)
        else:
            assert spec == P(), written
    if name in ("adamw", "lion", "muon", "sgd"):
        assert mirrored == known.keys()
