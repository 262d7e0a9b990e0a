"""The page's numbers are those of the code that trains and plans."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

from meshkit import mesh as meshes
from meshkit.pipeline.timeline import CAUSES, asynchronous, lock_step
from meshkit.planner import search
from meshkit.planner.cluster import groups
from meshkit.view import devices, payload, perceptron, performance, schedules, storyboard, sweeps, weights
from meshkit.view.setting import LESSONS, PRESETS_OF_THE_PAGE, Case, Setting, resolve
from meshkit.view.world import World

WORLD = World.of()
SMALL = Setting("tiny", data=2, tensor=2, pipe=2, microbatches=4, batch=16, sequence=128, recompute="none")
CASES = {
    "default": Setting(),
    "small": SMALL,
    "single": Setting("tiny", data=1, tensor=1, pipe=1, microbatches=1, batch=8, sequence=128),
    "uneven": PRESETS_OF_THE_PAGE["8×4×3"],
    "interleaved": Setting(pipe=4, schedule="interleaved", virtual=2, microbatches=16, batch=128),
    "zero-bubble": Setting(pipe=4, schedule="zero-bubble", microbatches=16, batch=128),
    "gpipe": Setting(pipe=4, schedule="gpipe", microbatches=8, batch=64),
    "overlapped, cut by hand": Setting(pipe=4, overlap="true", layers="19,20,20,21", microbatches=16, batch=128),
    "crossing": LESSONS["crossing"],
    "large": Setting("llama3-405b", data=32, tensor=8, pipe=16, batch=2048, microbatches=64),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return resolve(WORLD, CASES[request.param])


# --- devices --------------------------------------------------------------------------------------


def test_devices_sit_where_training_puts_them(case: Case) -> None:
    part = devices.mesh(case)
    placed = meshes.place(case.setting.mesh, case.nodes)
    assert np.array_equal(np.array(part.device_at).reshape(part.shape), placed)
    assert sorted(part.device_at) == list(range(case.cluster.devices))
    assert (part.warning and part.warning.en) == meshes.placement_warning(case.setting.mesh, case.nodes)


def test_groups_cross_the_links_that_the_planner_charges(case: Case) -> None:
    part, peers = devices.mesh(case), groups(case.setting.mesh, case.cluster)
    for name, axis in part.axes.items():
        assert len(axis.levels) == axis.groups == case.cluster.devices // axis.size
        assert axis.crossing_nodes == sum(level > 0 for level in axis.levels)
        if axis.size > 1:
            assert (max(axis.levels) > 0) == (peers[name].level > 0)


def test_groups_cross_the_racks_that_the_planner_charges() -> None:
    case = resolve(WORLD, CASES["uneven"])
    assert max(devices.mesh(case).axes["pipe"].levels) == groups(case.setting.mesh, case.cluster)["pipe"].level


def test_layers_are_all_somewhere_once(case: Case) -> None:
    ranges = [chunk for stage in devices.mesh(case).layers for chunk in stage]
    layers = [layer for start, end in ranges for layer in range(start, end)]
    assert sorted(layers) == list(range(case.job.sizes.layers))


def test_exchanges_are_all_of_the_estimates_communication(case: Case) -> None:
    for axis in meshes.AXES:
        told = sum(exchange.seconds for exchange in devices.exchanges(case, axis))
        assert told == pytest.approx(case.estimate.seconds[axis])


# --- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_slices_are_those_of_the_sharding(zero: int) -> None:
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    case = resolve(WORLD, SMALL.but({"zero": zero}))
    mesh, of = meshes.build(case.setting.mesh), case.setting.mesh.sizes
    at = {device: dict(zip(meshes.AXES, place, strict=True)) for place, device in np.ndenumerate(mesh.devices)}
    for parameter in weights.weights(case).parameters:
        spec = P(*(tuple(names) or None for names in parameter.axes))
        indices = NamedSharding(mesh, spec).devices_indices_map(tuple(parameter.shape))
        for device, index in indices.items():
            want = [part.indices(size)[:2] for part, size in zip(index, parameter.shape, strict=True)]
            assert weights.block(parameter, at[device], of) == want
    assert len(jax.devices()) == 8


def test_weights_are_the_models(case: Case) -> None:
    part, sizes = weights.weights(case), case.job.sizes
    stored = sum(math.prod(parameter.shape) for parameter in part.parameters)
    padded_layers = part.rows_per_stage * case.setting.pipe / sizes.layers
    assert stored >= performance.overview(case).model.parameters
    assert stored <= performance.overview(case).model.parameters * padded_layers * 1.01
    for parameter in part.parameters:
        cut = [math.prod(case.setting.mesh.sizes[axis] for axis in names) for names in parameter.axes]
        assert [n * k for n, k in zip(parameter.local_shape, cut, strict=True)] == parameter.shape


def test_cuts_have_their_names() -> None:
    cut = {p.path: p.cut for p in weights.weights(resolve(WORLD, Setting())).parameters}
    assert cut["blocks.attention.query.kernel"] == cut["blocks.mlp.up.kernel"] == "columns"
    assert cut["blocks.attention.out.kernel"] == cut["blocks.mlp.down.kernel"] == "rows"
    assert cut["embed.table"] == cut["head.table"] == "vocabulary"
    assert cut["norm.scale"] == "whole"


# --- schedules ------------------------------------------------------------------------------------


def test_the_table_is_the_executors(case: Case) -> None:
    part, setting = schedules.table(case), case.setting
    table = resolve(WORLD, setting).layout.table.schedule
    a = part.actions
    kinds = [schedules.KINDS[kind] for kind in a.kind]
    told = list(zip(a.tick, a.stage, kinds, a.microbatch, a.chunk, strict=True))
    assert told == [(tick, stage, *action) for tick, stage, action in table]
    assert part.in_flight == table.in_flight().tolist()
    assert part.tick_ms == sorted(part.tick_ms)
    assert all(start <= end for start, end in zip(a.start_ms, a.end_ms, strict=True))


def test_idle_spans_add_up_to_the_timelines_idle_time(case: Case) -> None:
    setting = case.setting
    table = resolve(WORLD, setting).layout.table.schedule
    costs = devices.action_seconds(case)
    for run in (lock_step, asynchronous):
        line = run(table, costs, 0.01 * costs["F"])
        gaps = schedules.idle_spans(line)
        for k, cause in enumerate(CAUSES):
            for stage in range(table.stages):
                mine = [
                    end - start
                    for s, c, start, end in zip(gaps.stage, gaps.cause, gaps.start, gaps.end, strict=True)
                    if (s, c) == (stage, k)
                ]
                assert sum(mine) == pytest.approx(line.idle[cause][stage], abs=2e-4 * max(1, len(mine)))


def test_the_tables_time_is_the_estimates(case: Case) -> None:
    """Work and bubble of the pipeline, without hops, are what the planner says they are."""
    part, found = schedules.table(case), case.estimate
    work = sum(p.repeats * p.terms.seconds for p in found.parts if p.action)
    hops = sum(part.hop_ms > 0 for _ in range(part.ticks)) * part.hop_ms
    assert part.tick_ms[-1] - hops == pytest.approx(1e3 * (work + found.bubble_seconds), rel=2e-3, abs=2 * part.hop_ms)


def test_memory_in_use_stays_in_what_is_reserved(case: Case) -> None:
    part = schedules.table(case)
    assert max(map(max, part.in_use_bytes)) <= part.reserved_bytes
    total = sum(part.resident_bytes.values()) + part.reserved_bytes
    assert total == pytest.approx(case.estimate.peak_memory)


# --- performance ----------------------------------------------------------------------------------


def test_figures_add_up(case: Case) -> None:
    part = performance.overview(case)
    figures = part.figures
    assert sum(figures.seconds.values()) == pytest.approx(figures.step_seconds)
    assert sum(figures.memory_bytes.values()) == pytest.approx(figures.peak_bytes)
    assert figures.fits == (figures.peak_bytes <= figures.budget_bytes)
    assert sum(term.seconds for term in part.terms) == pytest.approx(figures.step_seconds)
    assert part.diagnosis.kind in ("memory", *figures.seconds)


def test_changes_of_the_diagnosis_are_settings_with_their_estimate(case: Case) -> None:
    said = performance.diagnosis(case)
    for change in (said.change, said.blocked):
        if change is not None:
            found = resolve(WORLD, case.setting.but(change.change)).estimate
            assert (found.step, found.peak_memory) == (change.step_seconds, change.peak_bytes)


def test_sweeps_pass_through_the_present_point(case: Case) -> None:
    for name, points in sweeps.sweeps(case).of.items():
        values = [point.value for point in points]
        assert values == sorted(set(values))
        [here] = [point for point in points if point.value == getattr(case.setting, name)]
        assert here.change == {}
        assert here.step_seconds == case.estimate.step


def test_best_layouts_are_the_searchs() -> None:
    case = resolve(WORLD, SMALL)
    part, found = sweeps.best(case), search.search(case.job, case.cluster)
    assert part.legal == found.tried
    assert part.fitting == len(found.best)
    assert [row.step_seconds for row in part.rows] == [one.step for one in found.best[: sweeps.BEST]]
    first = resolve(WORLD, SMALL.but(sweeps.changes_of(part.rows[0])))
    assert first.layout == found.best[0].layout


# --- the story ------------------------------------------------------------------------------------


def test_the_story_tells_each_step_of_a_batch(case: Case) -> None:
    part = storyboard.story(case)
    assert [step.key for step in part] == [key for key, *_ in storyboard.STORY]
    for step in part:
        assert bool(step.exchanges) == (step.link >= 0) == bool(step.collective)
        assert not step.exchanges or case.setting.mesh.sizes[step.axis] > 1
        for one in step.exchanges:
            each = one.volume_bytes / one.bytes_per_second + one.latency_seconds
            assert one.count * each * (1 - one.hidden) == pytest.approx(one.seconds)


def test_the_story_leaves_nothing_of_a_step_out_but_the_bubble(case: Case) -> None:
    part, found = storyboard.story(case), case.estimate
    told = sum(step.compute_seconds + sum(one.seconds for one in step.exchanges) for step in part)
    assert told == pytest.approx(found.step - found.bubble_seconds)


def test_the_perceptrons_parts_add_up() -> None:
    part = perceptron.perceptron()
    rounding = 0.5e-3 * 3
    assert np.abs(np.sum(part.partial_BO, axis=0) - part.y_BO).max() <= rounding
    assert np.abs(np.mean(part.gradient_OH, axis=0) - part.mean_OH).max() <= rounding
    assert max(part.error, part.gradient_error) <= 1e-12


# --- JSON -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", payload.PARTS)
def test_parts_are_json_with_the_fields_of_their_classes(name: str) -> None:
    case = resolve(WORLD, SMALL)
    answer = json.loads(payload.part(WORLD, name, case.setting.query))
    value: Any = payload.PARTS[name](case)
    if dataclasses.is_dataclass(value):
        assert set(answer) == {field.name for field in dataclasses.fields(value)}
    assert answer == json.loads(payload.to_json(value))


def test_numbers_keep_six_digits() -> None:
    assert payload.plain({"a": (1.23456789, 7.0, 1e-9)}) == {"a": [1.23457, 7, 1e-9]}
    with pytest.raises(ValueError, match="Out of range float"):
        payload.to_json(float("nan"))
