"""When a schedule's actions happen and what is stored meanwhile. NumPy only.

In *lock-step*, as the executor runs a table, a tick ends for all stages when its busiest one is done.
*Asynchronous* is what a runtime with a program for each stage could do: an action starts as soon as
its inputs are there and its stage is free. The difference is the price of lock-step.

Time has the unit of the costs that are given; the bubble is idle time by cause:
  fill       before a stage's first backward: the first microbatch is on its way to the end and back;
  drain      after its last forward (and first backward): the last microbatches come back;
  imbalance  between the two: a wait for a busier stage, for a hop, or for what has not arrived.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshkit.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Schedule, needs
from meshkit.pipeline.slots import allocate, lifetimes, phases

CAUSES = ("fill", "drain", "imbalance")


class Span(NamedTuple):
    """An action of a stage, from start to end."""

    stage: int
    action: Action
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class Timeline:
    """When everything happens. spans: in the table's order. ticks: their starts; none when asynchronous."""

    schedule: Schedule
    spans: tuple[Span, ...]
    ticks: tuple[float, ...]
    total: float

    @functools.cached_property
    def busy(self) -> np.ndarray:
        """Time that each stage works: float [stage]."""
        return self._busy(np.zeros(self.schedule.stages), np.full(self.schedule.stages, self.total))

    @functools.cached_property
    def idle(self) -> dict[str, np.ndarray]:
        """Time that each stage does not work, by cause (CAUSES): float [stage] each."""
        stages, zero = self.schedule.stages, np.zeros(self.schedule.stages)
        back = self.schedule.backward if self.schedule.trains else FORWARD
        first, last = np.full(stages, self.total), zero.copy()
        for span in self.spans:
            if span.action.kind == back:
                first[span.stage] = min(first[span.stage], span.start)
            if span.action.kind == FORWARD:
                last[span.stage] = max(last[span.stage], span.end)
        last = np.maximum(first, last)
        bounds = {"fill": (zero, first), "drain": (last, zero + self.total), "imbalance": (first, last)}
        return {cause: end - start - self._busy(start, end) for cause, (start, end) in bounds.items()}

    @property
    def bubble(self) -> float:
        """Idle share of the time of all stages, 0 … 1."""
        return float(1 - self.busy.sum() / (self.schedule.stages * self.total))

    def _busy(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Time that each stage works between its own `start` and `end`."""
        busy = np.zeros(self.schedule.stages)
        for span in self.spans:
            busy[span.stage] += max(0.0, min(span.end, end[span.stage]) - max(span.start, start[span.stage]))
        return busy


def lock_step(
    schedule: Schedule, costs: Mapping[str, float], hop: float = 0.0, shares: Sequence[float] | None = None
) -> Timeline:
    """The timeline of the executor: a tick lasts as long as its busiest stage.

    costs: kind -> time of that action for all layers of a stage. hop: time of an exchange with the
    neighbours: after the work of a tick or, where the schedule's hop takes two ticks, beside it.
    shares: as `Schedule.shares_of` takes them.
    """
    times, exchanges = _times(schedule, costs, shares), _exchanges(schedule)
    spans: list[Span] = []
    ticks, now = [], 0.0
    for column, exchange in zip(schedule.cells, exchanges, strict=True):
        ticks.append(now)
        longest = 0.0
        for stage, actions in enumerate(column):
            at = 0.0
            for action in actions:
                end = at + times[action.kind][action.chunk * schedule.stages + stage]
                spans.append(Span(stage, action, now + at, now + end))
                at = end
            longest = max(longest, at)
        wait = hop if exchange else 0.0
        now += max(longest, wait) if schedule.hop > 1 else longest + wait
    return Timeline(schedule, tuple(spans), tuple(ticks), now)


def asynchronous(
    schedule: Schedule, costs: Mapping[str, float], hop: float = 0.0, shares: Sequence[float] | None = None
) -> Timeline:
    """The timeline of stages that wait for nothing but their inputs; each keeps the table's order.

    Arguments as for `lock_step`; a hop delays what it brings, and no one else.
    """
    times, stages = _times(schedule, costs, shares), schedule.stages
    ended: dict[tuple[str, int, int], float] = {}
    free, spans = np.zeros(stages), []
    for _, stage, action in schedule:
        group = action.chunk * stages + stage
        arrived = [
            ended[kind, action.microbatch, other] + (hop if other % stages != stage else 0.0)
            for kind, other in needs(schedule, action.kind, group)
        ]
        start = max([float(free[stage]), *arrived])
        end = start + times[action.kind][group]
        ended[action.kind, action.microbatch, group] = free[stage] = end
        spans.append(Span(stage, action, start, end))
    return Timeline(schedule, tuple(spans), (), float(free.max()))


# --- memory -------------------------------------------------------------------------------------


def slots_in_use(schedule: Schedule) -> dict[str, np.ndarray]:
    """Values stored, by file of slots (inputs, kept, gradients, held): int [tick, stage] each.

    Counted within a tick, between its work and its hop. `kept` is `Schedule.in_flight`.
    """
    used = {}
    for file, life in lifetimes(schedule)._asdict().items():
        used[file] = np.zeros((schedule.ticks, schedule.stages), int)
        if life is not None:
            for (i, group), birth in np.ndenumerate(life[0]):
                used[file][birth + 1 : life[1][i, group] + 1, group % schedule.stages] += 1
    return used


def memory(schedule: Schedule, slot_bytes: Mapping[str, float]) -> np.ndarray:
    """Bytes of slots in use, and in the tick of a backward of what it makes again: float [tick, stage].

    slot_bytes: as `costs.slot_bytes` counts them.
    """
    used = slots_in_use(schedule) | {"again": np.zeros((schedule.ticks, schedule.stages), int)}
    for tick, stage, action in schedule:
        if action.kind == schedule.backward:
            used["again"][tick, stage] = 1
    return np.add.reduce([count * slot_bytes[file] for file, count in used.items()])


# --- for trace viewers ---------------------------------------------------------------------------

ROWS = {FORWARD: (0, "F forward"), BACKWARD: (1, "B backward"), INPUT: (1, "I input gradient")}
ROWS |= {WEIGHT: (2, "W weight gradient")}

MICROSECONDS = 1000.0
"""A unit of cost is shown as a millisecond."""


def trace(timeline: Timeline) -> dict[str, Any]:
    """The timeline as Chrome's trace events, which Perfetto and chrome://tracing open.

    A process for each stage; in it a row for each kind of action, and in lock-step a counter of the
    microbatches in flight. A unit of cost is a millisecond.
    """
    schedule = timeline.schedule
    events: list[dict[str, Any]] = []
    for stage in range(schedule.stages):
        events.append({"ph": "M", "pid": stage, "name": "process_name", "args": {"name": f"stage {stage}"}})
        events.append({"ph": "M", "pid": stage, "name": "process_sort_index", "args": {"sort_index": stage}})
        for row, name in (ROWS[kind] for kind in schedule.kinds):
            events.append({"ph": "M", "pid": stage, "tid": row, "name": "thread_name", "args": {"name": name}})
    for span in timeline.spans:
        row, name = ROWS[span.action.kind]
        at = {"ts": span.start * MICROSECONDS, "dur": (span.end - span.start) * MICROSECONDS}
        args = {"microbatch": span.action.microbatch, "chunk": span.action.chunk}
        place = {"pid": span.stage, "tid": row}
        events.append({"ph": "X", **place, "name": str(span.action), "cat": name, **at, "args": args})
    if timeline.ticks:
        for (tick, stage), count in np.ndenumerate(schedule.in_flight()):
            at = {"pid": stage, "ts": timeline.ticks[tick] * MICROSECONDS}
            events.append({"ph": "C", **at, "name": "in flight", "args": {"microbatches": int(count)}})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


# --- parts ----------------------------------------------------------------------------------------


def _times(schedule: Schedule, costs: Mapping[str, float], shares: Sequence[float] | None) -> dict[str, list[float]]:
    """Kind -> time of that action by group."""
    parts = schedule.shares_of(shares)
    return {kind: [costs[kind] * part for part in parts] for kind in schedule.kinds}


def _exchanges(schedule: Schedule) -> list[bool]:
    """Whether the executor exchanges with neighbours in each tick: where its phase has any arrival."""
    if schedule.stages == 1:
        return [False] * schedule.ticks
    arrivals = ("arrival", "gradient_arrival")
    return [
        any(phase.occurs[name] != "never" for name in arrivals)
        for phase in phases(allocate(schedule).columns)
        for _ in range(phase.start, phase.stop)
    ]
