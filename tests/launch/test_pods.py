"""Pods of an elastic Job, as real supervisors on this machine that are killed, come late and come back.

What they supervise is a stand-in that says where it was started; with real training: the last test.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshkit.cli import main
from meshkit.errors import RESTART, SAVED
from meshkit.launch.channel import Channel
from tests.launched import QUICKLY, STEPS, write_config
from tests.small_run import logged

SETTLE = 1.0

PODS = """
import sys
from meshkit.cli import main
from meshkit.launch import channel, pod_job, pods

channel.BEAT_SECONDS, channel.SILENT_SECONDS, pods.LOOK_SECONDS = 0.2, 2.0, 0.3
pod_job.TRAIN = [sys.executable, sys.argv[1]]
sys.exit(main(sys.argv[2:]))
"""

STAND_IN = """
import json, os, pathlib, signal, sys, time

out = pathlib.Path(sys.argv[0]).parent
words = dict(word[2:].split("=") for word in sys.argv[2:] if word.startswith("--"))
mine = {"pod": os.environ["JOB_COMPLETION_INDEX"], "number": os.environ["JAX_PROCESS_ID"],
        "count": os.environ["JAX_NUM_PROCESSES"], "address": os.environ["JAX_COORDINATOR_ADDRESS"],
        "data": words["mesh.data"], "microbatches": words["pipeline.microbatches"]}
with (out / "started.jsonl").open("a") as file:
    file.write(json.dumps(mine) + "\\n")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(76))
while not (out / "code").exists():
    time.sleep(0.05)
time.sleep(0.2)
sys.exit(int((out / "code").read_text()))
"""

TRAINING = """
import os, sys
from meshkit.cli import main

