"""Kills processes of a run with SIGKILL, at random moments: python -m tests.bench_kills [KILLS]

Every restart must go on, no checkpoint be lost or damaged, and the losses be those of a run that nothing interrupted.
Prints how long each was unnoticed.
"""

import random
import re
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from etils import epath

from meshkit.checkpoint import seal
from tests.launched import Launched, write_config
from tests.small_run import curve, logged, saved


def main(kills: int, seed: int = 0) -> None:
    folder, chance = Path(tempfile.mkdtemp(prefix="meshkit-kills-")), random.Random(seed)
    config = write_config(folder)
    words = ["--steps", str(6 * kills), "--checkpoint.every", "5 steps"]
    whole = Launched(config, folder / "whole", *words)
    assert whole.finish() == 0, whole.out
    print(f"uninterrupted: {6 * kills} steps", flush=True)

    run = Launched(config, folder / "run", *words, "--restarts", str(kills))
    seen: list[float] = []
    for number in range(kills):
        before = set(saved(run.run_dir))
        # Somewhere between the start of the processes and the end of the run: starting, compiling, a step, a save.
        first = run.until(lambda line: "simulating" in line)
        assert first
        if chance.random() < 0.7:
            run.until(lambda line: line.startswith("step "))
            time.sleep(chance.random() * 3)
        else:
            time.sleep(chance.random() * 20)
        if run.child.poll() is not None:
            print("the run is complete", flush=True)
            break
        victim = chance.randrange(2)
        killed = run.signal(victim, signal.SIGKILL)
        run.until(lambda line: re.search(r"process \d ended by SIG", line) is not None)
        seen.append(time.monotonic() - killed)
        run.until(lambda line: line.startswith("launch: restart "))
        lost = before - set(saved(run.run_dir))
        damaged = [
            step for step in saved(run.run_dir) if seal.damage(epath.Path(run.run_dir / "checkpoints" / str(step)))
        ]
        assert not lost, f"lost checkpoints: {lost}"
        assert not damaged, f"damaged checkpoints: {damaged}"
        at = logged(run.run_dir)[-1]["step"] if (run.run_dir / "metrics.jsonl").exists() and logged(run.run_dir) else 0
        print(f"kill {number + 1}: process {victim} after step {at}, noticed in {seen[-1]:.2f} s", flush=True)
    assert run.finish() == 0, run.out
    assert curve(logged(run.run_dir)) == curve(logged(whole.run_dir)), "the losses differ"
    print(f"{len(seen)} kills: no checkpoint lost, losses equal bit for bit over {6 * kills} steps; ", end="")
    print(f"noticed in {statistics.median(seen):.2f} s in the middle, {max(seen):.2f} s at most")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
