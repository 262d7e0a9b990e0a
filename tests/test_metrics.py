"""What is written can be read back; what is shown says where the run stands."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from tensorboardX.proto.event_pb2 import Event

from meshkit.metrics import METRICS_FILE, MetricsWriter, Progress, status


def lines(run_dir: Path) -> list[dict]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = (run_dir / METRICS_FILE).read_text(encoding="utf-8")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def events(run_dir: Path) -> dict[tuple[str, int], float]:
    """(tag, step) -> value, from the records of a TensorBoard file: length, checksum, message, checksum.

    As TensorBoard reads them: where a run starts anew, it drops the steps from there on.
    """
    found: dict[tuple[str, int], float] = {}
    for path in sorted(run_dir.glob("*tfevents*"), key=lambda path: int(path.suffix[1:])):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + length])
            if event.HasField("session_log"):  # a resumed run: TensorBoard forgets what came from here on
                found = {(tag, step): value for (tag, step), value in found.items() if step < event.step}
            found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
            data = data[16 + length :]
    return found


def test_both_files_hold_every_metric(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "run") as writer:
        writer.write(1, {"loss": 2.5, "tokens_per_second": 100.0})
        writer.write(2, {"loss": 2.25})
    assert lines(tmp_path / "run") == [{"step": 1, "loss": 2.5, "tokens_per_second": 100.0}, {"step": 2, "loss": 2.25}]
    assert events(tmp_path / "run") == {("loss", 1): 2.5, ("tokens_per_second", 1): 100.0, ("loss", 2): 2.25}


def test_a_line_is_on_disk_before_the_next_step(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, {"loss": 2.5})
        assert lines(tmp_path) == [{"step": 1, "loss": 2.5}]


def test_a_resumed_run_goes_on_after_its_history_and_forgets_what_came_later(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        for step in (1, 2, 3):
            writer.write(step, {"loss": float(step)})
    (tmp_path / METRICS_FILE).open("a").write('{"step": 4, "lo')  # killed in the middle of a line
    history = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": float("nan")}]
    with MetricsWriter(tmp_path, history) as writer:
        writer.write(3, {"loss": 30.0})
    assert lines(tmp_path) == [
        {"step": 1, "loss": 1.0},
        {"step": 2, "loss": None, "non_finite": {"loss": "nan"}},
        {"step": 3, "loss": 30.0},
    ]
    assert events(tmp_path) == {("loss", 1): 1.0, ("loss", 2): 2.0, ("loss", 3): 30.0}


@pytest.mark.parametrize(("value", "kind"), [(float("nan"), "nan"), (float("inf"), "inf"), (-float("inf"), "-inf")])
def test_a_value_that_json_lacks_is_null_and_named(tmp_path: Path, value: float, kind: str) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(3, {"loss": value, "skipped": 1.0})
    assert lines(tmp_path) == [{"step": 3, "loss": None, "skipped": 1.0, "non_finite": {"loss": kind}}]
    assert events(tmp_path) == {("skipped", 3): 1.0}


def plain(steps: int, start: int, times: list[float]) -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    clock = iter(times)
    return Progress(steps, start, Console(file=out, width=80), lambda: next(clock)), out


def test_plain_lines_say_step_metrics_and_time_left() -> None:
    progress, out = plain(steps=100, start=0, times=[0.0, 20.0])
    with progress:
        progress.update(10, {"loss": 2.34567, "held_out_loss": 2.5, "tokens_per_second": 12345.6, "grad_norm": 1.0})
    assert out.getvalue() == "step  10/100  loss 2.3457  held-out loss 2.5000  tokens/s 12,346  ETA 0:03:00\n"


def test_time_left_counts_from_the_step_resumed_from() -> None:
    progress, out = plain(steps=100, start=50, times=[0.0, 10.0])
    progress.update(60, {"loss": 1.0})
    assert out.getvalue().endswith("ETA 0:00:40\n")


def test_notes_are_printed_as_they_are() -> None:
    progress, out = plain(steps=1, start=0, times=[0.0])
    progress.note("resumed from [bold]step 3[/bold] " + "x" * 100)
    assert out.getvalue() == "resumed from [bold]step 3[/bold] " + "x" * 100 + "\n"


def test_a_terminal_gets_a_bar_that_keeps_the_latest_metrics() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with Progress(10, console=console) as progress:
        progress.update(4, {"loss": 2.0, "held_out_loss": 3.0})
        progress.update(5, {"loss": 1.5})
        progress.note("a note")
    last = out.getvalue().rpartition("5/10")[2]
    assert "loss 1.5000  held-out loss 3.0000" in last
    assert "a note" in out.getvalue()


def test_status_is_ordered_and_skips_what_has_no_title() -> None:
    assert status({"tokens_per_second": 1000.0, "loss": 1.0, "lr": 0.1}) == "loss 1.0000  tokens/s 1,000"
