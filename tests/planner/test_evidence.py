"""The report: figures of merit on tables whose answers are known, and on tables that are wrong."""

import dataclasses
import json
from pathlib import Path

import pytest

from meshkit.errors import MeshkitError
from meshkit.planner.evidence import fit
from meshkit.planner.evidence.cases import case, llama
from meshkit.planner.evidence.judge import Predicted, judge
from meshkit.planner.evidence.report import main, report
from meshkit.planner.evidence.tables import TABLES

SIMUMAX = "model,layers_reduced,hidden,heads,kv_heads,ffn,vocab,seq,tp,cp,pp,dp,ep,mbs,gbs_derived,real_ms,"
SIMUMAX += "real_alloc_GiB,alloc_first_stage_GiB,alloc_last_stage_GiB\n"
ROWS = [
    "llama3-70b,12,8192,64,8,28672,128256,4096,4,1,1,2,1,1,8,409.8,39.07,39.07,39.07\n",
    "llama3-70b,12,8192,64,8,28672,128256,4096,8,1,1,1,1,1,4,280.9,28.29,28.29,28.29\n",
    "llama3-70b,12,8192,64,8,28672,128256,4096,4,1,1,2,1,1,16,765.6,39.07,39.07,39.07\n",
    "llama3-70b,12,8192,64,8,28672,128256,4096,2,4,1,1,1,1,4,1758.0,68.2,68.2,68.2\n",
]


def folder(tmp_path: Path) -> Path:
    (tmp_path / "simumax_b200.csv").write_text(SIMUMAX + "".join(ROWS))
    return tmp_path


def rows(seconds: list[float], exact: bool = False, out_of_memory: list[bool] | None = None) -> list[Predicted]:
    """Three layouts of a model on 8 GPUs, measured as told, or as predicted times what is told."""
    found = []
    for k, factor in enumerate(seconds):
        shape = llama((8, 4096, 32, 14336, 128256, 4096))
        oom = None if out_of_memory is None else out_of_memory[k]
        made = case(
            "t", k, "m", shape, "h100", (8 >> k, 1 << k, 1), 64, 4096, 1, "megatron", seconds=1.0, out_of_memory=oom
        )
        assert made is not None
        estimate = made.predicted()
        measured = factor * estimate.step if exact else factor
        found.append(Predicted(dataclasses.replace(made, seconds=measured), estimate))
    return found


def test_a_perfect_prediction_has_no_error_no_regret_and_the_right_order() -> None:
    found = judge("t", 3, rows([1.0, 1.0, 1.0], exact=True))
    assert found.time is not None
    assert found.time.median == pytest.approx(0)
    assert found.spearman == pytest.approx(1)
    assert found.regret == pytest.approx(0)


def test_errors_are_of_predicted_over_measured() -> None:
    found = judge("t", 3, rows([0.5, 2.0, 1.0], exact=True))  # predicted is 2, 0.5 and 1 times the measured
    assert found.time is not None
    assert found.time.median == pytest.approx(0.5)
    assert found.time.mean == pytest.approx(0.5)
    assert found.time.bias == pytest.approx(1.0)


def test_regret_is_what_the_first_choice_loses() -> None:
    predicted = rows([1.0, 1.0, 1.0])
    first = min(range(3), key=lambda k: predicted[k].estimate.step)
    measured = [1.0, 1.0, 1.0]
    measured[first] = 1.25
    assert judge("t", 3, rows(measured)).regret == pytest.approx(1 - 1 / 1.25)


def test_out_of_memory_that_is_not_foreseen_costs_recall() -> None:
    found = judge("t", 3, rows([1.0, 1.0, 1.0], out_of_memory=[True, False, False]))
    fits = [row.estimate.fits for row in rows([1.0, 1.0, 1.0])]
    assert fits == [True, True, True]
    assert (found.precision, found.recall) == (None, 0)


def test_a_folder_is_reported_and_plotted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main([str(folder(tmp_path)), "--out", str(out), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    judged = {found["table"]: found for found in shown}
    found = judged["simumax_b200"]
    assert (found["rows"], found["covered"]) == (4, 3)
    assert found["memory"]["median"] < 0.03
    assert found["time"]["median"] < 0.15
    assert (out / "simumax_b200.png").stat().st_size > 1000
    assert json.loads((out / "report.json").read_text()) == shown
    assert judged["meshkit_compiled"]["covered"] == judged["meshkit_compiled"]["rows"] >= 12
    assert judged["meshkit_compiled"]["memory"]["median"] <= 0.03


def test_a_folder_without_tables_or_a_table_without_columns_says_so(tmp_path: Path) -> None:
    with pytest.raises(MeshkitError, match="none of the tables"):
        report(tmp_path, None)
    (tmp_path / "simumax_b200.csv").write_text("model,tp\nx,1\n")
    with pytest.raises(MeshkitError, match="no column"):
        report(tmp_path, None)


def test_a_table_of_what_ran_out_of_memory_is_judged_without_a_picture(tmp_path: Path) -> None:
    columns = "model,layers,hidden,heads,ffn,seq,vocab_inferred,gbs_inferred,dp_derived,tp,pp,mbs,sequence_parallel,"
    columns += "recompute,kernel,status,step_time_s\n"
    row = "13B,40,5120,40,13824,2048,128000,2048,64,1,1,8,False,disabled,torch,OOM Error,\n"
    table = tmp_path / "hagemann_layouts.csv"
    table.write_text(columns + row)
    [_, *_, found] = report(tmp_path, tmp_path)
    assert (found.covered, found.time, found.recall) == (1, None, 1)
    assert not (tmp_path / "hagemann_layouts.png").exists()
    table.write_text(columns)
    assert report(tmp_path, tmp_path)[-1].covered == 0
    table.write_text((columns + row).replace("dp_derived", "replicas"))
    with pytest.raises(MeshkitError, match="no column dp_derived"):
        report(tmp_path, None)
    table.write_text(columns + row.replace("5120", "many"))
    with pytest.raises(MeshkitError, match="'many'"):
        report(tmp_path, None)


def test_every_table_has_a_reader_that_checks_its_columns(tmp_path: Path) -> None:
    for name, reader in TABLES.items():
        path = tmp_path / f"{name}.csv"
        path.write_text("nothing\n1\n")
        with pytest.raises(MeshkitError, match="no column"):
            list(reader(path))


def test_a_fit_finds_the_value_that_made_its_data(tmp_path: Path) -> None:
    cases = [c for c in TABLES["simumax_b200"](folder(tmp_path) / "simumax_b200.csv") if c is not None]
    made = [
        c.__class__(**{**c.__dict__, "seconds": fit.time(c, {"blackwell matmul": 0.6}) * (c.seconds or 1)})
        for c in cases
    ]
    assert fit.fitted(made, {"blackwell matmul": 0.4})["blackwell matmul"] == pytest.approx(0.6, rel=1e-3)
    assert {fit.half(c) for c in cases} <= {0, 1}
