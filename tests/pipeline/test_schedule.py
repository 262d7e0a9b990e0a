"""Laws of a schedule, over all builders and over random legal tables; and what is no schedule."""

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from meshkit.errors import MeshkitError
from meshkit.pipeline.builders import BUILDERS, build, forward_only, gpipe, interleaved, one_f_one_b, zero_bubble
from meshkit.pipeline.schedule import BACKWARD, FORWARD, INPUT, KINDS, WEIGHT, Action, Schedule, from_ticks

stages, microbatches = st.integers(1, 8), st.integers(1, 16)
hops, times = st.integers(1, 2), st.floats(0.01, 100)
schedules = st.from_type(Schedule)
costs = st.fixed_dictionaries(dict.fromkeys((FORWARD, BACKWARD, INPUT, WEIGHT), times))

REFUSED = re.compile(
    r"schedule '.+': "
    r"(\w-?\d+(\.-?\d+)? (at tick \d+, stage \d+: .+|of stage \d+ is missing)|it has (the kinds|no action).+)"
)


# --- what every schedule obeys ----------------------------------------------------------------


@given(schedules)
def test_every_action_is_done_once(schedule: Schedule) -> None:
    actions = [(stage, action) for _, stage, action in schedule]
    assert schedule.kinds in KINDS
    expected = {
        (stage, Action(kind, i, chunk))
        for kind in schedule.kinds
        for stage in range(schedule.stages)
        for i in range(schedule.microbatches)
        for chunk in range(schedule.chunks)
    }
    assert len(actions) == len(expected)
    assert set(actions) == expected


@given(schedules)
def test_what_an_action_needs_is_done_earlier(schedule: Schedule) -> None:
    forward = schedule.ticks_of(FORWARD)
    assert (np.diff(forward, axis=1) >= schedule.hop).all()
    if schedule.trains:
        backward = schedule.ticks_of(schedule.backward)
        assert (np.diff(backward, axis=1) <= -schedule.hop).all()
        assert (backward >= forward).all()
    if schedule.splits:
        assert (schedule.ticks_of(WEIGHT) >= backward).all()


@given(schedules)
def test_a_cell_has_at_most_one_action_of_a_kind_in_the_order_of_work(schedule: Schedule) -> None:
    for column in schedule.cells:
        assert len(column) == schedule.stages
        for actions in column:
            kinds = [action.kind for action in actions]
            assert kinds == [kind for kind in schedule.kinds if kind in kinds]


@given(schedules, costs)
def test_the_bubble_is_a_share(schedule: Schedule, costs: dict[str, float]) -> None:
    assert -1e-12 <= schedule.bubble(costs) < 1


@given(schedules)
def test_in_flight_counts_forwards_less_backwards(schedule: Schedule) -> None:
    pending = np.zeros(schedule.stages, int)
    expected = []
    for column in schedule.cells if schedule.trains else ():
        pending = pending + [sum(a.kind == FORWARD for a in actions) for actions in column]
        expected.append(pending)  # at its height: the tick's backwards are still to come
        pending = pending - [sum(a.kind == schedule.backward for a in actions) for actions in column]
    assert schedule.in_flight().tolist() == (np.array(expected) if expected else schedule.in_flight() * 0).tolist()


@given(schedules)
def test_the_text_shows_the_whole_table(schedule: Schedule) -> None:
    rows = [row.split() for row in str(schedule).splitlines()]
    assert [len(row) for row in rows] == [schedule.ticks] * schedule.stages
    for tick, column in enumerate(schedule.cells):
        for stage, actions in enumerate(column):
            assert rows[stage][tick] == ("+".join(map(str, actions)) or ".")


@given(schedules)
def test_the_ticks_are_the_table(schedule: Schedule) -> None:
    ticks = {kind: schedule.ticks_of(kind) for kind in schedule.kinds}
    again = from_ticks(schedule.name, schedule.stages, ticks, schedule.hop)
    assert again.chunks == schedule.chunks
    assert {(t, s, a) for t, s, a in again} == {(t, s, a) for t, s, a in schedule}


# --- what the builders promise ----------------------------------------------------------------


@given(stages, microbatches, hops)
def test_1f1b_holds_few_microbatches_whatever_their_number(P: int, m: int, hop: int) -> None:
    most = one_f_one_b(P, m, hop=hop).in_flight().max(axis=0)
    assert most.tolist() == [min(m, 2 * hop * (P - 1 - s) + 1) for s in range(P)]


@given(stages, microbatches, hops)
def test_gpipe_holds_all(P: int, m: int, hop: int) -> None:
    assert gpipe(P, m, hop=hop).in_flight().max(axis=0).tolist() == [m] * P


