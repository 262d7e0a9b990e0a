"""The watchdog: when it barks, what it says, and how the process ends. Without JAX: quick."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshkit.distributed import processes
from meshkit.distributed.watchdog import FACTOR, HOUR, VARIABLE, Watchdog
from meshkit.errors import RESTART, MeshkitError

HANG = """
import sys, threading, time
from pathlib import Path
from meshkit.distributed.watchdog import HOUR, Watchdog

def read_from_a_dead_server():
    time.sleep(60)

with Watchdog(Path(sys.argv[1]), "process 3 of 8", 3, floor=float(sys.argv[2])) as watchdog:
    watchdog.begins("compiling", granted=HOUR)
    for step in range(1, 6):
        watchdog.begins(f"waiting for step {step}")
        time.sleep(0.02)
        watchdog.finished(step)
    watchdog.begins("reading the batch of step 6")
    threading.Thread(target=time.sleep, args=(60,), name="another", daemon=True).start()
    read_from_a_dead_server()
"""


def test_a_process_that_hangs_says_where_and_ends(tmp_path: Path) -> None:
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", HANG, tmp_path, "1"], capture_output=True, text=True, timeout=60)
    assert time.monotonic() - begun < 20
    assert done.returncode == RESTART
    for said in (done.stderr, (tmp_path / "hang-3.txt").read_text()):
        assert "process 3 of 8 hangs: no progress in " in said
        assert "Last step finished: 5; last action completed: waiting for step 5" in said
        assert "since then: reading the batch of step 6" in said
        assert "read_from_a_dead_server" in said
        assert said.count("hread 0x") >= 3, "the stacks of all threads"


def test_a_folder_that_hangs_too_does_not_keep_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANG, tmp_path / "nowhere", "1"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == RESTART
    assert "read_from_a_dead_server" in done.stderr


def test_what_is_granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0, 14.0, 99.0, 101.0])
    monkeypatch.setattr("meshkit.distributed.watchdog.time.monotonic", lambda: next(clock))
    watchdog = Watchdog(tmp_path, "process 0 of 1", 0, floor=5)
    assert watchdog.limit == HOUR, "before the first step anything may take its time"
    watchdog.begins("waiting for step 1")
    assert watchdog.limit == 5
    for step in (1, 2, 3):
        watchdog.finished(step)
    assert watchdog.limit == FACTOR * 2
    watchdog.begins("evaluating", granted=HOUR)
    assert watchdog.limit == HOUR
    watchdog.begins("waiting for step 4")
    for step in (4, 5):
        watchdog.finished(step)
    assert watchdog.limit == FACTOR * 2, "an evaluation is no step"


def test_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("soon", "-5", "nan", "inf"):
        monkeypatch.setenv(VARIABLE, text)
        with pytest.raises(MeshkitError, match=f"{VARIABLE} = '{text}': it is a number of seconds"):
            processes.start()
    monkeypatch.setenv(VARIABLE, "soon")
    with pytest.raises(MeshkitError, match="it is a number of seconds"):
        Watchdog(tmp_path, "", 0)
    monkeypatch.setenv(VARIABLE, "0")
    with Watchdog(tmp_path, "", 0) as off:
        assert not off._thread.is_alive()
