"""Timelines: laws over all schedules, closed forms of the builders, memory against the executor's slots."""

import json
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit.config import ModelConfig
from meshkit.models import layers
from meshkit.models.build import builder
from meshkit.models.presets import sizes
from meshkit.pipeline import recompute as rc
from meshkit.pipeline.builders import build, one_f_one_b
from meshkit.pipeline.context import Context
from meshkit.pipeline.costs import COSTS, action_costs, held_elements, kept_bytes, slot_bytes
from meshkit.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule, needs
from meshkit.pipeline.slots import allocate
from meshkit.pipeline.stage import functional
from meshkit.pipeline.timeline import CAUSES, Timeline, asynchronous, lock_step, memory, slots_in_use, trace

schedules = st.from_type(Schedule)
times = st.floats(0.01, 100)
costs = st.fixed_dictionaries(dict.fromkeys((FORWARD, BACKWARD, INPUT, WEIGHT), times))
waits = st.sampled_from([0.0, 0.5, 3.0])
WAYS = pytest.mark.parametrize("way", [lock_step, asynchronous])

EXACT = {"rel": 1e-9, "abs": 1e-9}


# --- laws of any timeline ----------------------------------------------------------------------


@WAYS
@given(schedule=schedules, costs=costs, hop=waits)
def test_a_stage_does_one_thing_at_a_time_once_its_inputs_are_there(
    way: Callable[..., Timeline], schedule: Schedule, costs: dict[str, float], hop: float
) -> None:
    line = way(schedule, costs, hop)
    assert [(span.stage, span.action) for span in line.spans] == [(stage, action) for _, stage, action in schedule]
    ended, free = {}, np.zeros(schedule.stages)
    for span in line.spans:
        kind, i, chunk = span.action
        group = chunk * schedule.stages + span.stage
        assert span.start >= free[span.stage] - 1e-9
        assert span.end - span.start == pytest.approx(costs[kind] / schedule.chunks, **EXACT)
        for needed, other in needs(schedule, kind, group):
            wait = hop if other % schedule.stages != span.stage else 0.0
            assert span.start >= ended[needed, i, other] + wait - 1e-9
        ended[kind, i, group] = free[span.stage] = span.end
    assert line.total >= free.max() - 1e-9


@WAYS
@given(schedule=schedules, costs=costs, hop=waits)
def test_time_is_work_or_bubble_with_a_cause(
    way: Callable[..., Timeline], schedule: Schedule, costs: dict[str, float], hop: float
) -> None:
    line = way(schedule, costs, hop)
    work = schedule.microbatches * sum(costs[kind] for kind in schedule.kinds)
    np.testing.assert_allclose(line.busy, work)
    assert set(line.idle) == set(CAUSES)
    np.testing.assert_allclose(line.busy + sum(line.idle.values()), line.total)
    assert min(times.min() for times in line.idle.values()) >= -1e-7
    assert line.bubble == pytest.approx(1 - work / line.total, **EXACT)


@given(schedules, costs)
def test_lock_step_is_the_schedules_own_cost(schedule: Schedule, costs: dict[str, float]) -> None:
    line = lock_step(schedule, costs)
    assert line.total == pytest.approx(schedule.cost(costs), **EXACT)
    assert line.bubble == pytest.approx(schedule.bubble(costs), **EXACT)
    assert len(line.ticks) == schedule.ticks


@given(schedules, costs, waits)
def test_lock_step_costs_time(schedule: Schedule, costs: dict[str, float], hop: float) -> None:
    if schedule.hop == 1:  # a hop of two ticks that nothing hides may be late when every tick is short
        assert asynchronous(schedule, costs, hop).total <= lock_step(schedule, costs, hop).total + 1e-9


@given(schedules, costs, st.lists(st.floats(0.1, 3), min_size=24, max_size=24))
def test_shares_make_a_stage_slower(schedule: Schedule, costs: dict[str, float], parts: list[float]) -> None:
    shares = parts[: schedule.stages * schedule.chunks]
    locked = lock_step(schedule, costs, shares=shares)
    assert schedule.cost(costs, shares) == pytest.approx(locked.total, **EXACT)
    assert schedule.bubble(costs, shares) == pytest.approx(locked.bubble, **EXACT)
    for line in (locked, asynchronous(schedule, costs, shares=shares)):
        work = schedule.microbatches * sum(costs[kind] for kind in schedule.kinds)
        expected = [work * sum(shares[stage :: schedule.stages]) for stage in range(schedule.stages)]
        np.testing.assert_allclose(line.busy, expected)


