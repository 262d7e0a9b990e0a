"""Real processes that are killed, stopped and told to end: every run goes on, and its losses are those of one that
nothing interrupted.

Twenty kills at random moments: python -m tests.bench_kills
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from etils import epath

from meshkit.checkpoint import seal
from meshkit.cli import main
from meshkit.distributed.processes import HEARTBEAT_SECONDS
from meshkit.errors import RESTART, SAVED
from meshkit.launch.supervisor import LOST_SECONDS
from tests.launched import STEPS, Launched, write_config
from tests.small_run import curve, logged, saved

pytestmark = pytest.mark.timeout(900)  # several starts of several processes each


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def whole(config: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The curve of a run that nothing interrupted."""
    run = Launched(config, tmp_path_factory.mktemp("whole") / "run")
    assert run.finish() == 0, run.out
    assert [record["step"] for record in logged(run.run_dir)] == list(range(1, STEPS + 1))
    return curve(logged(run.run_dir))


def says(text: str) -> Callable[[str], bool]:
    """Whether a line has `text` in it."""
    return lambda line: text in line


def test_killed_processes_are_noticed_and_the_run_goes_on(
    config: Path, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    run = Launched(config, tmp_path / "run", "--restarts", "2")
    for victim, step in ((0, 10), (1, 18)):
        run.until_step(step)
        before = saved(run.run_dir)
        assert before
        killed = run.signal(victim, signal.SIGKILL)
        run.until(says(f"process {victim} ended by SIGKILL"))
        print(f"process {victim}: noticed after {time.monotonic() - killed:.2f} s")
        assert time.monotonic() - killed < 10
        run.until(lambda line: line.startswith("launch: restart "))
        assert set(before) <= set(saved(run.run_dir)), "a checkpoint is lost"
        run.until(lambda line: re.match(r"goes on after step \d+ from", line) is not None)
    assert run.finish() == 0, run.out
    assert curve(logged(run.run_dir)) == whole
    assert saved(run.run_dir) == list(range(4, STEPS + 1, 4))
    for step in saved(run.run_dir):
        assert seal.damage(epath.Path(run.run_dir / "checkpoints" / str(step))) == []


def test_a_sigterm_to_one_stops_all_at_one_step_and_elastic_goes_on_with_fewer(
    config: Path, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    run = Launched(config, tmp_path / "run", "--restarts", "1", "--elastic", "min=2")
    run.until_step(6)
    run.signal(1, signal.SIGTERM)
    line = run.until(lambda line: "ended with exit code" in line)
    assert f"exit code {SAVED}" in line
    run.until(lambda line: f"the others: 1 with exit code {SAVED}" in line)
    run.until(says("it goes on, which uses up no restart"))
    (agreed,) = [step for step in saved(run.run_dir) if step % 4] or [saved(run.run_dir)[-1]]
    assert logged(run.run_dir)[-1]["step"] == agreed < STEPS
    run.until(lambda line: f"goes on after step {agreed} from" in line)

    run.until_step(agreed + 4)
    assert curve(logged(run.run_dir))[:agreed] == whole[:agreed]
    run.signal(1, signal.SIGKILL)
    run.until(lambda line: "1 process, mesh data 1 × tensor 1 × pipe 2" in line)
    run.until(lambda line: "1 replica × 4 microbatches × 4 samples" in line)  # the global batch is what it was
    run.until_step(agreed + 6)
    run.child.terminate()
    assert run.finish() == 0, run.out
    records = logged(run.run_dir)
    assert saved(run.run_dir)[-1] == records[-1]["step"] < STEPS
    for record, expected in zip(records, whole, strict=False):
        np.testing.assert_allclose(record["loss"], expected["loss"], rtol=1e-5)


def test_a_stopped_process_ends_the_run(config: Path, tmp_path: Path) -> None:
    run = Launched(config, tmp_path / "run")
    run.until_step(5)
    stopped = run.signal(1, signal.SIGSTOP)
    code, seconds = run.finish(), time.monotonic() - stopped
    print(f"ended after {seconds:.1f} s")
    assert code in (RESTART, 128 + signal.SIGABRT), run.out
    assert "SIGKILL for process 1" in run.out
    assert seconds < 2 * HEARTBEAT_SECONDS + LOST_SECONDS + 5


HANGING = """
import time
import numpy as np

class Hanging:
    '''Data whose file system stops answering.'''

    def __init__(self, table, split):
        self.left = 70 if split == "train" else 1000

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        self.left -= 1
        if self.left < 0:
            time.sleep(3600)
        ids = np.arange(index, index + 17) % 97
        return dict(tokens=ids[:-1], targets=ids[1:], weights=np.ones(16))
"""


def test_a_run_that_hangs_says_where_and_ends(config: Path, tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    own = tmp_path / "run.toml"
    own.write_text(re.sub(r"text = .*", 'dataset = "hanging:Hanging"', config.read_text()))
    run = Launched(own, tmp_path / "run", "--model.vocab", "97", MESHKIT_WATCHDOG="8", PYTHONPATH=str(tmp_path))
    assert run.finish() == RESTART, run.out
    assert "hangs: no progress in " in run.out
    [file, *_] = sorted(run.run_dir.glob("hang-*.txt"))
    said = file.read_text()
    assert "last action completed: handing step " in said
    assert "since then: reading the batch of step " in said
    assert "__getitem__" in said, "the stack shows the line that waits"
    assert "Traceback" not in run.out


def test_processes_that_differ_are_named(config: Path, tmp_path: Path) -> None:
    """Two processes started by hand, with another learning rate and flags of XLA in one of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "meshkit", "train", str(config), "--devices", "2", "--run_dir", f"{tmp_path}/run"]
    shared = os.environ | {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
    children = [
        subprocess.Popen(
            [*command, "--optimizer.learning_rate", rate],
            stderr=subprocess.PIPE,
            text=True,
            env=shared | {"JAX_PROCESS_ID": str(number), "XLA_FLAGS": flags},
        )
        for number, (rate, flags) in enumerate((("0.01", ""), ("0.02", "--xla_cpu_enable_fast_math=false")))
    ]
    first, second = [child.communicate(timeout=120)[1] for child in children]
    assert [child.returncode for child in children] == [1, 1], first + second
    host = os.uname().nodename
    assert "error: the processes do not agree: " in first
    assert f"optimizer.learning_rate is 0.01 in process 0 (host {host}) and 0.02 in process 1 (host {host})" in first
    assert f"XLA_FLAGS is unset in process 0 (host {host}) and --xla_cpu_enable_fast_math=false in process 1" in first
    assert "see the message of process 0" in second
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--restarts", "-1"], "--restarts -1: it is at least 0"),
        (["--grace", "-1"], "--grace -1: it is at least 0"),
        (["--processes", "0"], "--processes 0: it is at least 1"),
        (["--devices-per-process", "0"], "--devices-per-process 0: it is at least 1"),
        (["--processes", "3"], "4 devices do not split evenly over them"),
        (
            ["--processes", "2", "--elastic", "min=400"],
            "--elastic min=400: 2 processes of 2 have 4 devices: choose from 1 to 4",
        ),
    ],
)
def test_mistakes_say_what_to_mend(
    words: list[str], said: str, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "local", str(config), "--run_dir", str(tmp_path / "run"), *words]) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
