"""What a run says about itself: metrics.jsonl, TensorBoard events, and the lines on the screen.

Values arrive as plain Python floats; nothing here touches JAX.
"""

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

import rich.progress
from rich.console import Console
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from meshkit.bar import Bar

METRICS_FILE = "metrics.jsonl"

# Metric -> (title, format) on the screen; the files hold every metric.
SHOWN = {
    "loss": ("loss", ".4f"),
    "held_out_loss": ("held-out loss", ".4f"),
    "tokens_per_second": ("tokens/s", ",.0f"),
}


class MetricsWriter:
    """Appends to `run_dir`/metrics.jsonl and to TensorBoard events beside it.

    A line is `{"step": 10, "loss": 2.3, …}`. JSON has no NaN or infinity: such a value is written
    as null, and its name and kind stand under "non_finite": `{"loss": null, "non_finite": {"loss": "nan"}}`.
    TensorBoard gets the finite values.

    `history`: the records, {"step": 10, …}, that the run goes on from. The lines are written anew with these
    alone, and TensorBoard is told to forget the later steps: what an interrupted run logged after its last
    checkpoint will be logged again.
    """

    def __init__(self, run_dir: Path, history: Sequence[Mapping[str, float]] = ()) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        whole = run_dir / f".{METRICS_FILE}"
        whole.write_text("".join(map(_line, history)), encoding="utf-8")
        whole.replace(run_dir / METRICS_FILE)
        self._lines = (run_dir / METRICS_FILE).open("a", encoding="utf-8")
        # Its own name counts seconds only, and would overwrite the file of a run resumed within one. Not the
        # writer in a thread of its own: that one waits for ever once a full disk has ended its thread.
        self._events = EventsWriter(str(run_dir / "events"), filename_suffix=f".{time.time_ns()}")
        after = int(history[-1]["step"]) + 1 if history else 0
        self._events.write_event(Event(step=after, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record `metrics` of `step`; they are on disk when this returns.

        After an OSError, of a full disk, the record is kept and written with the next one that can be.
        """
        finite = [
            Summary.Value(tag=name, simple_value=value) for name, value in metrics.items() if math.isfinite(value)
        ]
        self._lines.write(_line({"step": step, **metrics}))
        self._events.write_event(Event(step=step, wall_time=time.time(), summary=Summary(value=finite)))
        self._lines.flush()
        self._events.flush()

    def close(self) -> None:
        """Close both files; what a full disk keeps from being written is lost, as `write` has said."""
        for file in (self._lines, self._events):
            with contextlib.suppress(OSError):
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _line(record: Mapping[str, float]) -> str:
    """A record as a line of JSON."""
    wrong = {name: str(value) for name, value in record.items() if not math.isfinite(value)}
    values = {name: None if name in wrong else value for name, value in record.items()}
    return json.dumps(values | ({"non_finite": wrong} if wrong else {}), allow_nan=False) + "\n"


class Progress(Bar):
    """Where a run stands: a live bar on a terminal, plain lines elsewhere. A context manager.

    `steps` is the last step's number and `start` the step resumed from; the ETA is the mean time of
    the steps seen since (or since `begin`), times those left.
    """

    def __init__(
        self,
        steps: int,
        start: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            console or Console(),
            rich.progress.MofNCompleteColumn(),
            rich.progress.BarColumn(),
            rich.progress.TextColumn("{task.fields[status]}"),
            rich.progress.TextColumn("ETA {task.fields[eta]}"),
        )
        self._steps, self._start, self._clock = steps, start, clock
        self._began = clock()
        self._latest: dict[str, float] = {}
        self._task = (
            self._bar.add_task("", total=steps, completed=start, status="starting", eta="?") if self._bar else None
        )

    def begin(self) -> None:
        """The first step starts now: what went before, as compiling, is no part of the ETA."""
        self._began = self._clock()

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show `step` and its `metrics`; the bar keeps showing the latest of those not given again."""
        eta = self._eta(step)
        if self._bar is None or self._task is None:
            parts = [f"step {step:{len(str(self._steps))}}/{self._steps}", status(metrics), f"ETA {eta}"]
            self._print("  ".join(part for part in parts if part))
            return
        self._latest.update(metrics)
        self._bar.update(self._task, completed=step, status=status(self._latest), eta=eta)

    def note(self, text: str) -> None:
        """A line of its own, above the bar."""
        self._print(text)

    def _eta(self, step: int) -> str:
        done = step - self._start
        if done <= 0:
            return "?"
        return str(timedelta(seconds=round((self._clock() - self._began) / done * (self._steps - step))))


def status(metrics: Mapping[str, float]) -> str:
    """The shown metrics among `metrics`, in one line: "loss 2.3026  tokens/s 1,234"."""
    return "  ".join(f"{title} {metrics[name]:{form}}" for name, (title, form) in SHOWN.items() if name in metrics)