@given(schedules, times, times, st.lists(st.floats(0.1, 3), min_size=8, max_size=8))
def test_no_timeline_is_better_than_the_ideal(schedule: Schedule, F: float, B: float, parts: list[float]) -> None:
    if schedule.chunks == 1 and not schedule.splits:
        shares = parts[: schedule.stages]
        for way in (lock_step, asynchronous):
            line = way(schedule, {FORWARD: F, BACKWARD: B}, shares=shares)
            assert line.bubble >= schedule.ideal_bubble(shares) - 1e-9


# --- worked cases --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "chunks", "total"), [("gpipe", 1, 33), ("1f1b", 1, 33), ("interleaved", 2, 28.5), ("zero-bubble", 1, 30)]
)
def test_four_stages_eight_microbatches(name: str, chunks: int, total: float) -> None:
    line = lock_step(build(name, 4, 8, chunks), {FORWARD: 1, BACKWARD: 2, INPUT: 1, WEIGHT: 1})
    assert line.total == total
    assert line.busy.tolist() == [24] * 4


@given(st.integers(2, 8), st.integers(8, 16), times, times)
def test_1f1b_is_idle_while_it_fills_and_drains(P: int, m: int, F: float, B: float) -> None:
    m = max(m, 2 * P)
    idle, s = lock_step(one_f_one_b(P, m), {FORWARD: F, BACKWARD: B}).idle, np.arange(P)
    np.testing.assert_allclose(idle["fill"], s * F + (P - 1 - s) * B, atol=1e-7)
    np.testing.assert_allclose(idle["drain"], (P - 1 - s) * F + s * B, atol=1e-7)
    np.testing.assert_allclose(idle["imbalance"], 0, atol=1e-7)


def test_a_hop_is_paid_in_lock_step_or_hidden_by_overlap() -> None:
    costs, hop = {FORWARD: 1.0, BACKWARD: 2.0}, 0.5
    plain, hidden = one_f_one_b(4, 8), one_f_one_b(4, 8, hop=2)
    assert lock_step(plain, costs, hop).total == lock_step(plain, costs).total + hop * plain.ticks
    assert lock_step(hidden, costs, hop).total == lock_step(hidden, costs).total
    assert lock_step(one_f_one_b(1, 8), costs, hop).total == 24
    assert lock_step(one_f_one_b(4, 64), costs, hop).total > lock_step(one_f_one_b(4, 64, hop=2), costs, hop).total


# --- memory --------------------------------------------------------------------------------------


@given(schedules)
def test_slots_in_use_are_those_that_are_allocated(schedule: Schedule) -> None:
    used, table = slots_in_use(schedule), allocate(schedule)
    assert {file: int(count.max()) for file, count in used.items()} == {
        file: getattr(table, file) for file in ("inputs", "kept", "gradients", "held")
    }
    assert (used["kept"] == schedule.in_flight()).all()


@given(schedules)
def test_memory_weighs_what_is_in_use_and_what_backwards_make_again(schedule: Schedule) -> None:
    used = slots_in_use(schedule)
    each = {"inputs": 1.0, "kept": 10.0, "gradients": 100.0, "held": 1000.0, "again": 0.0}
    stored = sum(used[file] * each[file] for file in used)
    assert (memory(schedule, each) == stored).all()
    again = memory(schedule, each | {"again": 0.5}) - stored
    backwards = sorted((tick, stage) for tick, stage, action in schedule if action.kind == schedule.backward)
    assert [tuple(map(int, at)) for at in np.argwhere(again == 0.5)] == backwards
    assert (again > 0).sum() == len(backwards)


