"""The trips of a step's loops, against the schedule that they run."""

import itertools

import numpy as np
import pytest

from meshkit.hlo import Loop
from meshkit.pipeline import builders
from meshkit.pipeline.placement import Placement, place
from meshkit.pipeline.schedule import Schedule
from meshkit.pipeline.slots import allocate, phases
from meshkit.pipeline.trips import Trips, action_of

TABLES = [
    builders.build("1f1b", 1, 4),
    builders.build("1f1b", 2, 8),
    builders.build("1f1b", 4, 3),
    builders.build("1f1b", 4, 12, hop=2),
    builders.build("gpipe", 3, 5),
    builders.build("interleaved", 2, 4, 2),
    builders.build("interleaved", 4, 8, 2),
    builders.build("zero-bubble", 4, 8),
]

by_name = pytest.mark.parametrize("table", TABLES, ids=lambda t: f"{t.name}-{t.stages}-{t.microbatches}-{t.chunks}")


def gates(table: Schedule, action: str, kind: str, inside: str = "") -> list[list[Loop]]:
    """The paths to an action's work in every phase in which it occurs, named as the executor names them."""
    found = []
    for number, phase in enumerate(phases(allocate(table).columns)):
        root, ticks = f"jit(step)/shard_map/phase_{number}/while", phase.stop - phase.start
        path = [Loop("ticks", root, ticks)]
        name = f"{root}/body/closed_call/{action}/"
        if phase.occurs[action] == "some":
            path.append(Loop("gate", f"{name}{kind}/while", None))
            name = f"{name}{kind}/while/body/"
        if phase.occurs[action] != "never":
            found.append([*path, Loop("row", f"{name}{inside}/while", None)] if inside else path)
    return found


def total(trips: Trips, paths: list[list[Loop]]) -> list[int]:
    counts = [trips.of(path) for path in paths]
    assert all(count is not None for count in counts)
    return np.sum(counts, axis=0).tolist()


@by_name
def test_every_stage_does_every_microbatch_of_every_chunk_once(table: Schedule) -> None:
    trips = Trips(table, place(table.stages * table.chunks, table.stages, table.chunks))
    actions = ["forward", "backward", "weight"] if table.splits else ["forward", "backward"]
    for action in actions:
        every = [table.microbatches * table.chunks] * table.stages
        assert total(trips, gates(table, action, "stage_gate")) == every


@by_name
def test_the_mesh_does_every_microbatch_once(table: Schedule) -> None:
    trips = Trips(table, place(table.stages * table.chunks, table.stages, table.chunks))
    for action in ("embed", "head", "embed_gradient"):
        assert total(trips, gates(table, action, "mesh_gate")) == [table.microbatches] * table.stages


@by_name
def test_a_spare_row_is_done_by_the_chunks_that_have_it(table: Schedule) -> None:
    counts = tuple(itertools.islice(itertools.cycle((1, 3, 2)), table.stages * table.chunks))
    trips = Trips(table, Placement(table.stages, table.chunks, counts))
    for row in (1, 2):
        have = [sum(c > row for c in counts[s :: table.stages]) for s in range(table.stages)]
        rows = total(trips, gates(table, "backward", "stage_gate", f"row_{row}/stage_gate"))
        assert rows == [table.microbatches * chunks for chunks in have]


def test_loops_of_layers_multiply() -> None:
    table = builders.build("1f1b", 2, 8)
    trips = Trips(table, place(6, 2))
    for path in gates(table, "forward", "stage_gate"):
        once = trips.of(path)
        thrice = trips.of([*path, Loop("layers", f"{path[-1].op_name}/body/while", 3)])
        assert once is not None
        assert thrice is not None
        assert (thrice == 3 * once).all()
    assert trips.of([]).tolist() == [1, 1]
    assert trips.of([Loop("gather", "jit(step)/shard_map/gather_weights/while", 40)]).tolist() == [40, 40]


def test_a_scan_of_one_tick_may_be_no_loop() -> None:
    table = builders.build("gpipe", 1, 1)
    (path,) = gates(table, "forward", "stage_gate")
    assert Trips(table, place(1, 1)).of(path[1:]).tolist() == [1]


def test_what_cannot_be_known_is_none() -> None:
    table = builders.build("1f1b", 2, 8)
    trips = Trips(table, place(2, 2))
    [ticks, gate] = gates(table, "forward", "stage_gate")[0]
    assert trips.of([ticks, gate, Loop("own", "jit(step)/my_solver/while", None)]) is None
    assert trips.of([gate]) is None, "the scan of its ticks is not there"
    assert trips.of([Loop("ticks", ticks.op_name, 1), gate]) is None, "a scan of other ticks"


def test_an_instruction_tells_its_action() -> None:
    assert action_of("jit(_step)/shard_map/phase_0/while/body/closed_call/backward/stage_gate/while/dot") == "backward"
    assert action_of("jit(_step)/shard_map/phase_12/while/body/embed_gradient/dot") == "embed_gradient"
    assert action_of("jit(_step)/update/dot") is None
    assert action_of("jit(_step)/forward/dot") is None
