"""Updates on a mesh equal plain Optax on one device, each rule written out here; float64, mesh (2, 2, 2)."""

import operator
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_equality import BOUND, error, make_batch, make_config, make_step, place, whole

from meshkit.equality import one_device
from meshkit.equality.verify import canonical_leaves
from meshkit.pipeline.stage import Params
from meshkit.train_step import TrainStep

RATE, DECAY, CLIP, STEPS = 1e-2, 0.1, 0.5, 3
LAYERS = 2


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def config_of(optimizer: str, **overrides: Any) -> Any:
    rule = dict(name=optimizer, learning_rate=RATE, schedule="constant", weight_decay=DECAY, clip_norm=CLIP)
    return make_config(**{"optimizer": rule, "model.layers": LAYERS, "data.batch": 6} | overrides)


def by_layer(params: Params) -> Params:
    """Stacks cut into layers: what an optimizer would see of a model written without stacks."""
    layers = [jax.tree.map(operator.itemgetter(i), params["blocks"]) for i in range(LAYERS)]
    return {name: leaf for name, leaf in params.items() if name != "blocks"} | {"blocks": layers}


def stacked(params: Params) -> Params:
    return params | {"blocks": jax.tree.map(lambda *layers: jnp.stack(layers), *params["blocks"])}


def matrices(params: Params) -> Params:
    return jax.tree.map(lambda leaf: leaf.ndim == 2, params)


def muon_matrices(params: Params) -> Params:
    """Matrices of the layers; tables go to Adam."""
    numbers = optax.contrib.MuonDimensionNumbers()
    none = jax.tree.map(lambda leaf: None, params)
    return none | {"blocks": jax.tree.map(lambda leaf: numbers if leaf.ndim == 2 else None, params["blocks"])}


def decay_and_rate() -> list[optax.GradientTransformation]:
    return [optax.add_decayed_weights(DECAY, matrices), optax.scale_by_learning_rate(RATE)]


RULES = {
    "adamw": lambda: optax.adamw(RATE, 0.9, 0.95, 1e-8, weight_decay=DECAY, mask=matrices),
    "lion": lambda: optax.lion(RATE, 0.9, 0.95, weight_decay=DECAY, mask=matrices),
    "sgd": lambda: optax.chain(optax.trace(0.9), *decay_and_rate()),
    "muon": lambda: optax.chain(
        optax.contrib.muon(-1.0, beta=0.9, adam_b1=0.9, adam_b2=0.95, muon_weight_dimension_numbers=muon_matrices),
        *decay_and_rate(),
    ),
}


def run(step: TrainStep, params: Params, batches: list[Any]) -> tuple[Any, list[Any]]:
    """The state after a step for each batch, and each step's metrics."""
    init = jax.jit(step.state, out_shardings=step.state_shardings)
    state = init(place(step, params))
    placed = [jax.device_put(batch, step.batch_sharding) for batch in batches]
    update = step.step.lower(state, placed[0]).compile()
    metrics = []
    for batch in placed:
        state, shown = update(state, batch)
        metrics.append(shown)
    return state, metrics


@pytest.mark.parametrize("name", RULES)
def test_updates_equal_plain_optax(name: str) -> None:
    config = config_of(name)
    batches = [make_batch(config, seed) for seed in range(STEPS)]
    stages, params = whole(config)
    rule = optax.chain(optax.clip_by_global_norm(CLIP), RULES[name]())

    # The reference sees layers one by one, so a rule that mixes the layers of a stack is found out.
    class Unstacked:
        model = staticmethod(lambda tree: stages.model(stacked(tree)))
        own = staticmethod(lambda tree: tree)

    losses, trees, after = one_device.train(Unstacked, by_layer(params), batches, rule, config.seed, None, jnp.float64)
    assert all(optax.tree.norm(tree) > CLIP for tree in trees), "clipping is not exercised"
    step = make_step(config)
    state, metrics = run(step, params, batches)
    assert [float(m["loss"]) for m in metrics] == pytest.approx(losses, rel=BOUND)
    norms = [float(optax.tree.norm(tree)) for tree in trees]
    assert [float(m["grad_norm"]) for m in metrics] == pytest.approx(norms, rel=BOUND)
    got, want = canonical_leaves(state["params"], step.stages), canonical_leaves(stacked(after), stages)
    assert error(got, want)[0] <= BOUND, error(got, want)
    assert int(state["step"]) == STEPS


def test_a_step_that_is_not_finite_changes_nothing_but_counters() -> None:
    config = config_of("adamw")
    params = whole(config)[1]
    good = make_batch(config)
    bad = good | {"weights": np.where(np.arange(8) == 3, np.nan, good["weights"])}
    step = make_step(config)
    before, _ = run(step, params, [good])
    after, metrics = run(step, params, [good, bad, bad])
    for name in ("params", "opt"):
        jax.tree.map(np.testing.assert_array_equal, after[name], before[name])
    assert [int(m["skipped"]) for m in metrics] == [0, 1, 2]
    assert (int(after["step"]), int(after["skipped_total"])) == (3, 2)
    _, metrics = run(step, params, [bad, good])
    assert [(int(m["skipped"]), int(m["skipped_total"])) for m in metrics] == [(1, 1), (0, 1)]


def test_norms_and_biases_do_not_decay() -> None:
    """Without any target the gradients are zero, and decay is all that acts: matrices shrink by 1 − rate·decay."""
    config = config_of("adamw", **{"model.preset": "tiny-gpt2"})
    nothing = make_batch(config)
    nothing["weights"] = np.zeros_like(nothing["weights"])
    _, params = whole(config)
    params = jax.tree.map(lambda leaf: leaf + 0.5, params)
    step = make_step(config)
    state, _ = run(step, params, [nothing])
    before = canonical_leaves(params, whole(config)[0])
    after = canonical_leaves(state["params"], step.stages)
    spared = {name for name in before if np.array_equal(after[name], before[name])}
    assert spared == {name for name in before if name.endswith(("bias", "scale"))}
    for name in before.keys() - spared:
        np.testing.assert_allclose(after[name], before[name] * (1 - RATE * DECAY), rtol=BOUND)


def test_adafactor_equals_one_device() -> None:
    """Large enough that statistics are factored; the padded vocabulary does not count in them."""
    sizes = {"model.width": 128, "model.mlp_width": 128, "model.vocab": 131, "pipeline.microbatches": 1}
    config = config_of("adafactor", **sizes, **{"data.batch": 2})
    batches = [make_batch(config, seed) for seed in range(STEPS)]
    stages, params = whole(config)
    rule = optax.chain(
        optax.clip_by_global_norm(CLIP),
        optax.scale_by_factored_rms(),
        optax.clip_by_block_rms(1.0),
        optax.add_decayed_weights(DECAY, matrices(params) | {"blocks": stack_matrices(params["blocks"])}),
        optax.scale_by_learning_rate(RATE),
    )
    _, _, after = one_device.train(stages, params, batches, rule, config.seed, None, jnp.float64)
    step = make_step(config)
    state, _ = run(step, params, batches)
    got, want = canonical_leaves(state["params"], step.stages), canonical_leaves(after, stages)
    assert error(got, want)[0] <= BOUND, error(got, want)


def stack_matrices(blocks: Params) -> Params:
    return jax.tree.map(lambda stack: stack.ndim == 3, blocks)