del os.environ["JOB_COMPLETION_INDEX"]  # these pods share a host, and its loopback
sys.exit(main(["train", *sys.argv[1:]]))
"""


class Pods:
    """Supervisors of a Job of `count` pods of two devices each, data 1 × tensor 1 × pipe 2 on one."""

    def __init__(self, folder: Path, count: int, *words: str, program: str = STAND_IN) -> None:
        self.folder, self.children = folder, dict[int, subprocess.Popen[bytes]]()
        (folder / "pods.py").write_text(PODS)
        (folder / "program.py").write_text(program)
        port = os.getpid() % 100  # tests that run at once do not meet
        config = write_config(folder, data=count)
        self.command = [sys.executable, str(folder / "pods.py"), str(folder / "program.py")]
        self.command += ["launch", "pod", str(config), f"--nodes={count}", "--devices-per-node=2", "--least=1"]
        self.command += [f"--hosts=127.0.0.1:2{{}}{port:02}0", f"--settle={SETTLE}", "--restarts=3", *words]

    def start(self, *numbers: int) -> None:
        for number in numbers:
            env = os.environ | QUICKLY | {"JOB_COMPLETION_INDEX": str(number)}
            with (self.folder / f"pod-{number}.log").open("ab") as log:
                self.children[number] = subprocess.Popen(
                    self.command, env=env, stdout=log, stderr=log, start_new_session=True
                )

    def lose(self, number: int) -> None:
        """As when its node is gone: the supervisor, and what it supervises."""
        pid = self.children[number].pid
        own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for process in (pid, *map(int, own)):
            os.kill(process, signal.SIGKILL)
        self.children.pop(number).wait()

    @property
    def started(self) -> list[dict[str, Any]]:
        file = self.folder / "started.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def until_started(self, count: int) -> list[dict[str, Any]]:
        """Of all processes started so far the last ones, when there are `count`."""
        self.until(lambda: len(self.started) >= count)
        return self.started

    def until(self, is_it: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not is_it():
            assert time.monotonic() < end, self.said()
            time.sleep(0.05)

    def said(self, number: int | None = None) -> str:
        """Of one pod, or of all."""
        return "\n".join(
            file.read_text() for file in sorted(self.folder.glob(f"pod-{'*' if number is None else number}.log"))
        )

    def end(self, code: int) -> list[int]:
        """Let the processes end so; the exit codes of all pods."""
        (self.folder / "code").write_text(str(code))
        return [child.wait(timeout=60) for child in self.children.values()]


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Callable[..., Pods]]:
    made = []

    def make(*args: Any, **options: Any) -> Pods:
        made.append(Pods(tmp_path, *args, **options))
        return made[-1]

    yield make
    for each in made:
        for number in list(each.children):
            with contextlib.suppress(OSError):  # it has ended
                each.lose(number)


def test_pods_that_are_left_go_on_and_those_that_come_back_are_taken_in(pods: Callable[..., Pods]) -> None:
    job = pods(4)
    job.start(3, 1, 0, 2)
    first = job.until_started(4)
    assert {(s["pod"], s["number"]) for s in first} == {(f"{k}", f"{k}") for k in range(4)}
    assert {(s["count"], s["data"], s["microbatches"]) for s in first} == {("4", "4", "2")}
    assert len({s["address"] for s in first}) == 1

    job.lose(0)  # it leads; three are left, of which the batch of 16 takes two
    second = job.until_started(6)[4:]
    assert {(s["pod"], s["number"], s["count"]) for s in second} == {("1", "0", "2"), ("2", "1", "2")}
    assert {(s["data"], s["microbatches"]) for s in second} == {("2", "4")}, "the global batch is what it was"

    job.start(0)  # one node is not enough for a larger mesh than that of two … but all four are there again
    third = job.until_started(10)[6:]
    assert {(s["pod"], s["number"], s["count"]) for s in third} == {(f"{k}", f"{k}", "4") for k in range(4)}
    assert "4 pods are there: the run saves, and goes on with mesh data 4" in job.said(1)
    assert job.end(0) == [0] * 4
    assert "restart" not in job.said(0), "growing is no restart"


def test_half_of_the_pods_do_not_go_on(pods: Callable[..., Pods]) -> None:
    job = pods(4)
    job.start(0, 1, 2)
    job.until_started(2)  # of three, two
    job.lose(2)  # a spare, but two might not be all that are left
    job.until(lambda: "2 of 4 pods are there: a run needs more than half, 3" in job.said(0))
    job.start(3)
    assert {s["pod"] for s in job.until_started(4)[2:]} == {"0", "1"}
    assert job.end(0) == [0] * 3, "a spare ends with the others"


@pytest.mark.parametrize(("code", "restarts", "ends"), [(1, 0, 1), (RESTART, 3, 1)])
def test_a_run_that_fails_fails_the_job(pods: Callable[..., Pods], code: int, restarts: int, ends: int) -> None:
    """1: at once; what may go on when started again: after its restarts, so that the Job ends too."""
    job = pods(2)
    job.start(0, 1)
    job.until_started(2)
    assert job.end(code) == [ends] * 2
    assert len(job.started) == 2 * (1 + restarts)


def test_a_pod_that_is_told_to_end_ends_the_run_and_then_itself(pods: Callable[..., Pods]) -> None:
    """Which is no restart: none is allowed here."""
    job = pods(2, "--grace=0", "--restarts=0")
    job.start(0, 1)
    job.until_started(2)
    job.children[1].terminate()
    assert job.children.pop(1).wait(timeout=20) == SAVED
    job.until(lambda: "process 1 ended with exit code 76" in job.said(0))
    job.start(1)
    job.until_started(4)
    assert job.end(0) == [0] * 2


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        (["--hosts=a:1"], {}, "--hosts a:1: write the host and port of pod {}, as NAME-{}.NAME:8476"),
        (["--hosts=a-{}.a:1"], {}, "JOB_COMPLETION_INDEX is None, not a number under 4"),
        (["--hosts=a-{}.a:1"], {"JOB_COMPLETION_INDEX": "4"}, "JOB_COMPLETION_INDEX is 4, not a number under 4"),
    ],
)
def test_mistakes_say_what_to_mend(
    words: list[str],
    env: dict[str, str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JOB_COMPLETION_INDEX", raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    command = ["launch", "pod", str(write_config(tmp_path, data=4)), "--nodes=4", "--devices-per-node=2", "--least=1"]
    assert main([*command, *words]) == 1
    assert said in capsys.readouterr().err


def test_strangers_and_silence() -> None:
    """What is no message is not heard; who says nothing is lost."""
    here, there = socket.socketpair()
    channel = Channel(here)
    there.sendall(b'GET / HTTP/1.1\r\n[1]\n{"a": 1}\n{"b"')
    assert [message for message in channel.receive() if message] == [{"a": 1}]
    there.sendall(b": 2}\n")
    assert channel.receive() == [{"b": 2}]
    there.close()
    channel.receive()
    assert channel.lost


def test_training_goes_on_with_the_pods_that_are_left(pods: Callable[..., Pods], tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    job = pods(3, "--data.batch=24", "--devices=2", f"--run_dir={run}", program=TRAINING)
    job.start(0, 1, 2)
    job.until(lambda: len(logged(run)) >= 6 if (run / "metrics.jsonl").exists() else False)
    job.lose(0)
    job.until(lambda: "pods 1, 2: mesh data 2 × tensor 1 × pipe 2" in job.said(1))
    assert [child.wait(timeout=120) for child in job.children.values()] == [0, 0], job.said()

    alone = ["train", str(tmp_path / "run.toml"), "--data.batch=24", "--devices=2", "--mesh.data=1"]
    command = [sys.executable, "-m", "meshkit", *alone, "--pipeline.microbatches=6", f"--run_dir={whole}"]
    subprocess.run(command, env=os.environ | QUICKLY, check=True, capture_output=True)
    expected, losses = ([record["loss"] for record in logged(folder)] for folder in (whole, run))
    assert len(losses) == STEPS
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
