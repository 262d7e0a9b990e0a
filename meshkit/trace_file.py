"""What the devices of a profiled step did, as a trace that Perfetto and chrome://tracing open. No JAX."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from meshkit.measured import ROWS, Program, Span

MOST_LANES = 1000
"""Of a row; the threads of a trace are numbered by row, then lane."""

MICROSECONDS = 1e6
"""In a second: the unit of Chrome's traces."""


def trace(program: Program, spans: Iterable[Span]) -> dict[str, Any]:
    """Spans as Chrome's trace events, which Perfetto and chrome://tracing open: a process a device, its ROWS.

    Where the compiler mixed two actions' instructions, a row has several lanes: the spans of one must not overlap.
    """
    spans = sorted(spans, key=lambda span: span.start)
    lanes = _lanes(spans)
    events: list[dict[str, Any]] = []
    for device in sorted({span.device for span in spans}):
        at = " ".join(f"{axis} {k}" for axis, k in program.coordinates(device).items())
        events.append({"ph": "M", "pid": device, "name": "process_name", "args": {"name": f"device {device}: {at}"}})
        for row, lane in sorted(
            {(ROWS.index(s.row), k) for s, k in zip(spans, lanes, strict=True) if s.device == device}
        ):
            args = {"name": ROWS[row] + (f" ({lane + 1})" if lane else "")}
            events.append(
                {"ph": "M", "pid": device, "tid": row * MOST_LANES + lane, "name": "thread_name", "args": args}
            )
    for span, lane in zip(spans, lanes, strict=True):
        times = {"ts": span.start * MICROSECONDS, "dur": (span.end - span.start) * MICROSECONDS}
        tells = {name: getattr(span, name) for name in ("step", "tick", "microbatch", "chunk", "layer")}
        place = {"pid": span.device, "tid": ROWS.index(span.row) * MOST_LANES + lane}
        args = {name: value for name, value in tells.items() if value is not None}
        events.append({"ph": "X", **place, "name": span.name, "cat": span.row, **times, "args": args})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _lanes(spans: Sequence[Span]) -> list[int]:
    """For each span, sorted by start, the first lane of its device and row that is free when it starts."""
    free: dict[tuple[int, str], list[float]] = defaultdict(list)
    lanes = []
    for span in spans:
        ends = free[span.device, span.row]
        lane = next((k for k, end in enumerate(ends) if end <= span.start), len(ends))
        ends[lane : lane + 1] = [span.end]
        lanes.append(lane)
    return lanes
