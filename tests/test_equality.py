"""The law: cutting never changes the mathematics. Every mesh × schedule × family × tied, float64.

The other side is `one_device`: the model called whole, `jax.value_and_grad`, Optax.
"""

import functools
import itertools
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshkit import assemble, mesh, one_device
from meshkit.config import ModelConfig, RunConfig, load
from meshkit.one_device import Batch
from meshkit.pipeline import buffers
from meshkit.pipeline.stage import Params, Stages, functional, initial, padded
from meshkit.train_step import TrainStep
from meshkit.verify import QUICK, canonical_leaves

MESHES = [(1, 1, 1), (8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2), (4, 2, 1), (2, 1, 4), (1, 2, 4)]
PRESETS = {"llama": "tiny", "gpt2": "tiny-gpt2"}
BOUND = 1e-12
ROUNDING = 1e-3  # a leaf is measured by at least this share of the largest: a key bias has no gradient but rounding

Leaves = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


# --- cases --------------------------------------------------------------------------------------


def make_config(shape: tuple[int, int, int] = (2, 2, 2), family: str = "llama", **overrides: Any) -> RunConfig:
    """Eight heads and layers: every axis can be 8; 53 tokens, which no mesh divides evenly."""
    data, tensor, pipe = shape
    base = {
        "precision": "float64",
        "mesh": dict(data=data, tensor=tensor, pipe=pipe),
        "pipeline": dict(microbatches=3),
        "model": dict(
            preset=PRESETS[family],
            layers=8,
            width=16,
            heads=8,
            kv_heads=8,
            head_dim=2,
            mlp_width=24,
            vocab=53,
            context=12,
        ),
        "data": dict(sequence=8, batch=data * 3 * 2),
    }
    return load(base, overrides)


def make_step(config: RunConfig, loss: Any = None) -> TrainStep:
    shape = config.mesh
    return assemble.train_step(config, mesh.build(shape, jax.devices()[: shape.devices]), loss=loss)


@functools.lru_cache
def uncut(model: str) -> tuple[Stages, Params]:
    """The model of a config's [model] table (as JSON) on one device, and its initial parameters."""
    config = load({"model": ModelConfig.model_validate_json(model)})
    build = assemble.builder(assemble.model_sizes(config, None), 1)
    params = jax.jit(lambda seed: initial(build, seed), compiler_options=QUICK)(0)
    return functional(build), params


def whole(config: RunConfig) -> tuple[Stages, Params]:
    return uncut(config.model.model_dump_json(exclude_unset=True))


@functools.lru_cache
def uncut_gradient(model: str, loss: Any = None) -> Any:
    return one_device.gradient(uncut(model)[0], loss, jnp.float64, QUICK)


def whole_gradient(config: RunConfig, batch: Batch, loss: Any = None) -> tuple[float, Leaves]:
    stages, params = whole(config)
    function = uncut_gradient(config.model.model_dump_json(exclude_unset=True), loss)
    value, gradients = function(params, batch, one_device.step_key(config.seed, 0))
    return float(value), canonical_leaves(gradients, stages)


