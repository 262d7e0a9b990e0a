"""Laws of an estimate: what adds up, what may never get worse; memory against XLA's own figures."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.config import MeshShape, ModelConfig
from meshkit.errors import MeshkitError
from meshkit.models.presets import PRESETS, sizes
from meshkit.planner.cluster import parse
from meshkit.planner.counts import parameters
from meshkit.planner.estimate import estimate
from meshkit.planner.hardware import GIB
from meshkit.planner.layout import Job, Layout
from meshkit.planner.memory import KINDS
from meshkit.planner.profile import PROFILES

STATE = ("weights", "moments", "working copy", "gradients")
powers = st.sampled_from([1, 2, 4, 8])


def job(model: str = "llama3-8b", batch: int = 512, sequence: int = 4096) -> Job:
    return Job(model, sizes(ModelConfig(preset=model)), batch, sequence)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any legal layout of llama3-8b."""
    mesh = MeshShape(data=draw(powers), tensor=draw(powers), pipe=draw(powers))
    schedule = draw(st.sampled_from(["1f1b", "gpipe", "zero-bubble", "interleaved"])) if mesh.pipe > 1 else "1f1b"
    virtual = 2 if schedule == "interleaved" else 1
    m = mesh.pipe * draw(st.integers(1, 4))
    recompute, zero = draw(st.sampled_from(["full", "selective", "none"])), draw(st.sampled_from([0, 1, 2, 3]))
    return Layout(mesh, draw(st.sampled_from([1, 2])), m, schedule, virtual, recompute, zero)


def estimated(layout: Layout, kind: str = "h100", profile: str = "meshkit"):
    batch = layout.mesh.data * layout.microbatch * layout.microbatches
    return estimate(job(batch=batch), layout, parse(f"{layout.mesh.devices}x{kind}"), PROFILES[profile])


@given(layout=layouts(), profile=st.sampled_from([*PROFILES]))
@settings(deadline=None)
def test_a_step_is_the_sum_of_its_kinds_and_its_terms(layout: Layout, profile: str) -> None:
    if profile != "meshkit" and layout.schedule not in ("1f1b", "interleaved"):
        layout = dataclasses.replace(layout, schedule="1f1b", virtual=1)
    found = estimated(layout, profile=profile)
    assert found.step == pytest.approx(sum(term.seconds for term in found.terms) + found.bubble_seconds)
    assert all(seconds >= 0 for seconds in found.seconds.values())
    assert 0 < found.efficiency <= 1
    assert 0 < found.mfu < 1
    assert all(set(stage) == set(KINDS) and min(stage.values()) >= 0 for stage in found.memory)


@given(layout=layouts(), factor=st.floats(1, 8), which=st.sampled_from([0, 1]))
@settings(deadline=None)
def test_more_bandwidth_is_never_slower(layout: Layout, factor: float, which: int) -> None:
    cluster = parse(f"{layout.mesh.devices}xh100", min(2, layout.mesh.devices))
    links = list(cluster.links)
    links[which] = dataclasses.replace(links[which], bandwidth=links[which].bandwidth * factor)
    better = dataclasses.replace(cluster, links=tuple(links))
    this = job(batch=layout.mesh.data * layout.microbatch * layout.microbatches)
    assert estimate(this, layout, better).step <= estimate(this, layout, cluster).step * (1 + 1e-12)


@given(layout=layouts(), more=st.integers(2, 4))
@settings(deadline=None)
def test_more_microbatches_never_lower_utilisation(layout: Layout, more: int) -> None:
    longer = dataclasses.replace(layout, microbatches=layout.microbatches * more)
    found, then = estimated(layout), estimated(longer)
    assert then.utilisation >= found.utilisation
    assert then.bubble <= found.bubble + 1e-12


