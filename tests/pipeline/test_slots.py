"""The slot table, run in plain Python as the executor runs it: every action gets its own values."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit.pipeline.builders import BUILDERS, forward_only, gpipe, one_f_one_b, zero_bubble
from meshkit.pipeline.schedule import FORWARD, IDLE, WEIGHT, Schedule
from meshkit.pipeline.slots import Columns, SlotTable, allocate, phases

stages, microbatches, hops = st.integers(1, 8), st.integers(1, 16), st.integers(1, 2)
schedules = st.from_type(Schedule)

Value = tuple[str, int, int]
"""What a slot holds: ("x" input, "dy" gradient or "held" by I for W, microbatch, group of layers that takes it)."""


class Slots:
    """One file of slots on every stage; refuses to lose a value that is still to be read."""

    def __init__(self, stages: int, slots: int):
        self.held: list[dict[int, Value]] = [{} for _ in range(stages)]
        self.slots = slots
        self.most = 0

    def write(self, stage: int, slot: int, value: Value) -> None:
        assert 0 <= slot < self.slots
        assert slot not in self.held[stage], f"{value} overwrites {self.held[stage][slot]} on stage {stage}"
        self.held[stage][slot] = value
        self.most = max(self.most, len(self.held[stage]))

    def read_last(self, stage: int, slot: int) -> Value:
        """Every value is read once, so its slot is free afterwards."""
        assert slot in self.held[stage], f"slot {slot} of stage {stage} is read before it is written"
        return self.held[stage].pop(slot)


class Machine:
    """What `executor._Run.tick` does, with names of values in place of arrays."""

    def __init__(self, schedule: Schedule, table: SlotTable):
        self.schedule, self.P, self.groups = schedule, schedule.stages, schedule.stages * schedule.chunks
        self.columns = table.columns
        self.inputs = Slots(self.P, table.inputs)
        self.kept = Slots(self.P, table.kept)
        self.gradients = Slots(self.P, table.gradients)
        self.held = Slots(self.P, table.held)
        self.sent: list[tuple[list[Value | None], list[Value | None]]] = []  # tick -> what stages sent on and back
        self.done: Counter[tuple[str, int, int]] = Counter()
        for tick in range(schedule.ticks):
            self.tick(tick)
        for file in (self.inputs, self.kept, self.gradients, self.held):
            assert file.held == [{}] * self.P, "a value was never read"

    def tick(self, t: int) -> None:
        c, last_stage = self.columns, self.P - 1
        y: list[Value | None] = [None] * self.P
        dx: list[Value | None] = [None] * self.P
        if c.embed[t] != IDLE:
            self.done["embed", int(c.embed[t]), 0] += 1
            self.inputs.write(0, c.embed_slot[t], ("x", int(c.embed[t]), 0))
        for s in range(self.P):
            if c.forward[t, s] != IDLE:
                i, group = int(c.forward[t, s]), int(c.forward_chunk[t, s]) * self.P + s
                assert self.inputs.read_last(s, c.input_slot[t, s]) == ("x", i, group)
                if self.schedule.trains:
                    self.kept.write(s, c.keep_slot[t, s], ("x", i, group))
                self.done[FORWARD, i, group] += 1
                y[s] = ("x", i, group + 1)
        if c.head[t] != IDLE:
            assert y[last_stage] == ("x", int(c.head[t]), self.groups), "the head takes the last stage's fresh output"
            self.done["head", int(c.head[t]), 0] += 1
            if self.schedule.trains:
                self.gradients.write(last_stage, c.head_slot[t], ("dy", int(c.head[t]), self.groups - 1))
        for s in range(self.P):
            if c.backward[t, s] != IDLE:
                i, group = int(c.backward[t, s]), int(c.backward_chunk[t, s]) * self.P + s
                assert self.kept.read_last(s, c.kept_slot[t, s]) == ("x", i, group)
                assert self.gradients.read_last(s, c.gradient_slot[t, s]) == ("dy", i, group)
                if self.schedule.splits:
                    self.held.write(s, c.hold_slot[t, s], ("held", i, group))
                self.done["backward", i, group] += 1
                dx[s] = ("dy", i, group - 1)
            if c.weight[t, s] != IDLE:
                i, group = int(c.weight[t, s]), int(c.weight_chunk[t, s]) * self.P + s
                assert self.held.read_last(s, c.held_slot[t, s]) == ("held", i, group)
                self.done[WEIGHT, i, group] += 1
        if c.embed_gradient[t] != IDLE:
            assert dx[0] == ("dy", int(c.embed_gradient[t]), -1), "the table's gradient takes stage 0's fresh dx"
            self.done["embed_gradient", int(c.embed_gradient[t]), 0] += 1
        self.sent.append((y, dx))
        for s in range(self.P):  # the hop, from the ring's neighbours: of this tick, or of the one before
            for arrival, sent, neighbour, slots in (
                (c.arrival, 0, s - 1, self.inputs),
                (c.gradient_arrival, 1, s + 1, self.gradients),
            ):
                if arrival[t, s] != IDLE:
                    came = self.sent[t - self.schedule.hop + 1][sent][neighbour % self.P]
                    assert came is not None
                    slots.write(s, arrival[t, s], came)


@given(schedules)
def test_every_action_reads_its_own_values_and_nothing_is_lost(schedule: Schedule) -> None:
    done = Machine(schedule, allocate(schedule)).done
    m, groups = range(schedule.microbatches), range(schedule.stages * schedule.chunks)
    expected = Counter({(FORWARD, i, group) for i in m for group in groups})
    expected.update((name, i, 0) for i in m for name in ("embed", "head"))
    if schedule.trains:
        expected.update(("backward", i, group) for i in m for group in groups)
        expected.update(("embed_gradient", i, 0) for i in m)
    if schedule.splits:
        expected.update((WEIGHT, i, group) for i in m for group in groups)
    assert done == expected


@given(schedules)
def test_no_slot_is_wasted(schedule: Schedule) -> None:
    table = allocate(schedule)
    run = Machine(schedule, table)
    files = run.inputs, run.kept, run.gradients, run.held
    assert [table.inputs, table.kept, table.gradients, table.held] == [file.most for file in files]
    assert table.kept == schedule.in_flight().max()


def slots(table: SlotTable) -> tuple[int, int, int, int]:
    return table.inputs, table.kept, table.gradients, table.held


@given(stages, microbatches, hops)
def test_the_builders_need_few_slots(P: int, m: int, hop: int) -> None:
    few = min(m, 2 * hop * (P - 1) + 1)
    assert slots(allocate(one_f_one_b(P, m, hop=hop))) == (1, few, 1, 0)
    assert slots(allocate(zero_bubble(P, m, hop=hop))) == (1, few, 1, min(m, hop * (P - 1) + 1))
    assert slots(allocate(gpipe(P, m, hop=hop)))[1] == m
    assert slots(allocate(forward_only(P, m, hop=hop))) == (1, 0, 0, 0)


# --- phases -----------------------------------------------------------------------------------

STAGE_ACTIONS = ("forward", "backward", "weight")
ACTIONS = (*STAGE_ACTIONS, "embed", "head", "embed_gradient", "arrival", "gradient_arrival")


def occurs(columns: Columns, action: str, ticks: slice) -> str:
    busy = getattr(columns, action)[ticks] != IDLE
    return "always" if np.all(busy) else "some" if np.any(busy) else "never"


@given(schedules)
def test_phases_cut_the_ticks_and_tell_the_truth(schedule: Schedule) -> None:
    columns = allocate(schedule).columns
    found = phases(columns)
    assert [tick for phase in found for tick in range(phase.start, phase.stop)] == list(range(schedule.ticks))
    for phase in found:
        ticks = slice(phase.start, phase.stop)
        assert phase.stop > phase.start
        assert phase.occurs == {action: occurs(columns, action, ticks) for action in ACTIONS}


@given(schedules)
def test_a_tick_in_which_all_stages_act_has_no_gate(schedule: Schedule) -> None:
    columns = allocate(schedule).columns
    for phase in phases(columns):
        for tick in range(phase.start, phase.stop):
            here = [occurs(columns, action, slice(tick, tick + 1)) for action in STAGE_ACTIONS]
            if "some" not in here:
                assert [phase.occurs[action] for action in STAGE_ACTIONS] == here


@given(st.integers(1, 8), st.integers(0, 32))
def test_1f1b_has_one_steady_phase_between_filling_and_draining(P: int, more: int) -> None:
    m = 2 * P + more
    found = phases(allocate(one_f_one_b(P, m)).columns)
    steady = [p for p in found if p.occurs["forward"] == p.occurs["backward"] == "always"]
    assert [(p.start, p.stop) for p in steady] == [(2 * (P - 1), m)]
    assert len(found) == (1 if P == 1 else 3)


@pytest.mark.parametrize("build", [*BUILDERS.values(), forward_only])
def test_the_number_of_phases_does_not_grow_with_the_microbatches(build: Callable[[int, int], Schedule]) -> None:
    counts = {len(phases(allocate(build(4, m)).columns)) for m in (16, 32, 64)}
    assert len(counts) == 1
