"""What the devices of a profiled step did, as a trace that Perfetto and chrome://tracing open. No JAX."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from meshkit.profile.measured import ROWS, Program, Span

MOST_LANES = 1000
"""Of a row; the threads of a trace are numbered by row, then lane."""

MICROSECONDS = 1e6
"""In a second: the unit of Chrome's traces."""


def trace(program: Program, spans: Iterable[Span], first: int) -> dict[str, Any]:
    """Spans as Chrome's trace events, which Perfetto and chrome://tracing open: a process a device, its ROWS.

    Where the compiler mixed two actions' instructions, a row has several lanes: the spans of one must not overlap,
    and those of a kind keep together. first: number of the first step recorded.
    """
    events: list[dict[str, Any]] = []
    rows: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in spans:
        rows[span.device, ROWS.index(span.row)].append(span)
    for device in sorted({device for device, _ in rows}):
        at = " ".join(f"{axis} {k}" for axis, k in program.coordinates(device).items())
        events.append({"ph": "M", "pid": device, "name": "process_name", "args": {"name": f"device {device}: {at}"}})
    for (device, row), of in sorted(rows.items()):
        lanes = _lanes(of)
        for k, lane in enumerate(lanes):
            kinds = ", ".join(sorted({span.kind for span in lane} - {""}))
            name = ROWS[row] + (f" ({k + 1}) {kinds}".rstrip() if len(lanes) > 1 else "")
            place = {"pid": device, "tid": row * MOST_LANES + k}
            events.append({"ph": "M", **place, "name": "thread_name", "args": {"name": name}})
            events += [{"ph": "X", **place, **_event(span, first)} for span in lane]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _event(span: Span, first: int) -> dict[str, Any]:
    """What a bar shows, and what it tells when it is chosen."""
    tells = {name: getattr(span, name) for name in ("tick", "microbatch", "chunk", "layer")}
    if span.layer is not None:
        tells["action"] = span.kind
    times = {"ts": span.start * MICROSECONDS, "dur": (span.end - span.start) * MICROSECONDS}
    args = {"step": first + span.step} | {name: value for name, value in tells.items() if value is not None}
    return {"name": span.name, "cat": span.row, **times, "args": args}


def _lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """The spans of a row, shared out so that those of a lane don't overlap, and those of a kind are in one if they can
    be: B, F, I and W first, then what is around them."""
    lanes: list[list[Span]] = []
    for _, of in itertools.groupby(sorted(spans, key=lambda span: (span.kind, span.start)), lambda span: span.kind):
        for together in _apart(list(of)):
            lane = next((k for k, lane in enumerate(lanes) if len(_apart(lane + together)) == 1), len(lanes))
            lanes[lane : lane + 1] = [lanes[lane] + together if lane < len(lanes) else together]
    return lanes


def _apart(spans: Sequence[Span]) -> list[list[Span]]:
    """The spans in as few lists as have none that overlap: each in the first that is free when it starts."""
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.start):
        free = next((lane for lane in lanes if lane[-1].end <= span.start), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    return lanes
