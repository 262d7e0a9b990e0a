"""Progress: a bar on a terminal, plain lines now and then elsewhere."""

import io
from typing import Any

import pytest
from rich.console import Console

from meshkit.data import progress
from meshkit.data.progress import ByteProgress

MB = 10**6


def shown(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    """What 100 MB in 40 s show, of a preparation that goes on at 20 MB."""
    clock, out = iter(range(0, 45, 5)), io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    console = Console(file=out, force_terminal=terminal, width=80, get_time=lambda: 0.0)
    with ByteProgress(console) as report:
        for done in range(20, 101, 10):
            report(done * MB, 100 * MB)
    return out.getvalue()


def test_lines_say_how_far_how_fast_and_how_long_still(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(False, monkeypatch).splitlines() == [
        "going on at 20.0 of 100.0 MB",
        "40.0 of 100.0 MB, 2.00 MB/s, ETA 0:00:30",
        "60.0 of 100.0 MB, 2.00 MB/s, ETA 0:00:20",
        "80.0 of 100.0 MB, 2.00 MB/s, ETA 0:00:10",
        "100.0 of 100.0 MB, 2.00 MB/s, ETA 0:00:00",
    ]


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = shown(True, monkeypatch)
    assert "100.0/100.0 MB" in found
