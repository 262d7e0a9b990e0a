"""The pipeline's table for the page: every action with its tick, time and microbatch, what is idle and why, what
is stored meanwhile."""

import dataclasses
import itertools
from collections.abc import Iterable

from meshkit.errors import MeshkitError
from meshkit.pipeline.costs import slot_bytes
from meshkit.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule
from meshkit.pipeline.timeline import CAUSES, Timeline, asynchronous, lock_step, memory
from meshkit.view.devices import action_seconds, tensor_shares
from meshkit.view.setting import Case

KINDS = (FORWARD, BACKWARD, INPUT, WEIGHT)

ACTIVATIONS = "activations"

FORWARDS = 2**16
"""Of all stages, that the page draws; the largest layouts of the planner have some ten thousand."""


@dataclasses.dataclass(frozen=True)
class Actions:
    """Actions in the table's order, a column each. kind: index into KINDS. Times of the lock-step that the executor
    runs (start, end) and of stages that wait for nothing but their inputs (free_start, free_end), in ms."""

    tick: list[int]
    stage: list[int]
    kind: list[int]
    microbatch: list[int]
    chunk: list[int]
    start_ms: list[float]
    end_ms: list[float]
    free_start_ms: list[float]
    free_end_ms: list[float]


@dataclasses.dataclass(frozen=True)
class Idle:
    """Idle spans, a column each. cause: index into CAUSES."""

    stage: list[int]
    cause: list[int]
    start: list[float]
    end: list[float]


@dataclasses.dataclass(frozen=True)
class Table:
    """A schedule and its time and memory.

    tick_ms: start of each tick, then the end. bubble: idle share of the table's time, in lock-step and free.
    idle_ticks, idle_ms, idle_free_ms: idle spans in whole ticks, in ms of lock-step, in ms without it.
    in_flight: microbatches (of a chunk each) stored, [tick][stage]. in_use_bytes: of a device's activations, in
    bytes, [tick][stage]. reserved_bytes: what the executor sets aside for them. resident_bytes: the other kinds of
    memory of a device, always there. hop_ms: of an exchange of neighbours. tensor_share: kind of action -> share of
    its time in which tensor peers exchange.
    """

    name: str
    stages: int
    microbatches: int
    chunks: int
    ticks: int
    kinds: list[str]
    actions: Actions
    tick_ms: list[float]
    free_ms: float
    hop_ms: float
    tensor_share: dict[str, float]
    bubble: float
    free_bubble: float
    idle_ticks: Idle
    idle_ms: Idle
    idle_free_ms: Idle
    idle_ms_by_cause: dict[str, list[float]]
    in_flight: list[list[int]]
    in_use_bytes: list[list[float]]
    reserved_bytes: float
    resident_bytes: dict[str, float]
    budget_bytes: float
    capacity_bytes: float


def table(case: Case) -> Table:
    """The part of the page that State draws. Raises MeshkitError for more forwards than FORWARDS."""
    forwards = case.setting.microbatches * case.setting.pipe * case.setting.virtual
    if forwards > FORWARDS:
        raise MeshkitError(
            f"microbatches = {case.setting.microbatches}: this page draws {FORWARDS} forwards at most, and these are "
            f"{forwards}"
        )
    schedule = case.layout.table.schedule
    costs = {kind: seconds * 1e3 for kind, seconds in action_seconds(case).items()}
    # A stage's time is that of the stage with most layers; groups have their shares of it.
    counts = case.placement.counts
    longest = max(sum(counts[stage :: schedule.stages]) for stage in range(schedule.stages))
    shares = [count / longest for count in counts]
    hop = _hop_ms(case)
    locked, free = (run(schedule, costs, hop, shares) for run in (lock_step, asynchronous))
    slots = slot_bytes(
        schedule,
        case.job.sizes,
        case.placement.longest,
        case.setting.recompute,
        case.layout.microbatch,
        case.setting.sequence,
        case.job.precision,
    )
    in_use = memory(schedule, slots) / case.setting.tensor
    held = max(case.estimate.memory, key=lambda stage: sum(stage.values()))
    return Table(
        schedule.name,
        schedule.stages,
        schedule.microbatches,
        schedule.chunks,
        schedule.ticks,
        list(schedule.kinds),
        _actions(locked, free),
        _rounded([*locked.ticks, locked.total]),
        round(free.total, 4),
        hop,
        tensor_shares(case),
        locked.bubble,
        free.bubble,
        _idle_ticks(schedule),
        idle_spans(locked),
        idle_spans(free),
        {cause: _rounded(times) for cause, times in locked.idle.items()},
        schedule.in_flight().tolist(),
        [_rounded(row, 0) for row in in_use],
        held[ACTIVATIONS],
        {kind: size for kind, size in held.items() if kind != ACTIVATIONS},
        case.estimate.budget,
        case.cluster.accelerator.memory,
    )


