"""The planner's times of pipelines against the executor's own tables."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.pipeline import grid, timeline
from meshkit.pipeline.builders import build
from meshkit.pipeline.placement import place
from meshkit.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule
from meshkit.planner import flow

NAMES = ["gpipe", "1f1b", "zero-bubble", "interleaved"]
times = st.floats(0.01, 100)
costs = st.fixed_dictionaries(dict.fromkeys((FORWARD, BACKWARD, INPUT, WEIGHT), times))


@st.composite
def tables(draw: st.DrawFn) -> Schedule:
    """A builder's table: any P, m and hop, as its name allows."""
    name, stages = draw(st.sampled_from(NAMES)), draw(st.integers(1, 6))
    chunks = draw(st.sampled_from([1, 2, 3])) if name == "interleaved" else 1
    microbatches = stages * draw(st.integers(1, 6)) if name == "interleaved" else draw(st.integers(1, 30))
    return build(name, stages, microbatches, chunks, 1 if name == "interleaved" else draw(st.integers(1, 2)))


def which(table: Schedule) -> flow.Table:
    return flow.Table(table.name, table.stages, table.microbatches, table.chunks, table.hop)


@given(table=tables(), costs=costs, spare=st.integers(0, 40), data=st.data())
@settings(deadline=None)
def test_time_is_the_tables(table: Schedule, costs: dict[str, float], spare: int, data: st.DataObject) -> None:
    """Layers even, balanced or by hand: the closed form, or the prolonged table, is what the whole table takes."""
    groups = table.stages * table.chunks
    by_hand = data.draw(st.none() | st.lists(st.integers(1, 9), min_size=groups, max_size=groups))
    placement = place(sum(by_hand or [groups, spare]), table.stages, table.chunks, by_hand)
    whole = {kind: cost * placement.layers / table.stages for kind, cost in costs.items()}
    line = timeline.lock_step(table, whole, shares=placement.shares)
    assert flow.lock_step(which(table), costs, placement.counts) == pytest.approx(line.total, rel=1e-9)
    hop = data.draw(times)
    ticks = np.diff([*line.ticks, line.total])
    shown = np.maximum(0, hop - ticks) if table.hop > 1 else np.full(table.ticks, hop)
    assert flow.exposed(which(table), costs, placement.counts, hop) == pytest.approx(shown.sum(), rel=1e-9, abs=1e-9)


def test_a_grid_of_ones_own_is_gone_through_whole(tmp_path: Path) -> None:
    made = build("zero-bubble", 3, 7, hop=2)
    file = tmp_path / "mine.txt"
    file.write_text(grid.unparse(made))
    own, built = which(made)._replace(name=str(file)), which(made)
    assert not own.built
    assert own.schedule.cells == made.cells
    assert (own.ticks, own.splits, own.backward_at_once) == (built.ticks, built.splits, built.backward_at_once)
    assert own.slots == built.slots
    each = {FORWARD: 1.0, INPUT: 1.5, WEIGHT: 1.0}
    for counts in ((2, 2, 2), (1, 2, 3)):
        assert flow.lock_step(own, each, counts) == pytest.approx(flow.lock_step(built, each, counts))
        assert flow.exposed(own, each, counts, 3.0) == pytest.approx(flow.exposed(built, each, counts, 3.0))


@given(stages=st.integers(1, 8), microbatches=st.integers(1, 24), costs=costs)
def test_asynchronous_time_of_equal_stages_is_the_timelines(
    stages: int, microbatches: int, costs: dict[str, float]
) -> None:
    line = timeline.asynchronous(flow.early_backward(stages, microbatches), costs)
    each = costs[FORWARD] + costs[BACKWARD]
    assert flow.asynchronous([each] * stages, microbatches) == pytest.approx(line.total, rel=1e-9)


@given(
    shares=st.lists(st.floats(0.2, 1), min_size=2, max_size=6), microbatches=st.integers(1, 24), factor=st.floats(1, 3)
)
def test_asynchronous_time_with_the_busiest_stage_last_is_the_timelines(
    shares: list[float], microbatches: int, factor: float
) -> None:
    """As with a head on the last stage: exact once there are as many microbatches as stages, else an upper bound."""
    shares = [*shares, factor]
    line = timeline.asynchronous(
        flow.early_backward(len(shares), microbatches), {FORWARD: 1.0, BACKWARD: 2.0}, shares=shares
    )
    ours = flow.asynchronous([3 * share for share in shares], microbatches)
    assert ours >= line.total - 1e-9
    if microbatches >= len(shares):
        assert ours == pytest.approx(line.total, rel=1e-9)


@given(stages=st.integers(1, 8), microbatches=st.integers(1, 24))
def test_early_backward_holds_no_more_microbatches_than_there_are_stages_left(stages: int, microbatches: int) -> None:
    held = flow.early_backward(stages, microbatches).in_flight().max(axis=0)
    assert list(held) == [min(microbatches, stages - stage) for stage in range(stages)]
