"""A pipeline schedule as data: who does what at each tick, its laws and its cost. NumPy only.

Words: a *stage* is a position on the pipe axis; a *chunk* (virtual stage) is a consecutive group of
layers, and a stage holds `chunks` of them: chunk c of stage s is the c·P + s-th group of the model. A
*tick* is one column of the table: every stage does at most one action of each kind, then hands its
results to its neighbours: a hop. A *microbatch* flows whole. The kinds of action are F, forward; B,
backward; or, in a split schedule, instead of B: I, its input gradient, and later W, its weight gradient.

The table is what the executor runs, the planner times, the viewer draws and the tests check.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

IDLE = -1
FORWARD, BACKWARD, INPUT, WEIGHT = "F", "B", "I", "W"
KINDS = ((FORWARD,), (FORWARD, BACKWARD), (FORWARD, INPUT, WEIGHT))
"""Which kinds a table has: evaluation, training, training with the backward split."""


class Action(NamedTuple):
    """A kind of work on a microbatch in a chunk."""

    kind: str
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


class LawError(ValueError):
    """Why a table is no schedule: the law, and where it is broken as far as that has a place.

    An action that is done nowhere has a stage but no tick; an unlawful set of kinds has neither.
    """

    def __init__(
        self, name: str, law: str, action: Action | None = None, stage: int | None = None, tick: int | None = None
    ) -> None:
        at = f" at tick {tick}, stage {stage}:" if tick is not None else f" of stage {stage}"
        super().__init__(f"schedule {name!r}: " + (f"{action}{at} {law}" if action else law))
        self.law, self.action, self.stage, self.tick = law, action, stage, tick


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A checked table of actions. `cells[tick][stage]` is the tuple of actions done there.

    chunks: groups of layers that a stage holds (v). hop: ticks from a result to its arrival at a neighbour: 1, or 2,
    where an exchange goes on beside the work of the next tick.

    Raises LawError, a ValueError, on construction, naming tick, stage and action:
    every action once; a forward after the previous group's; a backward after its own forward and
    after the next group's backward; at most one action of a kind in a cell; a cell for every stage.
    A table without any backward is an evaluation schedule.
    """

    name: str
    stages: int
    microbatches: int
    cells: tuple[tuple[tuple[Action, ...], ...], ...]
    chunks: int = 1
    hop: int = 1

    def __post_init__(self) -> None:
        _check(self)

    @property
    def ticks(self) -> int:
        """Columns of the table."""
        return len(self.cells)

    @functools.cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of action in the table, in the order in which a tick does them: one of KINDS."""
        found = {action.kind for _, _, action in self}
        return tuple(kind for kind in (FORWARD, BACKWARD, INPUT, WEIGHT) if kind in found)

    @property
    def trains(self) -> bool:
        """Whether the table has backwards."""
        return len(self.kinds) > 1

    @property
    def splits(self) -> bool:
        """Whether backwards are split into I and W."""
        return WEIGHT in self.kinds

    @property
    def backward(self) -> str:
        """The kind that makes the gradient of a stage's input: B, or I when split."""
        return INPUT if self.splits else BACKWARD

    @property
    def backward_at_once(self) -> bool:
        """Whether every backward stands in the tick of its forward, as with a single stage."""
        return self.trains and bool((self.ticks_of(FORWARD) == self.ticks_of(self.backward)).all())

    def __iter__(self) -> Iterator[tuple[int, int, Action]]:
        """(tick, stage, action) in the order in which a tick does them."""
        for tick, column in enumerate(self.cells):
            for stage, actions in enumerate(column):
                for action in actions:
                    yield tick, stage, action

    def ticks_of(self, kind: str) -> np.ndarray:
        """When each action of `kind` happens: int array [microbatch, group], group = chunk·P + stage."""
        when = np.full((self.microbatches, self.chunks * self.stages), IDLE)
        for tick, stage, action in self:
            if action.kind == kind:
                when[action.microbatch, action.chunk * self.stages + stage] = tick
        return when

    def in_flight(self) -> np.ndarray:
        """Microbatches forward done, backward pending (counting the one at work): int [tick, stage]."""
        count = np.zeros((self.ticks, self.stages), int)
        if not self.trains:
            return count
        starts, ends = self.ticks_of(FORWARD), self.ticks_of(self.backward)
        for group in range(self.chunks * self.stages):
            for start, end in zip(starts[:, group], ends[:, group], strict=True):
                count[start : end + 1, group % self.stages] += 1
        return count

    def cost(self, costs: Mapping[str, float], shares: Sequence[float] | None = None) -> float:
        """Time of the whole table in lock-step: each tick lasts as long as its busiest stage.

        `costs`: kind -> time of that action for the layers of a stage. `shares`: as `shares_of` takes them.
        """
        parts = self.shares_of(shares)

        def busy(stage: int, actions: tuple[Action, ...]) -> float:
            return sum(costs[a.kind] * parts[a.chunk * self.stages + stage] for a in actions)

        return sum(max(busy(stage, actions) for stage, actions in enumerate(column)) for column in self.cells)

    def bubble(self, costs: Mapping[str, float], shares: Sequence[float] | None = None) -> float:
        """Share of the stages' time that is idle in lock-step, 0 … 1. Arguments as for `cost`."""
        work = self.microbatches * sum(costs[kind] for kind in self.kinds) * sum(self.shares_of(shares))
        return 1 - work / (self.stages * self.cost(costs, shares))

    def ideal_bubble(self, shares: Sequence[float] | None = None) -> float:
        """The idle share of an ideal pipeline: (P−1)/(m+P−1) of equal stages (GPipe, arXiv 1811.06965).

        Of stages with the work w: 1 − mΣw / P·max(m·w_s + Σw_{u<s}). Stage s works on m microbatches; those before it
        go forward before it can begin, and backward after it has ended. `shares`: as `shares_of` takes them.
        """
        parts, m = self.shares_of(shares), self.microbatches
        work = [sum(parts[stage :: self.stages]) for stage in range(self.stages)]
        total = max(m * own + sum(work[:stage]) for stage, own in enumerate(work))
        return 1 - m * sum(work) / (self.stages * total)

    def shares_of(self, shares: Sequence[float] | None) -> Sequence[float]:
        """By group, its layers over those of a stage (`Placement.shares`); None: chunks of equal length."""
        groups = self.stages * self.chunks
        parts = [1 / self.chunks] * groups if shares is None else shares
        if len(parts) != groups:
            raise ValueError(f"{len(parts)} shares for {groups} groups of layers")
        return parts

    def __str__(self) -> str:
        """The grid as text: a row a stage, a column a tick, `F2+B0` for two actions, `.` for none."""
        rows = [["+".join(map(str, column[s])) or "." for column in self.cells] for s in range(self.stages)]
        width = max(len(cell) for row in rows for cell in row)
        return "\n".join(" ".join(cell.ljust(width) for cell in row).rstrip() for row in rows)