def make_batch(config: RunConfig, seed: int = 0) -> Batch:
    """Random tokens, and masks from nearly empty samples to full ones."""
    random = np.random.default_rng(seed)
    m, batch, S = config.pipeline.microbatches, config.data.batch, config.data.sequence
    tokens = random.integers(0, config.model.vocab, (m, batch // m, S + 1), np.int32)
    share = np.linspace(0.1, 1, batch).reshape(m, batch // m, 1)
    weights = (random.random((m, batch // m, S)) < share).astype(np.float32)
    return {"tokens": tokens[..., :-1], "targets": tokens[..., 1:], "weights": weights}


def place(step: TrainStep, params: Params) -> Params:
    """Parameters from one device in the step's layout."""
    return jax.device_put(padded(params, step.stages), step.state_shardings["params"])


def cut_gradient(config: RunConfig, batch: Batch, loss: Any = None) -> tuple[float, Leaves]:
    step = make_step(config, loss)
    params = place(step, whole(config)[1])
    # A new function each time: jit would otherwise take two of equal steps for one.
    gradients = jax.jit(lambda *arguments: step.gradients(*arguments), compiler_options=QUICK)
    value, _, tree = gradients(params, jax.device_put(batch, step.batch_sharding), jnp.int32(0))
    return float(value), canonical_leaves(tree, step.stages)


def error(got: Leaves, want: Leaves) -> tuple[float, str]:
    """The worst leaf's relative error, and its name."""
    assert got.keys() == want.keys()
    floor = ROUNDING * max(np.abs(leaf).max() for leaf in want.values())
    return max((np.abs(got[k] - want[k]).max() / max(np.abs(want[k]).max(), floor), k) for k in want)


def assert_equal(config: RunConfig, loss: Any = None) -> None:
    batch = make_batch(config)
    got, want = cut_gradient(config, batch, loss), whole_gradient(config, batch, loss)
    assert got[0] == pytest.approx(want[0], rel=BOUND, abs=0)
    assert error(got[1], want[1])[0] <= BOUND, error(got[1], want[1])


# --- gradients ----------------------------------------------------------------------------------


def varied(*case: Any) -> dict[str, Any]:
    """What else a case has, spread over the cases by their names: m around P, ZeRO, recompute, dropout."""
    pick = zlib.crc32(repr(case).encode())
    (data, _, pipe), _, family, _ = case
    m = [pipe + 1, max(1, pipe // 2), 2 * pipe - 1][pick % 3]
    return {
        "pipeline.microbatches": m,
        "data.batch": data * m,
        "zero": pick // 3 % 2,
        "recompute": ["full", "none"][pick // 6 % 2],
        "pipeline.unroll": 1 + pick // 12 % 2,
        "model.layers": 8 if pipe == 8 else 4,
        "model.dropout": 0.2 if family == "gpt2" and pick % 2 else 0.0,
    }


CASES = list(itertools.product(MESHES, ["gpipe", "1f1b"], ["llama", "gpt2"], [False, True]))


def test_cases_vary_in_everything() -> None:
    chosen = [(case[0], varied(*case)) for case in CASES]
    assert {c["zero"] for _, c in chosen} == {0, 1}
    assert {c["model.dropout"] for _, c in chosen} == {0.0, 0.2}
    for shape in MESHES[1:]:
        mine = [c for s, c in chosen if s == shape]
        assert {c["recompute"] for c in mine} == {"full", "none"}
        assert {c["zero"] for c in mine} == {0, 1}
        if shape[2] > 2:
            assert {c["pipeline.microbatches"] < shape[2] for c in mine} == {True, False}


@pytest.mark.parametrize(("shape", "schedule", "family", "tied"), CASES)
def test_gradients_equal_one_device(shape: tuple[int, int, int], schedule: str, family: str, tied: bool) -> None:
    more = varied(shape, schedule, family, tied)
    assert_equal(make_config(shape, family, **{"pipeline.schedule": schedule, "model.tied": tied} | more))


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2), (1, 1, 4)])
def test_a_missing_term_is_seen(shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The law can fail: here the look-up's gradient is lost."""
    monkeypatch.setattr("meshkit.pipeline.vocab.lookup_grad", lambda grad_vH, tokens_BS, dx_BsH: grad_vH)
    config = make_config(shape, **{"model.layers": 4})
    batch = make_batch(config)
    worst, leaf = error(cut_gradient(config, batch)[1], whole_gradient(config, batch)[1])
    assert leaf == "embed.table"
    assert worst > 0.1


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(
    ("shape", "recompute"), [((2, 2, 2), "full"), ((1, 1, 4), "none"), ((1, 1, 4), "full"), ((1, 1, 1), "full")]
)
def test_empty_slots_are_never_read(
    shape: tuple[int, int, int], schedule: str, recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(
        shape,
        **{"pipeline.schedule": schedule, "recompute": recompute, "model.layers": 4, "pipeline.microbatches": 2}
        | {"data.batch": 2 * shape[0]},
    )
    batch = make_batch(config)
    clean = cut_gradient(config, batch)
    monkeypatch.setattr(buffers, "EMPTY", np.nan)
    poisoned = cut_gradient(config, batch)
    assert poisoned[0] == clean[0]
    for name, leaf in clean[1].items():
        np.testing.assert_array_equal(poisoned[1][name], leaf, err_msg=name)


def smoothed(logits_BSV: jax.Array, targets_BS: jax.Array) -> jax.Array:
    """Cross-entropy with a tenth of the target spread over all tokens."""
    logp_BSV = jax.nn.log_softmax(logits_BSV)
    hit_BS = jnp.take_along_axis(logp_BSV, targets_BS[..., None], -1)[..., 0]
    return -(0.9 * hit_BS + 0.1 * logp_BSV.mean(-1))


@pytest.mark.parametrize(("shape", "tied"), [((2, 2, 2), True), ((1, 2, 4), False), ((4, 1, 1), False)])
def test_own_loss_equals_one_device(shape: tuple[int, int, int], tied: bool) -> None:
    config = make_config(shape, **{"model.tied": tied, "model.layers": 4})
    batch = make_batch(config)
    assert whole_gradient(config, batch, smoothed)[0] != pytest.approx(whole_gradient(config, batch)[0], rel=1e-6)
    assert_equal(config, smoothed)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2), (1, 2, 4), (4, 2, 1)])
def test_evaluation_is_the_sum_without_dropout(shape: tuple[int, int, int]) -> None:
    config = make_config(shape, "gpt2", **{"model.dropout": 0.3, "model.layers": 4})
    batch, step = make_batch(config), make_step(config)
    stages, params = whole(config)
    want = jax.jit(lambda p: one_device.mean_loss(stages, p, batch, None, None, jnp.float64))(params)
    placed = jax.device_put(batch, step.batch_sharding)
    got = step.evaluate(place(step, params), placed)
    assert float(got["tokens"]) == batch["weights"].sum()
    assert float(got["loss"]) == pytest.approx(float(want) * batch["weights"].sum(), rel=BOUND)


@pytest.mark.parametrize("shape", MESHES[1:])
def test_initial_parameters_do_not_depend_on_the_mesh(shape: tuple[int, int, int]) -> None:
    for family in PRESETS:
        config = make_config(shape, family)
        step = make_step(config)
        drawn = canonical_leaves(step.init.lower(0).compile(QUICK)(0)["params"], step.stages)
        stages, params = whole(config)
        for name, leaf in canonical_leaves(params, stages).items():
            np.testing.assert_array_equal(drawn[name], leaf, err_msg=name)