@given(stages, microbatches, hops, times, times)
def test_time_in_lock_step_is_the_closed_form(P: int, m: int, hop: int, F: float, B: float) -> None:
    costs, fill = {FORWARD: F, BACKWARD: B}, hop * (P - 1)
    m = max(m, hop)  # a lone microbatch in flight leaves ticks empty, which take no time
    assert one_f_one_b(P, m, hop=hop).cost(costs) == pytest.approx(fill * F + m * (F + B) + fill * B)
    assert gpipe(P, m, hop=hop).cost(costs) == pytest.approx((m + fill) * (F + B))
    assert forward_only(P, m, hop=hop).cost(costs) == pytest.approx((m + fill) * F)


@given(stages, microbatches, hops, costs)
def test_a_split_backward_saves_the_weight_gradients_of_the_drain(
    P: int, m: int, hop: int, costs: dict[str, float]
) -> None:
    m = max(m, hop)
    whole = costs | {BACKWARD: costs[INPUT] + costs[WEIGHT]}
    saved = one_f_one_b(P, m, hop=hop).cost(whole) - zero_bubble(P, m, hop=hop).cost(whole)
    assert saved == pytest.approx(hop * (P - 1) * costs[WEIGHT], abs=1e-9)


@pytest.mark.parametrize("build", [gpipe, one_f_one_b, forward_only])
@given(P=stages, m=microbatches, F=times, B=times)
def test_the_bubble_of_equal_actions_is_the_ideal_one(
    build: Callable[[int, int], Schedule], P: int, m: int, F: float, B: float
) -> None:
    schedule = build(P, m)
    assert schedule.bubble({FORWARD: F, BACKWARD: B}) == pytest.approx((P - 1) / (m + P - 1), abs=1e-12)
    assert schedule.ideal_bubble() == pytest.approx((P - 1) / (m + P - 1), abs=1e-12)


def test_interleaving_shrinks_the_bubble() -> None:
    """Four stages, eight microbatches, F = 1, B = 2: 24 of work."""
    costs = {FORWARD: 1.0, BACKWARD: 2.0}
    assert [one_f_one_b(4, 8).cost(costs), *(interleaved(4, 8, v).cost(costs) for v in (1, 2))] == [33, 33, 28.5]


@pytest.mark.parametrize("m", [1, 3, 5, 6, 7, 9])
def test_interleaving_takes_multiples_of_the_stages_and_names_them(m: int) -> None:
    with pytest.raises(MeshkitError, match=rf"microbatches = {m} is not a multiple of mesh\.pipe = 4") as error:
        interleaved(4, m, 2)
    for fit in str(error.value).partition("set pipeline.microbatches to ")[2].split(" or "):
        assert interleaved(4, int(fit), 2).trains


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero-bubble"])
def test_chunks_are_for_the_interleaved_schedule(name: str) -> None:
    with pytest.raises(MeshkitError, match=r"pipeline\.virtual = 2 needs pipeline\.schedule = 'interleaved'"):
        build(name, 2, 2, chunks=2)


@given(schedules)
def test_a_backward_at_once_is_in_its_forwards_tick(schedule: Schedule) -> None:
    same = [a._replace(kind=schedule.backward) in schedule.cells[t][s] for t, s, a in schedule if a.kind == FORWARD]
    assert schedule.backward_at_once == (schedule.trains and all(same))


def test_the_grid_of_the_paper() -> None:
    assert str(one_f_one_b(2, 3)) == (
        "F0    F1    F2+B0 B1    B2\n"
        ".     F0+B0 F1+B1 F2+B2 ."
    )  # fmt: skip


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(MeshkitError, match=r"pipeline\.schedule = '1f1c': .*did you mean '1f1b'\?"):
        build("1f1c", 2, 2)


# --- what is no schedule ----------------------------------------------------------------------

Place = tuple[int, int, Action]


def changed(schedule: Schedule, remove: list[Place], add: list[Place]) -> None:
    """Raises what the Schedule of the changed table raises."""
    cells = [[list(actions) for actions in column] for column in schedule.cells]
    for tick, stage, action in remove:
        cells[tick][stage].remove(action)
    for tick, stage, action in add:
        cells[tick][stage].append(action)
    dataclasses.replace(schedule, cells=tuple(tuple(map(tuple, column)) for column in cells))


def place(data: st.DataObject, schedule: Schedule) -> Place:
    return data.draw(st.sampled_from(list(schedule)), "action")


@given(schedules, st.data())
def test_a_missing_action_is_refused(schedule: Schedule, data: st.DataObject) -> None:
    gone = place(data, schedule)
    # A lone backward less makes a legal evaluation.
    assume(gone[2].kind != BACKWARD or schedule.microbatches * schedule.stages * schedule.chunks > 1)
    with pytest.raises(ValueError, match=REFUSED):
        changed(schedule, [gone], [])


