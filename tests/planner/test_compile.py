"""`meshkit compile`: a tiny model for 64 H100 through XLA's CUDA compiler, and every way that it may fail."""

import importlib.metadata
import importlib.util
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from meshkit import config
from meshkit.cli import main
from meshkit.errors import MeshkitError
from meshkit.planner import compile as compiler
from meshkit.planner.beside import Beside
from meshkit.planner.cluster import parse
from meshkit.planner.compile import compile_step
from meshkit.planner.compile_report import Memory, Report
from meshkit.planner.figures import Figures, Traffic, Work
from meshkit.planner.gpus import GPUS, gpu
from meshkit.planner.hardware import CATALOGUE

DATA, TENSOR, PIPE, MICROBATCHES, SEQUENCE = 8, 4, 2, 2, 256
WIDTH, HEADS, KV_HEADS, HEAD_DIM, MLP, VOCAB = 512, 8, 4, 64, 1024, 4096
LAYERS, ROWS = (1, 2), 2  # of each stage, and of its stacks
BFLOAT16, FLOAT32 = 2, 4

TINY: dict[str, Any] = {
    "mesh": {"data": DATA, "tensor": TENSOR, "pipe": PIPE},
    "pipeline": {"microbatches": MICROBATCHES},
    "model": {
        "preset": "tiny",
        "layers": sum(LAYERS),
        "width": WIDTH,
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "mlp_width": MLP,
        "vocab": VOCAB,
    },
    "data": {"batch": DATA * MICROBATCHES, "sequence": SEQUENCE},
}
TOML = f"""
mesh = {{ data = {DATA}, tensor = {TENSOR}, pipe = {PIPE} }}
pipeline = {{ microbatches = {MICROBATCHES} }}
data = {{ batch = {DATA * MICROBATCHES}, sequence = {SEQUENCE} }}
[model]
""" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in TINY["model"].items())