def _hop_ms(case: Case) -> float:
    """Of one exchange with the neighbours, whether or not work hides it."""
    hops = [term for term in case.estimate.terms if term.name == "hops"]
    return 1e3 * sum(term.volume / term.rate + term.extra for term in hops)


def _actions(locked: Timeline, free: Timeline) -> Actions:
    tick = [tick for tick, _, _ in locked.schedule]
    spans = locked.spans
    return Actions(
        tick,
        [span.stage for span in spans],
        [KINDS.index(span.action.kind) for span in spans],
        [span.action.microbatch for span in spans],
        [span.action.chunk for span in spans],
        _rounded(span.start for span in spans),
        _rounded(span.end for span in spans),
        _rounded(span.start for span in free.spans),
        _rounded(span.end for span in free.spans),
    )


# --- idle -----------------------------------------------------------------------------------------


def idle_spans(timeline: Timeline) -> Idle:
    """Where `Timeline.idle` finds idle time: the gaps of each stage, cut at its bounds of fill and drain."""
    schedule, gaps = timeline.schedule, Idle([], [], [], [])
    for stage in range(schedule.stages):
        mine = sorted((s.start, s.end, s.action.kind) for s in timeline.spans if s.stage == stage)
        first = min((start for start, _, kind in mine if kind == schedule.backward), default=timeline.total)
        last = max(first, max(end for _, end, kind in mine if kind == FORWARD))
        edges = [0.0, *(time for start, end, _ in mine for time in (start, end)), timeline.total]
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            cuts = [start, *(bound for bound in (first, last) if start < bound < end), end]
            for a, b in itertools.pairwise(cuts):
                if b - a > 1e-9 * timeline.total:
                    cause = "fill" if b <= first else "drain" if a >= last else "imbalance"
                    _add(gaps, stage, cause, round(a, 4), round(b, 4))
    return gaps


def _idle_ticks(schedule: Schedule) -> Idle:
    """Whole ticks without work, by the same bounds."""
    gaps = Idle([], [], [], [])
    forward, backward = schedule.ticks_of(FORWARD), schedule.ticks_of(schedule.backward)
    for stage in range(schedule.stages):
        first = int(backward[:, stage :: schedule.stages].min())
        last = max(first, int(forward[:, stage :: schedule.stages].max()))
        for tick in range(schedule.ticks):
            if not schedule.cells[tick][stage]:
                cause = "fill" if tick < first else "drain" if tick > last else "imbalance"
                _add(gaps, stage, cause, tick, tick + 1)
    return gaps


def _add(gaps: Idle, stage: int, cause: str, start: float, end: float) -> None:
    gaps.stage.append(stage)
    gaps.cause.append(CAUSES.index(cause))
    gaps.start.append(start)
    gaps.end.append(end)


def _rounded(values: Iterable[float], digits: int = 4) -> list[float]:
    return [round(float(value), digits) for value in values]