@given(layout=layouts(), axis=st.sampled_from(["tensor", "pipe"]))
@settings(deadline=None)
def test_state_never_grows_with_tensor_or_pipe(layout: Layout, axis: str) -> None:
    """Activations may: a pipeline of more stages holds more microbatches of fewer layers."""
    mesh = layout.mesh.model_copy(update={axis: 2 * layout.mesh.sizes[axis]})
    if axis == "pipe" and (layout.virtual * mesh.pipe > 32 or layout.mesh.pipe == 1):
        return
    deeper = dataclasses.replace(layout, mesh=mesh, microbatches=2 * layout.microbatches)
    cut, whole = estimated(deeper).memory[0], estimated(layout).memory[0]
    assert sum(cut[kind] for kind in STATE) <= sum(whole[kind] for kind in STATE)


@given(layout=layouts())
@settings(deadline=None)
def test_memory_never_grows_with_tensor(layout: Layout) -> None:
    wider = dataclasses.replace(layout, mesh=layout.mesh.model_copy(update={"tensor": 2 * layout.mesh.tensor}))
    assert estimated(wider).peak_memory <= estimated(layout).peak_memory


@given(layout=layouts(), data=st.sampled_from([2, 4, 8]))
@settings(deadline=None)
def test_memory_never_grows_with_the_level_of_zero(layout: Layout, data: int) -> None:
    layout = dataclasses.replace(layout, mesh=layout.mesh.model_copy(update={"data": data}))
    if layout.mesh.pipe * layout.virtual > 8:
        return  # with a layer or two a stage, fetching one costs as much as holding them
    peaks = [estimated(dataclasses.replace(layout, zero=level)).peak_memory for level in (0, 1, 2, 3)]
    assert peaks == sorted(peaks, reverse=True)


XLA = {  # GiB of temporaries and arguments of a step's program, jax 0.10.2, 8 microbatches of one sequence of 4096
    ("llama3-70b", 8, 4, 2, "1f1b", 1, "full", 1): 64.1,
    ("llama3-70b", 8, 4, 2, "1f1b", 1, "full", 2): 38.2,
    ("llama3-70b", 8, 4, 2, "1f1b", 1, "full", 3): 21.65,
    ("llama3-70b", 8, 4, 2, "1f1b", 1, "selective", 3): 40.5,
    ("llama3-70b", 8, 4, 2, "1f1b", 1, "none", 3): 81.0,
    ("llama3-70b", 4, 4, 4, "zero-bubble", 1, "full", 3): 49.0,
    ("llama2-70b", 8, 2, 4, "1f1b", 1, "full", 1): 64.34,
    ("llama3-8b", 8, 1, 1, "1f1b", 1, "full", 3): 25.97,
    ("llama3-8b", 8, 1, 1, "1f1b", 1, "selective", 2): 47.46,
}


@pytest.mark.parametrize("case", XLA, ids=str)
def test_memory_is_what_xlas_cuda_compiler_reports(case: tuple) -> None:
    model, data, tensor, pipe, schedule, virtual, recompute, zero = case
    mesh = MeshShape(data=data, tensor=tensor, pipe=pipe)
    layout = Layout(mesh, 1, 8, schedule, virtual, recompute, zero)
    found = estimate(job(model, batch=data * 8), layout, parse(f"{mesh.devices}xh100"))
    assert found.peak_memory / GIB == pytest.approx(XLA[case], rel=0.03)


@pytest.mark.parametrize(
    ("preset", "billions"),
    [("llama3-8b", 8.03), ("llama3-70b", 70.55), ("llama3-405b", 405.85), ("gpt2", 0.1244), ("llama2-7b", 6.74)],
)
def test_parameters_are_the_models(preset: str, billions: float) -> None:
    assert parameters(sizes(ModelConfig(preset=preset))) / 1e9 == pytest.approx(billions, rel=1e-3)
    assert preset in PRESETS


@pytest.mark.parametrize(("precision", "cluster"), [("float64", "1xh100"), ("float32", "4xtpu-v5p")])
def test_a_dtype_without_a_published_rate_is_refused(precision: str, cluster: str) -> None:
    layout = Layout(MeshShape(data=1), 1, 1)
    with pytest.raises(MeshkitError, match=f"precision = {precision}: no peak rate of .* set precision to bfloat16"):
        estimate(dataclasses.replace(job(batch=1), precision=precision), layout, parse(cluster))
