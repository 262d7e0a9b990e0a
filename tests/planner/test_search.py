"""`meshkit plan`: the worked cases, what it refuses, what it explains."""

import itertools
import json

import pytest

from meshkit import plan
from meshkit.cli import main
from meshkit.config import MeshShape, ModelConfig, RunConfig
from meshkit.errors import MeshkitError
from meshkit.models.presets import sizes
from meshkit.pipeline import builders
from meshkit.planner.command import show
from meshkit.planner.estimate import estimate
from meshkit.planner.explain import arithmetic, diagnose, neighbours
from meshkit.planner.layout import Job, Layout
from meshkit.planner.search import layouts, legal

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
    assert "lower T" in diagnosis.bound
    assert diagnosis.change is not None
    assert diagnosis.change.estimate.step < found.step
    assert diagnosis.change.estimate.fits


def test_the_arithmetic_adds_up_to_the_step(book) -> None:
    for found in book.best[:5]:
        assert sum(seconds for *_, seconds in arithmetic(found)) == pytest.approx(found.step)


def test_advice_on_data_traffic_shortens_it() -> None:
    """At zero 1 the only lower level lengthens it; the change that is named does not."""
    mesh = MeshShape(data=64, tensor=4, pipe=2)
    found = plan(model="llama3-70b", cluster="512xH100", mesh=mesh)
    row = found.best[(found.rank_of(mesh) or 0) - 1]
    diagnosis = diagnose(row)
    assert "communication-bound (data)" in diagnosis.bound
    [change] = [layout for what, layout in neighbours(row) if diagnosis.bound.endswith(f": {what}")]
    assert estimate(row.job, change, row.cluster).seconds["data"] < row.seconds["data"]


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


def test_more_devices_or_another_policy_for_what_does_not_fit() -> None:
    with pytest.raises(MeshkitError, match=r"needs [\d.]+ of 78.0 GiB a device; \d+ devices would do"):
        plan(model="llama3-405b", cluster="8xh100", global_batch=64)


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


def test_what_no_estimate_knows_is_named_not_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model.preset": "llama3-8b", "data.batch": 64, "data.sequence": 4096, "optimizer.name": "lion"}
    found = plan(config | {"pipeline.schedule": "gpipe", "pipeline.overlap": True}, "8xh100")
    assert found.ignored == ("optimizer.name = lion",)
    show(found, 1, None)
    assert "no estimate knows optimizer.name = lion" in capsys.readouterr().out
    assert plan({"model.preset": "gpt2", "data.batch": 8}, "8xh100").ignored == ()


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
