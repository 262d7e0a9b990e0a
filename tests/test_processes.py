"""Two real processes of four simulated devices each train as one process of eight does."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import meshkit
from meshkit import distributed
from meshkit.errors import MeshkitError

PROGRAM = "import sys; from meshkit.cli import main; sys.exit(main())"
SECONDS = 120
CONFIG = """
steps = 5
precision = "float32"
log_every = 1
evaluate_every = 3
sample_tokens = 8
mesh = {{ data = 2, tensor = 2, pipe = 2 }}
pipeline = {{ microbatches = 2 }}
model = {{ layers = 4, width = 16, heads = 2, kv_heads = 2, mlp_width = 32 }}
optimizer = {{ learning_rate = 1e-2 }}

[data]
text = ["{text}"]
sequence = 16
batch = 8
"""


@dataclasses.dataclass
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config whose text no process has prepared yet."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} and {n + 1} make {2 * n + 1}.\n" for n in range(300)))
    path = tmp_path / "run.toml"
    path.write_text(CONFIG.format(text=text))
    return path


def two_processes(folder: Path, *words: str) -> list[Done]:
    """`meshkit WORDS` as process 0 and 1 of two, both with `folder` as the working directory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    shared = os.environ | {
        "JAX_NUM_CPU_DEVICES": "4",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_ENABLE_COMPILATION_CACHE": "0",
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": "2",
    }
    children = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=shared | {"JAX_PROCESS_ID": str(number)},
        )
        for number in range(2)
    ]
    try:
        texts = [child.communicate(timeout=SECONDS) for child in children]
    finally:
        for child in children:
            child.kill()
    return [Done(child.returncode, *text) for child, text in zip(children, texts, strict=True)]


@pytest.mark.parametrize("shape", [(2, 2, 2), (2, 1, 4)])
def test_two_processes_train_as_one(shape: tuple[int, int, int], config: Path, tmp_path: Path) -> None:
    mesh = dict(zip(("data", "tensor", "pipe"), shape, strict=True))
    words = [word for axis, size in mesh.items() for word in (f"--mesh.{axis}", str(size))]
    first, second = two_processes(tmp_path, "train", str(config), *words)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    alone = meshkit.train(config, mesh=mesh, run_dir=str(tmp_path / "alone"))

    records = [json.loads(line) for line in (tmp_path / "runs" / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [set(record) for record in records] == [set(record) for record in alone.history]
    for record, expected in zip(records, alone.history, strict=True):
        for name in set(record) - {"tokens_per_second"}:
            np.testing.assert_allclose(record[name], expected[name], rtol=1e-6, err_msg=name)

    # One screen and one folder: those of process 0.
    assert "step 5/5" in first.out
    assert alone.summary["sample"].splitlines()[-1] in first.out
    # Gloo prints from threads of its own, at times two lines in one.
    assert [
        line for line in second.out.splitlines() if line and "peer ranks" not in line and "[Gloo]" not in line
    ] == []
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run"]
    assert len(list((tmp_path / "runs" / "run").glob("events.out.tfevents.*"))) == 1


def test_a_folder_that_cannot_be_made_stops_all(config: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    first, second = two_processes(tmp_path, "train", str(config), "--run_dir", "file/run")
    assert (first.code, second.code) == (1, 1), first.err + second.err
    assert "run_dir = 'file/run': cannot be written (Not a directory)" in first.err
    assert "run_dir = 'file/run': cannot be written (see the message of process 0)" in second.err


# --- the environment ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"JAX_NUM_PROCESSES": "2"},
            "JAX_NUM_PROCESSES is set in the environment and JAX_COORDINATOR_ADDRESS and JAX_PROCESS_ID are not",
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "here:1", "JAX_PROCESS_ID": "0"},
            "JAX_COORDINATOR_ADDRESS and JAX_PROCESS_ID are set in the environment and JAX_NUM_PROCESSES is not",
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "here:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"},
            "JAX_NUM_PROCESSES = '2' and JAX_PROCESS_ID = '2': .* numbers them from 0",
        ),
        (
            {"JAX_COORDINATOR_ADDRESS": "here:1", "JAX_NUM_PROCESSES": "two", "JAX_PROCESS_ID": "0"},
            "JAX_NUM_PROCESSES = 'two'",
        ),
    ],
)
def test_variables_that_do_not_go_together(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MeshkitError, match=message):
        distributed.start()


@pytest.mark.parametrize(
    ("variables", "joined"),
    [
        ({}, None),
        ({"SLURM_NTASKS": "1"}, None),
        ({"SLURM_NTASKS": "4"}, {}),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, {}),
        ({"JAX_COORDINATOR_ADDRESS": "here:1", "JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, None),
        (
            # What is set by hand counts, whatever else is set around it.
            {
                "SLURM_NTASKS": "1",
                "JAX_COORDINATOR_ADDRESS": "here:1",
                "JAX_NUM_PROCESSES": "2",
                "JAX_PROCESS_ID": "1",
            },
            {"coordinator_address": "here:1", "num_processes": 2, "process_id": 1},
        ),
    ],
)
def test_who_is_joined(
    variables: dict[str, str], joined: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **arguments: calls.append(arguments))
    for name in (*distributed.BY_HAND, *distributed.LAUNCHERS):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    distributed.start()
    heartbeat = {"heartbeat_timeout_seconds": distributed.HEARTBEAT_SECONDS}
    assert calls == ([] if joined is None else [joined | heartbeat])
