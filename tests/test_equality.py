"""The law: cutting never changes the mathematics. Every mesh × schedule × family × tied, float64."""

import itertools
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from law import (
    BOUND,
    PRESETS,
    assert_equal,
    cut_gradient,
    error,
    make_batch,
    make_config,
    make_step,
    place,
    whole,
    whole_gradient,
)

from meshkit.equality import one_device
from meshkit.equality.verify import canonical_leaves
from meshkit.pipeline import buffers

pytestmark = pytest.mark.usefixtures("float64")

MESHES = [(1, 1, 1), (8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2), (4, 2, 1), (2, 1, 4), (1, 2, 4)]


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
        drawn = canonical_leaves(step.init(0)["params"], step.stages)
        stages, params = whole(config)
        for name, leaf in canonical_leaves(params, stages).items():
            np.testing.assert_array_equal(drawn[name], leaf, err_msg=name)