def from_ticks(name: str, stages: int, ticks: Mapping[str, np.ndarray], hop: int = 1) -> Schedule:
    """The Schedule that does each action at a given tick.

    `ticks`: kind -> int array [microbatch, group], as `Schedule.ticks_of` returns it.
    """
    microbatches, groups = ticks[FORWARD].shape
    length = 1 + max(int(t.max()) for t in ticks.values())
    cells: list[list[list[Action]]] = [[[] for _ in range(stages)] for _ in range(length)]
    for kind, when in ticks.items():
        for (microbatch, group), tick in np.ndenumerate(when):
            cells[tick][group % stages].append(Action(kind, microbatch, group // stages))
    frozen = tuple(tuple(tuple(actions) for actions in column) for column in cells)
    return Schedule(name, stages, microbatches, frozen, groups // stages, hop)


def needs(table: Schedule, kind: str, group: int) -> dict[tuple[str, int], int]:
    """(kind, group) whose action on the same microbatch must be done before -> by how many ticks at least."""
    if kind == FORWARD:
        return {(FORWARD, group - 1): table.hop} if group > 0 else {}
    if kind == WEIGHT:
        return {(INPUT, group): 0}
    is_last = group == table.chunks * table.stages - 1
    return {(FORWARD, group): 0} | ({} if is_last else {(kind, group + 1): table.hop})


def _check(table: Schedule) -> None:
    def refuse(tick: int, stage: int, action: Action, law: str) -> None:
        raise LawError(table.name, law, action, stage, tick)

    for tick, column in enumerate(table.cells):
        if len(column) != table.stages:
            cells = f"{len(column)} cells, not one for each of {table.stages} stages"
            raise LawError(table.name, f"tick {tick} has {cells}")
    seen: set[str] = set()
    for tick, stage, action in table:
        seen.add(action.kind)
        if not any(seen <= set(kinds) for kinds in KINDS) and action.kind in table.kinds:
            refuse(
                tick, stage, action, f"a table that has {', '.join(sorted(seen - {action.kind}))} has no {action.kind}"
            )
    if table.kinds not in KINDS:
        found = f"the kinds {', '.join(table.kinds)}" if table.kinds else "no action"
        raise LawError(table.name, f"it has {found}: a table has F, or F and B, or F, I and W")
    done: dict[tuple[str, int, int], int] = {}
    for tick, stage, action in table:
        group = action.chunk * table.stages + stage
        if action.kind not in table.kinds:
            refuse(tick, stage, action, "an action is F, B, I or W")
        if not (0 <= action.microbatch < table.microbatches and 0 <= action.chunk < table.chunks):
            refuse(tick, stage, action, f"there are {table.microbatches} microbatches and {table.chunks} chunks")
        if (action.kind, action.microbatch, group) in done:
            refuse(tick, stage, action, "this action was done before")
        if sum(other.kind == action.kind for other in table.cells[tick][stage]) > 1:
            refuse(tick, stage, action, "a cell has at most one action of a kind")
        for (kind, neighbour), ticks in needs(table, action.kind, group).items():
            at = done.get((kind, action.microbatch, neighbour))
            if at is None or at + ticks > tick:
                where = f"stage {neighbour % table.stages}, chunk {neighbour // table.stages}"
                when = f", at least {ticks} tick{'s' * (ticks > 1)} before" if ticks else " first"
                refuse(tick, stage, action, f"needs {kind}{action.microbatch} of {where}{when}")
        done[action.kind, action.microbatch, group] = tick
    groups = range(table.chunks * table.stages)
    every = ((kind, i, group) for kind in table.kinds for i in range(table.microbatches) for group in groups)
    for kind, microbatch, group in every:
        if (kind, microbatch, group) not in done:
            missing = Action(kind, microbatch, group // table.stages)
            raise LawError(table.name, "is missing", missing, group % table.stages)