SMALL = dict(kv_heads=2, mlp_width=320)
MODELS = [("tiny", SMALL | {"family": family}) for family in ("llama", "mistral", "qwen2", "qwen3")]
MODELS += [("tiny", SMALL | {"dropout": 0.1}), ("tiny-gpt2", {}), ("tiny-gpt2", {"dropout": 0.1})]


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize(("preset", "more"), MODELS)
def test_bytes_kept_and_held_are_the_executors_buffers(
    preset: str, more: dict, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "CUDA", False)  # the formula is for XLA's attention
    chosen, (batch, sequence) = sizes(ModelConfig(preset=preset, **more)), (3, 32)
    chunk, blocks, block = a_chunk(preset, more, precision, batch)
    x_BSH = jax.ShapeDtypeStruct((batch, sequence, chosen.width), precision)
    for name, policy in rc.POLICIES.items():
        kept = jax.eval_shape(lambda b, p=policy: rc.empty(p, block, chunk, b, x_BSH, 2), blocks)
        expected = 2 * chunk.rows * batch * sequence * kept_bytes(chosen, name, precision)
        # What differentiation keeps of GELU differs between versions of JAX by one of the MLP's hidden size.
        spared = 2 * chunk.rows * batch * sequence * chosen.mlp_width * jnp.dtype(precision).itemsize
        assert expected - size(kept) in ((0, spared) if name == "none" else (0,)), name
        held = jax.eval_shape(lambda b, p=policy: rc.empty_held(p, block, chunk, b, x_BSH, 1), blocks)
        least = chunk.rows * batch * sequence * held_elements(chosen) * jnp.dtype(precision).itemsize
        # Vectors (scales, biases) come on top; where a product is parted, both its factors instead of it.
        assert least <= size(held) <= 1.5 * least, name


def a_chunk(preset: str, more: dict, precision: str, batch: int) -> tuple[rc.Chunk, dict, rc.Block]:
    """All layers of a model as one chunk; their stacks' shapes; the block."""
    stages = functional(builder(sizes(ModelConfig(preset=preset, **more)), 1))
    blocks = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, precision), stages.shapes["blocks"])
    chunk = rc.Chunk(
        rows=stages.placement.layers,
        sure=stages.placement.layers,
        count=stages.placement.layers,
        fetch=lambda stacks, k: (jax.tree.map(lambda a: a[k], stacks), {}),
        deposit=lambda stacks, k, gradient: stacks,
        context=lambda k: Context(k, jnp.arange(batch), jax.random.key(0)),
        unroll=1,
    )
    return chunk, blocks, stages.block


def size(tree: object) -> int:
    return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(tree))


def test_full_recompute_keeps_an_input_a_stage_or_where_backward_is_at_once_a_layer() -> None:
    chosen = sizes(ModelConfig(preset="llama3-8b"))
    one = 4096 * 4096 * 2
    assert slot_bytes(one_f_one_b(2, 4), chosen, 16, "full", 1, 4096)["kept"] == one
    assert slot_bytes(one_f_one_b(2, 4), chosen, 16, "full", 1, 4096)["again"] == 16 * one
    assert slot_bytes(one_f_one_b(1, 4), chosen, 32, "full", 1, 4096)["kept"] == 32 * one
    assert slot_bytes(one_f_one_b(1, 4), chosen, 32, "full", 1, 4096)["again"] == 0
    assert action_costs(one_f_one_b(2, 4), "full") == COSTS["full"]
    assert action_costs(one_f_one_b(1, 4), "full")[BACKWARD] == COSTS["full"][BACKWARD] - 1


def test_policies_keep_more_in_order() -> None:
    for preset in ("llama3-8b", "gpt3-6.7b"):
        full, selective, none = (kept_bytes(sizes(ModelConfig(preset=preset)), name) for name in COSTS)
        assert full < selective < none


# --- traces --------------------------------------------------------------------------------------


@WAYS
@given(schedule=schedules)
def test_a_trace_has_every_action_on_its_stage_at_its_time(way: Callable[..., Timeline], schedule: Schedule) -> None:
    line = way(schedule, {"F": 1, "B": 2, "I": 1, "W": 1})
    events = json.loads(json.dumps(trace(line)))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [(e["pid"], e["name"], e["ts"], e["ts"] + e["dur"]) for e in spans] == [
        (s.stage, str(s.action), pytest.approx(s.start * 1000), pytest.approx(s.end * 1000)) for s in line.spans
    ]
    assert [tuple(e["args"].values()) for e in spans] == [(s.action.microbatch, s.action.chunk) for s in line.spans]
    rows = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in spans} == rows
    assert len({e["pid"] for e in events if e["name"] == "process_name"}) == schedule.stages
