"""`meshkit plan`: the worked cases, what it refuses, what it explains."""

import dataclasses
import itertools
import json
import re

import pytest

from meshkit import plan
from meshkit.cli import main
from meshkit.config import MeshShape, ModelConfig, RunConfig
from meshkit.errors import MeshkitError
from meshkit.models.presets import sizes
from meshkit.pipeline import builders
from meshkit.planner.cluster import parse
from meshkit.planner.command import chosen, show
from meshkit.planner.estimate import estimate
from meshkit.planner.explain import arithmetic, diagnose, duration, neighbours
from meshkit.planner.layout import Job, Layout
from meshkit.planner.search import layouts, legal
from meshkit.planner.workload import KINDS

BOOK = MeshShape(data=8, tensor=4, pipe=2)


@pytest.fixture(scope="module")
def book():
    return plan(model="llama3-70b", cluster="64xh100", global_batch=512, sequence=4096, mesh=BOOK)


def test_70b_on_64_gpus_in_nodes_of_8(book) -> None:
    """D=8 T=4 P=2 is legal, fits, has a rank, and what keeps it from the first place can be said."""
    rank = book.rank_of(BOOK)
    assert rank is not None
    found = book.best[rank - 1]
    assert found.fits
    assert found.layout.mesh == BOOK
    assert [a.step <= b.step for a, b in itertools.pairwise(book.best)] == [True] * (len(book.best) - 1)
    assert all(row.fits and row.layout.mesh.devices == 64 for row in book.best)
    diagnosis = diagnose(found)
    assert "communication-bound (tensor)" in diagnosis.bound
    assert "lower T" in diagnosis.bound
    assert diagnosis.change is not None
    assert diagnosis.change.estimate.step < found.step
    assert diagnosis.change.estimate.fits


def test_the_arithmetic_adds_up_to_the_step(book) -> None:
    for found in book.best[:5]:
        assert sum(seconds for *_, seconds in arithmetic(found)) == pytest.approx(found.step)


INTERLEAVED = {"schedule": "interleaved", "virtual": 2, "recompute": "selective", "zero": 1}
BOUND = {  # what a layout waits for -> (model, cluster, mesh, what it has beside full recompute and zero 1)
    "communication-bound (tensor)": ("llama3-8b", "16xh100", (1, 16, 1), {}),
    "communication-bound (pipe)": ("llama3-8b", "64xl40s", (2, 1, 32), {"zero": 1}),
    "communication-bound (data)": ("llama3-70b", "512xh100", (64, 4, 2), {"zero": 2}),
    "bubble-bound": ("llama3-8b", "64xh100", (8, 1, 8), {"microbatch": 8, "microbatches": 8}),
    "memory-bound": ("llama3-70b", "64xh100", (4, 2, 8), INTERLEAVED),
    "memory over": ("llama3-70b", "64xh100", (64, 1, 1), {}),
    "compute-bound": ("llama3-8b", "8xh200", (8, 1, 1), {}),
}