MATRICES = WIDTH * (2 * HEADS + 2 * KV_HEADS) * HEAD_DIM + 3 * WIDTH * MLP
DOWN = WIDTH * MLP
TABLES = 2 * VOCAB * WIDTH
HELD = ROWS * (MATRICES // TENSOR + 2 * WIDTH) + TABLES // (TENSOR * PIPE) + WIDTH
"""Parameters of one replica's GPU: norms are whole on each tensor peer, and the last one on each stage."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the command says of the tiny model, with its program's text."""
    folder = tmp_path_factory.mktemp("compile")
    (folder / "tiny.toml").write_text(TOML)
    program = "import sys; from meshkit.cli import main; sys.exit(main(sys.argv[1:]))"
    command = ["compile", "tiny.toml", "--cluster=64xh100", "--json", "--hlo", "program.txt"]
    done = subprocess.run([sys.executable, "-c", program, *command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) | {"text": (folder / "program.txt").read_text()}


def test_the_command_says_what_was_compiled(found: dict[str, Any]) -> None:
    assert found["ok"]
    assert found["cluster"] == "64 × h100, nodes of 8"
    assert found["layout"].startswith("data 8 × tensor 4 × pipe 2: 1f1b, microbatches 2, zero 1, recompute full")
    assert found["seconds"] > 0
    assert found["text"].startswith("HloModule")
    assert "num_partitions=64" in found["text"].splitlines()[0]
    assert found["figures"]["uncounted"] == {}


def test_arguments_are_the_state_and_the_batch(found: dict[str, Any]) -> None:
    weights_and_moments, counters = 3 * HELD // DATA * FLOAT32, 5 * 4
    batch = 3 * MICROBATCHES * SEQUENCE * 4
    memory = found["memory"]
    assert memory["arguments"] == weights_and_moments + counters + batch
    assert memory["results"] < memory["arguments"] / 1000, "the state is updated in place"
    assert memory["peak"] == memory["arguments"] + memory["results"] + memory["temporaries"]
    assert memory["fits"]


def flops(found: dict[str, Any], kind: str, *actions: str) -> list[float]:
    rows = [w["flops"] for w in found["figures"]["work"] if w["kind"] == kind and w["action"] in actions]
    return [sum(stage) for stage in zip(*rows, strict=True)]


def test_products_are_those_of_the_schedule(found: dict[str, Any]) -> None:
    """Full recompute: forward, twice again (once without its last product, which nobody reads), two gradients."""
    one = 2 * SEQUENCE * MICROBATCHES / TENSOR
    layers = [n * one * (5 * MATRICES - DOWN) for n in LAYERS]
    assert flops(found, "products", "forward", "backward") == layers
    assert flops(found, "products", "head") == [3 * one * VOCAB * WIDTH / PIPE] * PIPE


def test_flash_attention_is_counted_under_its_causal_mask(found: dict[str, Any]) -> None:
    forward = 2 * 2 * HEADS * HEAD_DIM * SEQUENCE * (SEQUENCE + 1) / 2 * MICROBATCHES / TENSOR
    assert flops(found, "attention", "forward") == [n * forward for n in LAYERS]
    assert flops(found, "attention", "backward") == [n * (2 + 5 / 2) * forward for n in LAYERS]


def exchanges(found: dict[str, Any], axis: str, kind: str) -> dict[str, Any]:
    [row] = [t for t in found["figures"]["traffic"] if (t["axis"], t["kind"]) == (axis, kind)]
    return row


def test_stages_hop_inside_a_node_both_ways_a_tick(found: dict[str, Any]) -> None:
    """XLA makes one exchange of the two."""
    ticks = MICROBATCHES + 2 * (PIPE - 1)
    hops = exchanges(found, "pipe", "collective-permute")
    assert hops["link"] == "in node"
    assert hops["times"] == [ticks] * PIPE
    assert hops["bytes"] == [2 * ticks * SEQUENCE * WIDTH * BFLOAT16 // TENSOR] * PIPE


def test_replicas_move_each_weight_and_gradient_once_between_nodes(found: dict[str, Any]) -> None:
    for kind, size in (("all-gather", BFLOAT16), ("reduce-scatter", FLOAT32)):
        row = exchanges(found, "data", kind)
        assert (row["link"], row["bytes"]) == ("between nodes", [HELD * size] * PIPE)


def test_tensor_peers_add_partial_sums_seven_times_a_layer(found: dict[str, Any]) -> None:
    """Twice in each forward but for what the second again does not need, and for both gradients of their inputs."""
    row = exchanges(found, "tensor", "reduce-scatter")
    assert row["link"] == "in node"
    one = MICROBATCHES * SEQUENCE * WIDTH * BFLOAT16
    assert row["bytes"][1] - row["bytes"][0] == (LAYERS[1] - LAYERS[0]) * (2 + 2 + 1 + 2) * one


def test_the_planner_stands_beside(found: dict[str, Any]) -> None:
    rows = {row["term"]: row for row in found["beside"]}
    assert rows["memory: arguments"]["xla"] == found["memory"]["arguments"]
    assert rows["memory: peak"]["xla"] == found["memory"]["peak"]
    assert abs(rows["attention"]["error"]) < 1e-9
    assert abs(rows["products of the head"]["error"]) < 1e-9
    assert {"memory: temporaries", "products of layers", "exchanges over tensor", "exchanges over data"} <= set(rows)


# --- GPUs -----------------------------------------------------------------------------------------


def test_gpus_are_those_of_the_catalogue() -> None:
    assert set(GPUS) <= set(CATALOGUE)
    for name, entry in GPUS.items():
        known = CATALOGUE[name]
        assert entry.memory == pytest.approx(known.memory, rel=0.08)
        assert entry.bandwidth == pytest.approx(known.bandwidth, rel=0.08)


def test_the_compiler_takes_every_gpu() -> None:
    program = """
import sys, jax, jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
from meshkit.planner.compile import cudnn_version
from meshkit.planner.gpus import GPUS
for name, gpu in GPUS.items():
    text = gpu.target_config(cudnn_version())
    device = topologies.get_topology_desc("", "cuda", target_config=text, topology="1x1x1").devices[0]
    x = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16, sharding=SingleDeviceSharding(device))
    jax.jit(lambda x: x @ x).lower(x).compile()
    print(name, device.device_kind)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [f"{name} {gpu.description}" for name, gpu in GPUS.items()]


def test_a_gpu_that_the_compiler_does_not_know_is_an_error() -> None:
    with pytest.raises(MeshkitError, match="cannot be told about 'mi300x'.*--backend cpu"):
        gpu("mi300x")


# --- without a compiler, and with one that fails --------------------------------------------------


def test_without_the_wheels_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MeshkitError, match=r'not installed.*pip install "meshkit\[compile\]"; --backend cpu'):
        compile_step(config.load(TINY), parse("64xh100"))


def test_without_cudnn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(MeshkitError, match=r'lacks nvidia-cudnn-cu1\d: pip install "meshkit\[compile\]"'):
        compile_step(config.load(TINY), parse("64xh100"))


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("import os; os.abort()", r"the compiler crashed \(SIGABRT\)"),
        ("import os; os.kill(os.getpid(), 9)", r"crashed \(SIGKILL\), as when this machine runs out of memory"),
        ("raise RuntimeError('what it says last')", "ended with exit code 1(.|\n)*RuntimeError: what it says last"),
        ("exit('I0000 00:00 a.cc:1] here I am\\nfails')", r"exit code 1\. Its last words:\n  fails$"),
        ("import time; time.sleep(600)", r"took more than 2 s and was stopped: give it more with --timeout"),
        ("exit('UNIMPLEMENTED: No PTX compilation provider is available.')", "it has no ptxas: pip install"),
        ("exit('INTERNAL: libdevice not found at ./libdevice.10.bc')", "it has no libdevice: pip install"),
        ("exit('FAILED_PRECONDITION: DNN library initialization failed.')", "it has no cuDNN: pip install"),
    ],
)
def test_a_child_that_fails_is_a_sentence(program: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "CHILD", [sys.executable, "-c", program])
    with pytest.raises(MeshkitError, match=sentence):
        compile_step(config.load(TINY), parse("64xh100"), "cpu", timeout=2)


def test_what_the_child_refuses_is_said_in_its_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(TOML)
    command = ["compile", str(path), "--cluster", "8xh100", "--backend", "cpu", "--mesh.data", "1"]
    assert main([*command, "--mesh.tensor", "8", "--mesh.pipe", "1"]) == 1
    assert "model.kv_heads = 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--cluster", "48xh100"], "mesh data 8 × tensor 4 × pipe 2 takes 64 devices and there are 48"),
        (["--cluster", "64xh1000"], "'h1000': not in the catalogue"),
        (["--cluster", "64xh100", "--hlo", "/no/such/folder/program.txt"], "--hlo /no/such/folder/program.txt: cannot"),
        (["--cluster", "64xh100", "--pipeline.microbatchs", "4"], "unknown key 'pipeline.microbatchs'"),
    ],
)
def test_mistakes_are_found_before_compiling(
    more: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "CHILD", [sys.executable, "-c", "import os; os.abort()"])
    path = tmp_path / "tiny.toml"
    path.write_text(TOML)
    assert main(["compile", str(path), *more]) == 1
    assert sentence in capsys.readouterr().err


def test_on_cpu_only_legality_is_known(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(TOML)
    small = ["--mesh.data", "2", "--mesh.tensor", "1", "--mesh.pipe", "1", "--data.batch", "4"]
    assert main(["compile", str(path), "--cluster", "2xmi300x", "--backend", "cpu", *small, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], said["memory"], said["figures"], said["beside"]) == (True, None, None, [])
    assert "only legality was checked" in said["notes"][-1]


# --- the report -----------------------------------------------------------------------------------


def report(temporaries: int) -> Report:
    gib = 2**30
    figures = Figures(
        [Work("forward", "products", [1e12, 3e12]), Work("forward", "attention", [1e12, 1e12])],
        [Traffic("tensor", "in node", "all-gather", [10, 20], [gib, 2 * gib])],
        {"my_solver": 2},
    )
    memory = Memory(10 * gib, 0, temporaries * gib, 0, 80 * gib, 2 * gib)
    rows = [Beside("memory: peak", "B", 30 * gib, 40 * gib)]
    return Report("64 × h100", "cuda", config.load(TINY), "0.0", 1.0, memory, figures, rows, ["a note"])


def printed(of: Report) -> str:
    console = Console(record=True, width=120, file=io.StringIO())
    of.print(console)
    return console.export_text()


def test_a_step_that_fits_says_what_jax_must_be_told() -> None:
    text = printed(report(58))
    assert "It fits: 10.0 GiB to spare." in text
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.85" in text
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in printed(report(40))


def test_a_step_that_does_not_fit_is_not_ok() -> None:
    of = report(69)
    assert not of.ok
    assert not json.loads(of.to_json())["ok"]
    assert "It does NOT fit: 1.0 GiB too much." in printed(of)


def test_the_report_shows_busiest_and_mean_stage_and_what_is_not_counted() -> None:
    text = printed(report(58))
    assert re.search(r"all +4\.0 +3\.0", text)
    assert "my_solver (×2)" in text
    assert "-25.0%" in text
    assert "a note" in text
