"""`--profile`: what is read from a recorded step is what the table says, on real steps of simulated devices."""

import collections
import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest

from meshkit.cli import main
from meshkit.errors import MeshkitError
from meshkit.pipeline.schedule import FORWARD
from meshkit.pipeline.trips import ACTIONS
from meshkit.profile import measured, trace_file
from meshkit.profile.measured import Event, Program, Span
from meshkit.profile.profiler import WARM_UP, Profiler, check
from meshkit.train_step import TrainStep
from tests import law

STEPS = 2
LAYOUTS = {
    "1f1b, layers in a loop": dict(shape=(2, 2, 2), pipeline=dict(microbatches=3)),
    "zero-bubble, layers unrolled": dict(
        shape=(1, 1, 4), pipeline=dict(schedule="zero-bubble", microbatches=4, unroll=8), recompute="selective"
    ),
    "interleaved, stages of unequal length": dict(
        shape=(2, 1, 2),
        pipeline=dict(schedule="interleaved", virtual=2, microbatches=2, layers_per_stage=[2, 3, 1, 2]),
        zero=3,
    ),
}


class Recorded(NamedTuple):
    step: TrainStep
    program: Program
    events: list[Event]
    spans: list[Span]
    report: dict[str, Any]


@pytest.fixture(scope="module", params=LAYOUTS)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    chosen = dict(LAYOUTS[request.param])
    data = chosen["shape"][0]
    batch = {"data.batch": data * chosen["pipeline"]["microbatches"]}
    config = law.make_config(chosen.pop("shape"), precision="float32", **chosen, **batch)
    step = law.make_step(config)
    state, placed = step.init(0), jax.device_put(law.make_batch(config), step.batch_sharding)
    compiled = step.compile(state, placed)
    profiler = Profiler(tmp_path_factory.mktemp("run") / "profile", STEPS)
    for number in range(1, WARM_UP + STEPS + 2):
        profiler.before(number, state)
        state, _ = compiled(state, placed)
        profiler.after(number, state)
    report, program = profiler.report(step, compiled), profiler.program(step, compiled)
    events = list(profiler.events(step))
    return Recorded(step, program, events, program.spans(events, STEPS), report)


def of(recorded: Recorded, row: str, device: int, step: int = 0) -> list[Span]:
    return [s for s in recorded.spans if (s.row, s.device, s.step) == (row, device, step)]


def everywhere(recorded: Recorded) -> Any:
    return itertools.product(range(recorded.step.mesh.size), range(STEPS))


def test_every_device_did_the_actions_of_its_stage(recorded: Recorded) -> None:
    schedule = recorded.step.schedule
    for device, step in everywhere(recorded):
        stage = recorded.program.coordinates(device)["pipe"]
        did = [
            (s.name, s.chunk)
            for s in of(recorded, "actions", device, step)
            if s.name[0] in schedule.kinds and s.name[1:]
        ]
        asked = [(f"{a.kind}{a.microbatch}", a.chunk) for _, at, a in schedule if at == stage]
        assert sorted(did) == sorted(asked)
        # One kind of action follows the table; those of one tick may be under way together.
        for kind in schedule.kinds:
            assert [x for x in did if x[0][0] == kind] == [x for x in asked if x[0][0] == kind]


def test_a_forward_ends_after_the_one_that_it_waits_for(recorded: Recorded) -> None:
    stages, ends = recorded.step.schedule.stages, {}
    for span in recorded.spans:
        if span.row == "actions" and span.name == f"{FORWARD}{span.microbatch}":
            at = recorded.program.coordinates(span.device)
            group = span.chunk * stages + at.pop("pipe")
            ends[(*at.values(), span.step, span.microbatch, group)] = span.end
    later = [(key, end) for key, end in ends.items() if key[-1] > 0]
    assert later
    assert all(ends[*key[:-1], key[-1] - 1] < end for key, end in later)


