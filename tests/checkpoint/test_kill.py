"""Real processes, killed for real: every restart goes on, no checkpoint is lost, no step repeated or left out.

Twenty kills at random moments: MESHKIT_KILLS=20 pytest tests/checkpoint/test_kill.py
"""

import os
import random
import re
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
STEPS = 40 if KILLS < 10 else 120

WATCHED = "import faulthandler; faulthandler.dump_traceback_later(150, exit=True)\n"  # a hang tells where
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
        [sys.executable, "-u", "-c", WATCHED + program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
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


def printed(child: subprocess.Popen[str], is_it: Callable[[str], bool]) -> None:
    """Wait until the child prints such a line."""
    assert child.stdout is not None
    said = []
    for line in child.stdout:
        said.append(line)
        if is_it(line):
            return
    raise AssertionError("".join(said))


def step_of(line: str) -> int:
    """Of a line like "step  5/40  loss …"; 0 of any other."""
    return int(line.split("/")[0].split()[1]) if line.startswith("step ") else 0


def test_killed_in_a_save_and_at_random_moments(config: Path, whole: list[dict[str, Any]], tmp_path: Path) -> None:
    run_dir, chance = tmp_path / "run", random.Random(KILLS)
    child = start(config, run_dir, HELD)
    printed(child, lambda line: line == "writing\n")
    child.kill()
    child.wait()
    assert_whole(run_dir, [4])
    assert [path.name for path in (run_dir / "checkpoints").iterdir() if path.name.startswith("8")], "half a checkpoint"

    targets = sorted(chance.sample(range(6, STEPS - 1), KILLS))
    for target in targets:
        before = saved(run_dir)
        child = start(config, run_dir, SLOW)
        printed(child, lambda line, target=target: step_of(line) >= target)  # type: ignore[misc]
        time.sleep(chance.random() * 0.2)
        child.kill()
        child.wait()
        assert set(before) <= set(saved(run_dir)), "a checkpoint is lost"
        assert_whole(run_dir, saved(run_dir))

    out = finish(start(config, run_dir))
    assert "goes on after step " in out
    assert curve(logged(run_dir)) == whole
    assert_whole(run_dir, list(range(4, STEPS + 1, 4)))
    assert all(path.name.isdecimal() for path in (run_dir / "checkpoints").iterdir())


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
    assert re.search(rf"│ steps +│ {last} ", out)
    assert f"goes on after step {last} from" in finish(start(config, run_dir))
    assert curve(logged(run_dir)) == whole


def test_a_full_disk_stops_no_training(config: Path, whole: list[dict[str, Any]], tmp_path: Path) -> None:
    """A file system of its own, on which the first checkpoints fit, and later not even the metrics."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    program = f'mount -t tmpfs -o size=700k disk {disk} && "$@"; code=$?; cp -r {disk}/run {tmp_path}/left; exit $code'
    if subprocess.run([*mount, f"mount -t tmpfs disk {disk}"], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    words = [sys.executable, "-u", "-c", WATCHED + PROGRAM, "train", str(config), "--run_dir", f"{disk}/run"]
    done = subprocess.run([*mount, program, "sh", *words], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "could not be written to" in done.stdout
    named = re.findall(r"written to .*; the one of step (\d+) is whole\. The reason: .*No space left", done.stdout)
    assert named, done.stdout
    assert f"step {STEPS}/{STEPS}  loss" in done.stdout, done.stdout + done.stderr
    assert f"\nerror: the last checkpoint of {disk}/run could not be written: see above\n" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert {4, *map(int, named)} <= set(saved(tmp_path / "left"))
    assert_whole(tmp_path / "left", saved(tmp_path / "left"))
