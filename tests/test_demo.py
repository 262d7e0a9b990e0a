"""The demonstration equals NumPy at every mesh, says what devices really held, and can fail."""

import dataclasses
import io
import json

import jax
import pytest
from rich.console import Console

from meshkit import demo
from meshkit.errors import MeshkitError
from meshkit.simulate import simulate_cpu_devices


@pytest.fixture(scope="module")
def shown() -> demo.Demo:
    return demo.run_demo()


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(("data", "tensor", "microbatches"), [(2, 2, 4), (4, 1, 1), (1, 4, 2), (2, 2, 8)])
def test_every_cut_equals_numpy(data: int, tensor: int, microbatches: int, x64: None) -> None:
    for case in demo.cases(data, tensor, microbatches, seed=1):
        assert demo.run_case(case).max_abs_error <= 1e-12, case.cut


@pytest.mark.parametrize("index", range(6))
def test_a_wrong_result_fails(index: int, x64: None) -> None:
    case = demo.cases()[index]
    wrong = dataclasses.replace(case, expected=jax.tree.map(lambda y: y + 1e-11, case.expected))
    row = demo.run_case(wrong)
    assert not row.ok
    assert not demo.Demo([row]).ok


def test_nan_is_no_equality() -> None:
    assert not demo.Row("cut", "mesh", float("nan"), {}, []).ok


def test_collectives_are_those_of_the_axes(shown: demo.Demo) -> None:
    found = {row.cut.partition(":")[0]: row.collectives for row in shown.rows}
    assert found == {
        "batch": {},
        "gradient": {"all-reduce": 1},
        "columns": {},
        "rows": {"all-reduce": 1},
        "stages": {"collective-permute": 4},
        "all three together": {"all-reduce": 4, "collective-permute": 4},
    }


def test_held_slices_are_those_of_the_devices(shown: demo.Demo) -> None:
    held = {row.cut.partition(":")[0]: row.held for row in shown.rows}
    assert held["batch"][1] == "data 1: x[8:16, :] 8×32  w1[:, :] 64×32  w2[:, :] 16×64"
    assert held["columns"][1] == "tensor 1: x[:, :] 16×32  w1[:, :] 64×32  w2[8:16, :] 8×64"
    assert held["rows"][0] == "tensor 0: x[:, :] 16×32  w1[0:32, :] 32×32  w2[:, 0:32] 16×32"
    assert held["stages"][1] == "pipe 1: x[:, :] 16×32  w[1:2, :, :] 1×64×32"
    assert len(set(held["all three together"])) == 8


def test_report_reads_as_table_and_as_json(shown: demo.Demo) -> None:
    console = Console(file=io.StringIO(), width=160)
    shown.print(console)
    assert "Every cut equals plain NumPy" in console.file.getvalue()
    report = json.loads(shown.to_json())
    assert report["ok"] is True
    assert [row["cut"] for row in report["rows"]] == [row.cut for row in shown.rows]


def test_simulating_again_with_the_same_count_changes_nothing() -> None:
    count = len(jax.devices())
    simulate_cpu_devices(count)
    assert len(jax.devices()) == count


def test_simulating_another_count_says_how_to_mend_it() -> None:
    count = len(jax.devices())
    with pytest.raises(MeshkitError, match=rf"{count} cpu devices.*devices = {count}.*JAX_NUM_CPU_DEVICES=3"):
        simulate_cpu_devices(3)