def test_an_action_went_through_the_layers_of_its_chunk(recorded: Recorded) -> None:
    placement, stages = recorded.program.placement, recorded.step.schedule.stages
    for device, step in everywhere(recorded):
        layers = collections.defaultdict(set)
        for span in of(recorded, "layers", device, step):
            layers[span.microbatch, span.chunk].add(span.layer)
        stage = recorded.program.coordinates(device)["pipe"]
        assert len(layers) == recorded.step.schedule.microbatches * placement.chunks
        for (_, chunk), found in layers.items():
            start, count = placement.starts[chunk * stages + stage], placement.counts[chunk * stages + stage]
            assert found == set(range(start, start + count))


def test_a_layer_is_a_part_of_its_action(recorded: Recorded) -> None:
    for device, step in everywhere(recorded):
        actions = of(recorded, "actions", device, step)
        for layer in of(recorded, "layers", device, step):
            mine = [a for a in actions if (a.microbatch, a.chunk) == (layer.microbatch, layer.chunk)]
            assert any(a.start <= layer.start and layer.end <= a.end for a in mine)


def test_layers_of_a_forward_follow_each_other(recorded: Recorded) -> None:
    for device, step in everywhere(recorded):
        layers = of(recorded, "layers", device, step)
        for action in of(recorded, "actions", device, step):
            if action.name == f"{FORWARD}{action.microbatch}":
                mine = [
                    x
                    for x in layers
                    if (x.microbatch, x.chunk) == (action.microbatch, action.chunk)
                    and action.start <= x.start
                    and x.end <= action.end
                ]
                ends = [max(x.end for x in mine if x.layer == k) for k in sorted({x.layer for x in mine})]
                assert ends == sorted(ends)


def test_exchanges_are_shown_with_their_axis(recorded: Recorded) -> None:
    mesh = dict(recorded.step.mesh.shape)
    for device, step in everywhere(recorded):
        names = collections.Counter(s.name for s in of(recorded, "collectives", device, step))
        assert any("over data" in name for name in names) == (mesh["data"] > 1)
        assert any("over tensor" in name for name in names) == (mesh["tensor"] > 1)
        assert names["collective-permute over pipe"] > recorded.step.schedule.ticks - 1


def test_the_step_around_the_pipeline_is_shown(recorded: Recorded) -> None:
    for device, step in everywhere(recorded):
        names = {s.name for s in of(recorded, "step", device, step)}
        assert "update" in names
        if recorded.step.mesh.shape["data"] > 1:
            assert "reduce_gradients" in names


def test_what_comes_after_the_ticks_is_shown_after_them(recorded: Recorded) -> None:
    """The compiler may do a part of the update first: a power of Adam's decay waits for nothing."""
    for device, step in everywhere(recorded):
        last = max(s.tick for s in of(recorded, "actions", device, step))
        begins = min(s.start for s in of(recorded, "actions", device, step) if s.tick == last)
        later = [s for s in of(recorded, "step", device, step) if s.name in measured.AFTER]
        assert later
        assert all(s.start > begins for s in later)


def test_an_instruction_of_the_update_that_runs_first_does_not_stretch_it(recorded: Recorded) -> None:
    program = recorded.program
    names = {name for name, place in program.places.items() if place.scope == "update" and not place.exchange}
    counts = collections.Counter((e.device, e.name) for e in recorded.events)
    early = next(name for name in sorted(names) if counts[0, name] == STEPS)
    begins = [min(s.start for s in recorded.spans if (s.device, s.step) == (0, step)) for step in range(STEPS)]
    moved = [e for e in recorded.events if (e.device, e.name) != (0, early)]
    moved += [Event(0, early, start - 2e-6, start - 1e-6) for start in begins]
    for step, span in enumerate(s for s in program.spans(moved, STEPS) if (s.device, s.name) == (0, "update")):
        assert span.start > begins[step]


def test_busy_is_at_most_the_time_from_start_to_end(recorded: Recorded) -> None:
    assert all(0 <= s.busy <= (s.end - s.start) * (1 + 1e-9) + 1e-9 for s in recorded.spans)
    assert {s.step for s in recorded.spans} == set(range(STEPS))


