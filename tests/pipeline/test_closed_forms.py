"""The closed forms of schedules against the tables that the executor runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit.pipeline import closed_forms, timeline
from meshkit.pipeline.builders import BUILDERS, build
from meshkit.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule
from meshkit.pipeline.slots import allocate

times = st.floats(0.01, 100)


@st.composite
def tables(draw: st.DrawFn) -> Schedule:
    """A builder's table: any P, m and hop, as its name allows."""
    name, stages = draw(st.sampled_from([*closed_forms.TIME])), draw(st.integers(1, 8))
    if name == "interleaved":
        return build(name, stages, stages * draw(st.integers(1, 5)), draw(st.integers(1, 4)))
    hop = draw(st.integers(1, 2))
    return build(name, stages, draw(st.integers(1, 20)), hop=hop)


def numbers(table: Schedule) -> tuple[int, int, int, int]:
    return table.stages, table.microbatches, table.chunks, table.hop


def test_every_builder_has_its_forms() -> None:
    assert [*closed_forms.TIME] == [*BUILDERS]


@given(table=tables(), costs=st.fixed_dictionaries(dict.fromkeys((FORWARD, BACKWARD, INPUT, WEIGHT), times)))
def test_ticks_and_time_are_the_tables(table: Schedule, costs: dict[str, float]) -> None:
    assert closed_forms.ticks(table.name, *numbers(table)) == table.ticks
    if table.microbatches >= table.hop:  # a lone microbatch in flight leaves ticks empty, which take no time
        expected = timeline.lock_step(table, costs).total
        assert closed_forms.TIME[table.name](*numbers(table), costs) == pytest.approx(expected)


@given(table=tables())
def test_slots_are_the_tables(table: Schedule) -> None:
    allocated = allocate(table)
    slots = closed_forms.slots(table.name, *numbers(table))
    assert slots == {file: getattr(allocated, file) for file in slots}
    at_once = closed_forms.backward_at_once(table.name, table.stages, table.chunks)
    assert at_once == table.backward_at_once