@pytest.mark.parametrize("bound", BOUND)
def test_each_diagnosis_names_its_figure_and_a_change_that_was_tried(bound: str) -> None:
    model, cluster, (data, tensor, pipe), changed = BOUND[bound]
    mesh = MeshShape(data=data, tensor=tensor, pipe=pipe)
    job, on = Job(model, sizes(ModelConfig(preset=model)), 512, 4096), parse(cluster)
    found = estimate(job, dataclasses.replace(Layout(mesh, 1, 512 // data), **changed), on)
    said = diagnose(found).bound
    assert said.startswith(bound), said
    figure, _, advice = said.removeprefix(f"{bound}: ").partition(": ")
    assert re.search(r"[\d.]+% of the step, [\d.]+ m?s|it takes [\d.]+ of [\d.]+ GiB", figure), said
    assert any(what in advice for what, _ in neighbours(found)), said


def test_advice_is_the_change_that_shortens_most(book) -> None:
    """Of the neighbours that fit and shorten what the row waits for, none is faster; none is, where it is said so."""
    for row in book.best[:40:8]:
        kind = max((kind for kind in KINDS if kind != "compute"), key=row.seconds.get)
        said = diagnose(row).bound
        if not said.startswith(("bubble-bound", "communication-bound")):
            continue
        tried = {what: estimate(row.job, layout, row.cluster) for what, layout in neighbours(row)}
        shorter = {w: e for w, e in tried.items() if e.seconds[kind] < row.seconds[kind] and e.step < row.step}
        fitting = {what: found for what, found in shorter.items() if found.fits}
        best = min((fitting or shorter).items(), key=lambda item: item[1].step, default=None)
        assert (best[0] if best else "no single change shortens") in said


def test_96_devices_with_stages_of_uneven_layers() -> None:
    """D=8 T=4 P=3 with 80 layers: 26, 27, 27; the shorter stage waits for the others."""
    mesh = MeshShape(data=8, tensor=4, pipe=3)
    found = plan(model="llama3-70b", cluster="96xh100", global_batch=768, sequence=4096, mesh=mesh)
    rank = found.rank_of(mesh)
    assert rank is not None
    this = found.best[rank - 1]
    even = this.job.sizes.layers / 3
    assert this.bubble_seconds > 0
    assert even != int(even)


WHOLE = {"8xh100": 8, "4xh100": 8, "32xh100": 8, "8xb200": 8, "4xtpu-v5p": 4}  # cluster -> devices of a whole node


@pytest.mark.parametrize(("cluster", "per_node"), WHOLE.items())
def test_the_fewest_whole_nodes_for_what_does_not_fit(cluster: str, per_node: int) -> None:
    with pytest.raises(MeshkitError, match=r"needs [\d.]+ of [\d.]+ GiB a device; ") as refused:
        plan(model="llama3-405b", cluster=cluster, global_batch=60)
    said = re.search(r"(\d+) devices would do, (\d+) whole nodes of (\d+), and no fewer nodes", str(refused.value))
    assert said is not None, refused.value
    devices, nodes, size = map(int, said.groups())
    kind = cluster.partition("x")[2]
    assert (devices, size) == (nodes * per_node, per_node)
    assert plan(model="llama3-405b", cluster=f"{devices}x{kind}", global_batch=60).best
    with pytest.raises(MeshkitError, match="fits no layout|no legal mesh"):
        plan(model="llama3-405b", cluster=f"{devices - per_node}x{kind}", global_batch=60)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "give one of them"),
        ({"model": "llama3-70c"}, "llama3-70b"),
        ({"model": "llama3-8b", "profile": "megatrom"}, "megatron"),
        ({"model": "gpt2", "sequence": 4096}, "exceeds the context"),
        ({"model": "gpt2", "global_batch": 0}, "at least 1"),
        ({"model": "llama3-8b", "mesh": MeshShape(data=3)}, "mesh"),
        ({"config": {"model.family": "mine:Model"}}, "mine:Model: the planner counts the work of llama, "),
        ({"model": "gpt2", "cluster": "13xh100", "nodes_of": 13, "sequence": 1024, "global_batch": 5}, "no legal mesh"),
    ],
)
def test_what_cannot_be_planned_says_why(options: dict, words: str) -> None:
    with pytest.raises(MeshkitError, match=words):
        plan(**options)


def test_every_layout_tried_is_legal_and_tried_once() -> None:
    job = Job("llama3-8b", sizes(ModelConfig(preset="llama3-8b")), 64, 4096)
    tried = list(layouts(job, 16))
    assert len(set(map(str, tried))) == len(tried)
    assert all(legal(job, layout) for layout in tried[::7])
    assert not legal(job, Layout(MeshShape(data=2, tensor=8, pipe=1), 3, 8))


def test_thousands_of_devices() -> None:
    found = plan(model="llama3-405b", cluster="16384xh100", global_batch=4096, sequence=8192)
    assert found.best[0].layout.mesh.devices == 16384
    assert found.best[0].layout.mesh.tensor <= 8


def test_no_search_builds_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of uneven stages and microbatches would take minutes: their time comes from the builders' ticks."""
    monkeypatch.setattr(builders, "from_ticks", None)
    found = plan(model="llama3-405b", cluster="1680xh100", global_batch=1680)
    assert len({(row.layout.mesh.pipe, row.layout.microbatches) for row in found.best}) > 100


def test_a_configs_own_mesh_is_ranked() -> None:
    config = {"model.preset": "llama3-8b", "data.batch": 64, "data.sequence": 4096, "mesh.tensor": 2, "mesh.pipe": 2}
    found = plan(config, "8xh100")
    assert found.asked == MeshShape(data=2, tensor=2, pipe=2)
    assert found.own_rank is not None
    row = found.best[found.own_rank - 1].layout
    assert (row.mesh, row.schedule, row.microbatches) == (found.asked, "1f1b", RunConfig().pipeline.microbatches)