@given(schedules, st.data())
def test_an_action_done_twice_is_refused(schedule: Schedule, data: st.DataObject) -> None:
    _, stage, action = place(data, schedule)
    tick = data.draw(st.integers(0, schedule.ticks - 1), "tick")
    with pytest.raises(ValueError, match=REFUSED):
        changed(schedule, [], [(tick, stage, action)])


@given(schedules, st.data())
def test_two_actions_of_a_kind_in_a_cell_are_refused(schedule: Schedule, data: st.DataObject) -> None:
    tick, stage, action = place(data, schedule)
    others = [a for t, s, a in schedule if s == stage and t != tick and a.kind == action.kind]
    assume(others)
    moved = data.draw(st.sampled_from(others))
    came_from = next(t for t, s, a in schedule if (s, a) == (stage, moved))
    with pytest.raises(ValueError, match=REFUSED):
        changed(schedule, [(came_from, stage, moved)], [(tick, stage, moved)])


def latest_wrong_tick(schedule: Schedule, stage: int, action: Action) -> int:
    """The last tick that is too early for an action; -1 for what needs nothing."""
    group, last = action.chunk * schedule.stages + stage, schedule.stages * schedule.chunks - 1

    def tick(kind: str, group: int) -> int:
        return int(schedule.ticks_of(kind)[action.microbatch, group])

    if action.kind == FORWARD:
        return -1 if group == 0 else tick(FORWARD, group - 1) + schedule.hop - 1
    if action.kind == WEIGHT:
        return tick(INPUT, group) - 1
    return tick(FORWARD, group) - 1 if group == last else tick(action.kind, group + 1) + schedule.hop - 1


@given(schedules, st.data())
def test_an_action_before_what_it_needs_is_refused(schedule: Schedule, data: st.DataObject) -> None:
    tick, stage, action = place(data, schedule)
    latest = latest_wrong_tick(schedule, stage, action)
    assume(latest >= 0)
    too_early = data.draw(st.integers(0, latest), "too early")
    with pytest.raises(ValueError, match=REFUSED):
        changed(schedule, [(tick, stage, action)], [(too_early, stage, action)])


@pytest.mark.parametrize("build", BUILDERS.values())
@pytest.mark.parametrize("P", [1, 2, 3, 4])
def test_a_tick_too_early_is_too_early(build: Callable[[int, int], Schedule], P: int) -> None:
    schedule = build(P, 2 * P)
    for tick, stage, action in schedule:
        latest = latest_wrong_tick(schedule, stage, action)
        if latest >= 0:
            with pytest.raises(ValueError, match=REFUSED):
                changed(schedule, [(tick, stage, action)], [(latest, stage, action)])


@given(schedules, st.data())
def test_a_backward_before_its_forward_in_the_cell_is_refused(schedule: Schedule, data: st.DataObject) -> None:
    both = [
        (t, s, a)
        for t, s, a in schedule
        if a.kind == FORWARD and a._replace(kind=schedule.backward) in schedule.cells[t][s]
    ]
    assume(both)
    gone = data.draw(st.sampled_from(both))
    with pytest.raises(ValueError, match=r"[BI]\d+.*needs F\d+ of stage \d+, chunk \d+ first"):
        changed(schedule, [gone], [gone])  # now at the cell's end


@given(schedules, st.data(), st.sampled_from(["f", "Z"]))
def test_an_unknown_kind_is_refused(schedule: Schedule, data: st.DataObject, kind: str) -> None:
    tick, stage, action = place(data, schedule)
    with pytest.raises(ValueError, match=REFUSED):
        changed(schedule, [(tick, stage, action)], [(tick, stage, action._replace(kind=kind))])


@given(schedules, st.data(), st.sampled_from(["microbatch", "chunk"]), st.integers(-3, 20))
@example(one_f_one_b(2, 2), None, "microbatch", -1)
def test_a_number_out_of_range_is_refused(
    schedule: Schedule, data: st.DataObject | None, field: str, number: int
) -> None:
    assume(not 0 <= number < (schedule.microbatches if field == "microbatch" else schedule.chunks))
    tick, stage, action = place(data, schedule) if data else next(iter(schedule))
    with pytest.raises(ValueError, match=REFUSED):
        changed(schedule, [], [(tick, stage, action._replace(**{field: number}))])


@given(schedules, st.data(), st.sampled_from([-1, 1]))
def test_a_column_of_another_height_is_refused(schedule: Schedule, data: st.DataObject, more: int) -> None:
    tick = data.draw(st.integers(0, schedule.ticks - 1))
    column = schedule.cells[tick]
    other = (*column, column[-1]) if more > 0 else column[:-1]
    cells = (*schedule.cells[:tick], other, *schedule.cells[tick + 1 :])
    with pytest.raises(ValueError, match=f"tick {tick} has {len(other)} cells, not one for each of"):
        dataclasses.replace(schedule, cells=cells)