def test_an_instruction_whose_events_do_not_fit_the_table_is_left_out(recorded: Recorded) -> None:
    """An event too few must not shift the others to wrong microbatches."""
    program, fewer = recorded.program, list(recorded.events)
    inside = {name for name, place in program.places.items() if place.scope == "forward" and place.phase is not None}
    lost = next(k for k, event in enumerate(fewer) if event.name in inside and event.device == 0)
    name = fewer.pop(lost).name
    without = [e for e in fewer if (e.device, e.name) != (0, name)]
    rows = lambda spans: [s for s in spans if s.row != "collectives"]
    assert rows(program.spans(fewer, STEPS)) == rows(program.spans(without, STEPS))


def test_the_report_names_a_file_for_perfetto_and_times(recorded: Recorded) -> None:
    trace = json.loads(Path(recorded.report["profile"]).read_text())
    shown = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(shown) == len(recorded.spans)
    lanes: dict[tuple[int, int], float] = {}
    for event in sorted(shown, key=lambda event: event["ts"]):
        lane = event["pid"], event["tid"]
        assert event["ts"] >= lanes.get(lane, 0.0) - 1e-3, "spans of a lane do not overlap"
        lanes[lane] = event["ts"] + event["dur"]
    assert {event["args"]["step"] for event in shown} == {WARM_UP + 1, WARM_UP + 2}, "as the run counts them"
    devices = {event["pid"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert devices == set(range(recorded.step.mesh.size))
    kinds = {*recorded.step.schedule.kinds, "hop forward"}
    assert kinds <= recorded.report["milliseconds"].keys()
    assert all(time > 0 for time in recorded.report["milliseconds"].values())
    assert recorded.report["milliseconds"].keys() <= {*kinds, "hop backward", *(a.replace("_", " ") for a in ACTIONS)}


def test_spans_of_a_kind_keep_together_in_a_trace() -> None:
    """F2 and F3 overlap with the backwards, not with each other; the head with both."""
    times = {"F2": (0, 4), "F3": (5, 9), "B0": (3, 6), "B1": (7, 12), "head": (3.5, 5.5), "embed": (10, 11)}
    spans = [Span(0, "actions", name, *at, 1.0, name.rstrip("0123456789"), 0) for name, at in times.items()]
    program = Program(None, None, None, {"pipe": 1})  # only the mesh is looked at
    events = trace_file.trace(program, spans, first=7)["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    shown = {event["name"]: rows[event["tid"]] for event in events if event["ph"] == "X"}
    assert shown["B0"] == shown["B1"] == "actions (1) B"
    assert shown["F2"] == shown["F3"] == shown["embed"] == "actions (2) F, embed"
    assert shown["head"] == "actions (3) head"


def test_medians_are_of_busy_time() -> None:
    span = lambda name, kind, busy: Span(0, "actions", name, 0.0, 9.0, busy, kind, 0)
    spans = [span("F0", "F", 1.0), span("F1", "F", 3.0), span("F12", "F", 2.0), span("head", "head", 5.0)]
    assert measured.medians(spans) == {"F": 2.0, "head": 5.0}


@pytest.mark.parametrize("left", [0, 3])
def test_more_steps_than_a_run_has_cannot_be_recorded(left: int) -> None:
    with pytest.raises(
        MeshkitError, match=rf"--profile .* records 2 steps after 2 .* has {left} left: set steps {4 - left} higher"
    ):
        check(left, 2)
    with pytest.raises(MeshkitError, match="profile = -1: it is the number of steps"):
        check(left, -1)
    check(left, 0)
    check(4, 2)


def test_a_run_from_the_command_line_leaves_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        f'steps = 4\nprecision = "float32"\nrun_dir = "{tmp_path}/run"\n[mesh]\npipe = 2\ndata = 4\n'
        "[pipeline]\nmicrobatches = 2\n[model]\nlayers = 2\nwidth = 16\nheads = 2\nkv_heads = 2\nmlp_width = 32\n"
        f'[data]\nbatch = 8\nsequence = 16\ntext = ["{config}"]\nheld_out = 0.5\n'
    )
    assert main(["train", str(config), "--profile", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["profile"] == str(tmp_path / "run" / "profile" / "timeline.json")
    assert summary["milliseconds"]["F"] > 0
    assert main(["train", str(config), "--profile", "--steps", "7"]) == 1
    assert "the run has 3 left: set steps 1 higher" in capsys.readouterr().err
