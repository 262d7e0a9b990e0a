"""`meshkit plan --check`, with a compiler that says what the test wants; the real one is in test_compile.py."""

import json
import re
from collections.abc import Callable

import pytest

from meshkit import config, plan
from meshkit.cli import main
from meshkit.config import RunConfig
from meshkit.errors import MeshkitError
from meshkit.mesh import resolve
from meshkit.models.presets import check_cut
from meshkit.pipeline import builders
from meshkit.pipeline.placement import place
from meshkit.planner import check as checks
from meshkit.planner.check import check, config_of
from meshkit.planner.cluster import Cluster
from meshkit.planner.compile_report import GIB, Memory, Report
from meshkit.planner.search import Plan

MODEL = {"model": {"preset": "llama3-8b"}}


@pytest.fixture(scope="module")
def found() -> Plan:
    return plan(model="llama3-8b", cluster="16xh100", global_batch=64, sequence=4096)


def compiler(peaks: list[float]) -> Callable[[RunConfig, Cluster], Report]:
    """A compiler whose programs need these GiB, one after the other."""
    left = iter(peaks)

    def compile_step(run: RunConfig, cluster: Cluster) -> Report:
        memory = Memory(1, 0, int(next(left) * GIB) - 1, 0, 80 * GIB)
        return Report(str(cluster), "cuda", run, "0.0", 7.0, memory, None, [], [])

    return compile_step


def test_every_row_is_a_config_that_can_run(found: Plan) -> None:
    base = config.load(MODEL)
    for row in found.best[:: max(1, len(found.best) // 200)]:
        run = config_of(row, base)
        shape = resolve(run.mesh, found.cluster.devices)
        check_cut(found.job.sizes, shape, run.data.sequence)
        assert run.microbatch_size(shape.data) == row.layout.microbatch
        builders.from_config(run.pipeline, shape.pipe)
        place(found.job.sizes.layers, shape.pipe, run.pipeline.virtual)
        assert (run.zero, run.recompute) == (row.layout.zero, row.layout.recompute)


def test_memory_is_corrected_and_what_does_not_fit_goes(found: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "compile_step", compiler([60, 79, 70]))
    checked, rows = check(found, config.load(MODEL), 3)
    assert [row.peak for row in rows] == [60 * GIB, 79 * GIB, 70 * GIB]
    assert [row.report.ok for row in rows] == [True, False, True]
    assert [best.layout for best in checked.best[:3]] == [found.best[k].layout for k in (0, 2, 3)]
    assert checked.best[0].peak_memory == pytest.approx(60 * GIB)
    assert checked.best[0].seconds == found.best[0].seconds
    assert checked.best[2] == found.best[3]
    assert len(checked.best) == len(found.best) - 1


def test_the_command_says_which_rows_were_compiled(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["plan", "--model", "llama3-8b", "--cluster", "16xh100", "--global-batch", "64", "--check", "2"]
    monkeypatch.setattr(checks, "compile_step", compiler([60, 79]))
    assert main([*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["checked"]
    assert [(row["rank"], row["peak_memory"], row["fits"]) for row in rows] == [
        (1, 60 * GIB, True),
        (2, 79 * GIB, False),
    ]
    monkeypatch.setattr(checks, "compile_step", compiler([60, 79]))
    assert main(command) == 0
    assert re.search(r"planned row 2, D=.*79\.00 GiB a GPU by XLA, .*it does NOT fit", capsys.readouterr().out)


def test_what_cannot_be_checked_is_an_error(found: Plan) -> None:
    with pytest.raises(MeshkitError, match="--check 0: it is at least 1"):
        check(found, config.load(MODEL), 0)
    other = plan(model="llama3-8b", cluster="16xh100", global_batch=64, sequence=4096, profile="megatron")
    with pytest.raises(MeshkitError, match="what meshkit runs, not megatron: leave out --profile"):
        check(other, config.load(MODEL), 1)
