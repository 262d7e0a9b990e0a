"""Real processes, killed for real: every restart goes on, no checkpoint is lost, no step repeated or left out.

Twenty kills at random moments: MESHKIT_KILLS=20 pytest tests/test_checkpoint_kill.py
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from etils import epath

from meshkit.checkpoint import seal
from tests.small_run import CONFIG, curve, logged, saved, write_text

KILLS = int(os.environ.get("MESHKIT_KILLS", "2"))
SECONDS = 240
STEPS = 40

PROGRAM = "import sys; from meshkit.cli import main; sys.exit(main())"

HELD = """
import sys, time
from meshkit.checkpoint import seal
from meshkit.cli import main
write = seal.seal
def held(folder):
    if folder.name.startswith("8"):
        print("writing", flush=True)
        time.sleep(3600)
    write(folder)
seal.seal = held
sys.exit(main())
"""

SLOW = """
import sys, time
from meshkit import trainer
from meshkit.cli import main
look = trainer.Checkpoints.look
def slowly(self):
    look(self)
    time.sleep(0.05)
trainer.Checkpoints.look = slowly
sys.exit(main())
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    path = folder / "run.toml"
    text = f'\ntext = ["{write_text(folder)}"]\n'
    path.write_text(CONFIG.replace("steps = 12", f"devices = 1\nsteps = {STEPS}").rstrip() + text)
    return path


def start(config: Path, run_dir: Path, program: str = PROGRAM) -> subprocess.Popen[str]:
    words = ["train", str(config), "--run_dir", str(run_dir)]
    return subprocess.Popen(
        [sys.executable, "-u", "-c", program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
    )


def finish(child: subprocess.Popen[str]) -> str:
    """What it printed; it must end well."""
    out, _ = child.communicate(timeout=SECONDS)
    assert child.returncode == 0, out
    return out


def wait_for(condition: Callable[[], Any], child: subprocess.Popen[str]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert child.poll() is None, child.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.005)


def lines(run_dir: Path) -> int:
    path = run_dir / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


@pytest.fixture(scope="module")
def whole(config: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The curve of a run that nothing interrupted."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    finish(start(config, run_dir))
    return curve(logged(run_dir))


def assert_whole(run_dir: Path, steps: list[int]) -> None:
    assert saved(run_dir) == steps
    for step in steps:
        assert seal.damage(epath.Path(run_dir / "checkpoints" / str(step))) == []


def test_killed_while_a_checkpoint_is_written(config: Path, whole: list[dict[str, Any]], tmp_path: Path) -> None:
    child = start(config, tmp_path / "run", HELD)
    assert child.stdout is not None
    for line in child.stdout:
        if line == "writing\n":
            break
    child.kill()
    child.wait()
    assert_whole(tmp_path / "run", [4])
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name[0] == "8"]
    out = finish(start(config, tmp_path / "run"))
    assert "goes on after step 4 from" in out
    assert curve(logged(tmp_path / "run")) == whole
    assert_whole(tmp_path / "run", list(range(4, STEPS + 1, 4)))
    assert all(path.name.isdecimal() for path in (tmp_path / "run" / "checkpoints").iterdir())


def test_killed_at_random_moments(config: Path, whole: list[dict[str, Any]], tmp_path: Path) -> None:
    """Each time after some more steps have been logged, some of them a checkpoint's."""
    chance, run_dir, kills = random.Random(0), tmp_path / "run", 0
    while True:
        before = saved(run_dir)
        child = start(config, run_dir, SLOW)
        if kills == KILLS:
            break
        more = chance.randint(1, max(1, 2 * (STEPS - max(before, default=0)) // (KILLS - kills + 1)))
        target = min(STEPS - 1, max(before, default=0) + more)
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("step ") and int(line.split("/")[0].split()[1]) >= target:
                break
        time.sleep(chance.random() * 0.05)
        child.send_signal(signal.SIGKILL)
        child.wait()
        kills += 1
        assert set(before) <= set(saved(run_dir)), "a checkpoint is lost"
        assert_whole(run_dir, saved(run_dir))
    finish(child)
    assert curve(logged(run_dir)) == whole
    assert_whole(run_dir, list(range(4, STEPS + 1, 4)))


def test_a_sigterm_saves_and_exits_with_0(config: Path, whole: list[dict[str, Any]], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    child = start(config, run_dir, SLOW)
    wait_for(lambda: lines(run_dir) >= 5, child)
    child.terminate()
    child.terminate()  # schedulers may send it to a process and to its group
    out = finish(child)
    (last,) = [step for step in saved(run_dir) if step % 4] or [saved(run_dir)[-1]]
    assert last < STEPS
    assert logged(run_dir)[-1]["step"] == last, "the step that ran then is the last, and saved"
    assert "held-out loss" not in out.rpartition("│ loss")[2], "there is no time to evaluate"
    assert f"goes on after step {last} from" in finish(start(config, run_dir))
    assert curve(logged(run_dir)) == whole