def test_another_batch_keeps_a_configs_own_layout_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model.preset": "llama3-8b", "data.batch": 64, "data.sequence": 4096, "mesh.tensor": 2, "mesh.pipe": 2}
    config["pipeline.microbatches"] = 8
    found = plan(config, "8xh100", global_batch=32)
    assert found.own_rank is not None
    row = found.best[found.own_rank - 1].layout
    assert (row.microbatches, row.microbatch) == (8, 2)
    without = plan(config, "8xh100", global_batch=20)
    assert without.own is None
    assert without.asked == MeshShape(data=2, tensor=2, pipe=2)
    show(without, 1, None)
    assert "the config's own layout is not ranked: data.batch = 20 does not split" in capsys.readouterr().out


def test_a_config_whose_own_layout_does_not_fit_is_explained_by_its_mesh(capsys: pytest.CaptureFixture[str]) -> None:
    """The row is then the fastest of the config's mesh, and it is said that it is another layout."""
    config = {"model.preset": "llama3-8b", "data.batch": 512, "data.sequence": 4096, "mesh.data": 8, "zero": 1}
    found = plan(config | {"recompute": "none", "pipeline.microbatches": 8}, "8xh100")
    assert found.own is not None
    assert found.own_rank is None
    row = chosen(found, None)
    assert row is not None
    assert row[0] == found.rank_of(MeshShape(data=8))
    show(found, 1, None)
    out = capsys.readouterr().out
    assert "the config's own is not among the rows: D=8 T=1 P=1, 8 microbatches of 8" in out
    assert ", the config's own:" not in out


def test_capitals_in_names_are_read() -> None:
    small, capital = plan(model="llama3-8b", cluster="8xh100"), plan(model="Llama3-8B", cluster="8xH100")
    assert capital.best[0].layout == small.best[0].layout
    assert capital.cluster == small.cluster


def test_what_no_estimate_knows_is_named_not_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model.preset": "llama3-8b", "data.batch": 64, "data.sequence": 4096, "optimizer.name": "lion"}
    found = plan(config | {"pipeline.schedule": "gpipe", "pipeline.overlap": True}, "8xh100")
    assert found.ignored == ("optimizer.name = lion",)
    show(found, 1, None)
    assert "no estimate knows optimizer.name = lion" in capsys.readouterr().out
    assert plan({"model.preset": "gpt2", "data.batch": 8}, "8xh100").ignored == ()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0"),
        (31.0593, "31.06 s"),
        (1234.5, "1,234.50 s"),
        (1.30449, "1.304 s"),
        (0.99996, "1.000 s"),
        (0.4301, "430.1 ms"),
        (0.0081, "8.100 ms"),
        (0.00099996, "1.000 ms"),
        (0.000095, "95 µs"),
        (7e-9, "0.007 µs"),
        (-1.4e-17, "0"),
        (-0.0411, "-41.1 ms"),
    ],
)
def test_times_have_few_digits_and_a_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_no_table_prints_bare_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    command = "plan --model gpt2 --cluster 8xh100 --sequence 1024 --top 2 --explain 2"
    assert main(command.split()) == 0
    out = capsys.readouterr().out
    assert " ms" in out
    assert " µs" in out
    assert not re.search(r"\d\.\d{4,}|\de-\d", out)


# --- the command ----------------------------------------------------------------------------------


def test_the_command_prints_tables_and_the_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    command = "plan --model llama3-70b --cluster 64xh100 --top 3 --mesh 8,4,2"
    assert main(command.split()) == 0
    out = capsys.readouterr().out
    for words in ("tokens/s", "MFU", "bubble", "working copy", "GiB", "D=8 T=4 P=2", "behind row 1", "η = "):
        assert words in out, words


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "llama3-8b", "--cluster", "8xh100", "--top", "2", "--explain", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["layouts"]) == 2
    row = report["layouts"][0]
    assert row["step_seconds"] == pytest.approx(sum(row["seconds"].values()))
    assert report["explained"]["rank"] == 2
    assert sum(term["seconds"] for term in report["explained"]["terms"]) == pytest.approx(
        report["explained"]["step_seconds"]
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--model llama3-8b --top 0", "--top 0"),
        ("--model llama3-8b --explain 999999", "rows go from 1"),
        ("--model llama3-8b --mesh 8,4", "three numbers"),
        ("--model llama3-8b --cluster 9xh100", "do not fill nodes"),
        ("--model llama3-8b --cluster 8xh100 --nodes-of 0", "--nodes-of 0: a node has at least 1 device"),
    ],
)
def test_a_users_mistake_is_a_sentence(options: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *options.split()]) == 1
    assert words in capsys.readouterr().err


def test_the_estimate_of_a_row_is_the_estimate_of_its_layout(book) -> None:
    first = book.best[0]
    assert estimate(first.job, first.layout, first.cluster).step == pytest.approx(first.step)
