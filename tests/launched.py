"""Runs on several real processes, for tests that let things happen to them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.small_run import CONFIG, write_text

STEPS = 32
SECONDS = 600
QUICKLY = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


def write_config(folder: Path, data: int = 2) -> Path:
    """The small run, of more steps, on a (`data`, tensor 1, pipe 2) mesh."""
    path = folder / "run.toml"
    text = (
        CONFIG.replace("steps = 12", f"steps = {STEPS}").replace("evaluate_every = 6", "").replace("dropout = 0.1", "")
    )
    mesh = f"\nmesh = {{ data = {data}, pipe = 2 }}\npipeline = {{ microbatches = 2 }}\n"
    path.write_text(
        text.replace("\n[checkpoint]", f"{mesh}\n[checkpoint]").rstrip() + f'\ntext = ["{write_text(folder)}"]\n'
    )
    return path


class Launched:
    """`meshkit launch local` as a child. `out`: what it has printed."""

    def __init__(self, config: Path, run_dir: Path, *words: str, processes: int = 2, **env: str) -> None:
        command = ["launch", "local", str(config), "--processes", str(processes), "--run_dir", str(run_dir), *words]
        self.run_dir, self.out = run_dir, ""
        self.child = subprocess.Popen(
            [sys.executable, "-u", "-m", "meshkit", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | QUICKLY | env,
        )

    def until(self, is_it: Callable[[str], bool]) -> str:
        """Wait until it prints such a line."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.out += line
            if is_it(line):
                return line
        raise AssertionError(self.out)

    def until_step(self, step: int) -> None:
        """Wait until a step not before `step` is logged."""
        self.until(lambda line: step_of(line) >= step)

    def finish(self) -> int:
        """Its exit code; `out` is complete."""
        assert self.child.stdout is not None
        self.out += self.child.stdout.read()
        return self.child.wait(timeout=SECONDS)

    @property
    def processes(self) -> list[int]:
        """The ids of the run's processes, number 0 first."""
        path = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children")
        return sorted(map(int, path.read_text().split()))

    def signal(self, number: int, signal: int) -> float:
        """Send a signal to a process of the run; the time."""
        os.kill(self.processes[number], signal)
        return time.monotonic()


def step_of(line: str) -> int:
    """Of a line like "step  5/40  loss …"; 0 of any other."""
    return int(line.split("/")[0].split()[1]) if line.startswith("step ") else 0
