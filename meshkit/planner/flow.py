"""How long a pipeline takes, from what a stage's actions take: the tables' own time, without running through them.

Lock-step (meshkit): a tick lasts as long as its busiest stage. Where all chunks are alike, that is a closed form;
else the ticks of the table are gone through, once, for few microbatches, and prolonged: in the steady
state more microbatches always cost the same. A grid of the user's own is gone through whole. Asynchronous (one
program a stage): the longest path.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from meshkit.pipeline import builders, closed_forms
from meshkit.pipeline.schedule import BACKWARD, FORWARD, Schedule, from_ticks
from meshkit.pipeline.slots import allocate

STEADY = 2
"""A table of STEADY·P·hop microbatches or more has reached its steady state."""

Costs = Mapping[str, float]
"""Kind of action -> its time for one layer."""


class Table(NamedTuple):
    """Which table: what a builder is called with; of a grid's file, whose name stands for it, what it must have."""

    name: str
    stages: int
    microbatches: int
    chunks: int = 1
    hop: int = 1

    @property
    def built(self) -> bool:
        """Whether a builder makes it, for which there are closed forms."""
        return self.name in closed_forms.TIME

    @property
    def schedule(self) -> Schedule:
        """The executor's own. Raises MeshkitError as `builders.named` does."""
        return _schedule(self)

    @property
    def ticks(self) -> int:
        """Columns, each of which ends with a hop."""
        return closed_forms.ticks(*self) if self.built else self.schedule.ticks

    @property
    def backward_at_once(self) -> bool:
        """`Schedule.backward_at_once`."""
        of = closed_forms.backward_at_once
        return of(self.name, self.stages, self.chunks) if self.built else self.schedule.backward_at_once

    @property
    def splits(self) -> bool:
        """`Schedule.splits`."""
        return self.name == "zero-bubble" if self.built else self.schedule.splits

    @property
    def slots(self) -> Mapping[str, int]:
        """Slots of each file that `slots.allocate` gives it."""
        return closed_forms.slots(*self) if self.built else _slots(self)


@functools.lru_cache(maxsize=256)
def _schedule(table: Table) -> Schedule:
    return builders.named(*table)


@functools.lru_cache(maxsize=64)
def _slots(table: Table) -> dict[str, int]:
    found = allocate(table.schedule)
    return {"inputs": found.inputs, "kept": found.kept, "gradients": found.gradients, "held": found.held}


def lock_step(table: Table, costs: Costs, counts: Sequence[int]) -> float:
    """Time of a table, hops left out. counts: layers of each of the P·v groups."""
    if table.built and len(set(counts)) == 1 and table.microbatches >= table.hop:
        times = {kind: cost * counts[0] * table.chunks for kind, cost in costs.items()}
        return closed_forms.TIME[table.name](*table[1:], times)
    return _over_ticks(table, costs, counts, lambda tick: tick)


def exposed(table: Table, costs: Costs, counts: Sequence[int], hop: float) -> float:
    """Time of a table's hops, of `hop` each, that work does not hide: all of it, but where a hop has a whole tick it
    is what the tick is shorter."""
    if table.hop == 1:
        return table.ticks * hop
    return _over_ticks(table, costs, counts, lambda tick: np.maximum(0.0, hop - tick))


def shortened(table: Table) -> tuple[int, int]:
    """The fewest microbatches that reach the steady state, and by how many it goes on: interleaved by P at a time."""
    few = min(table.microbatches, STEADY * table.stages * table.hop) if table.built else table.microbatches
    return few, table.stages if table.name == "interleaved" else 1


def _over_ticks(table: Table, costs: Costs, counts: Sequence[int], of: Callable[[np.ndarray], np.ndarray]) -> float:
    """Sum over the ticks of a table of what `of` makes of their times [tick]."""
    short, step = shortened(table)

    def summed(microbatches: int) -> float:
        kinds, cells, present, times = _loads(table._replace(microbatches=microbatches), tuple(counts))
        each = cells @ np.array([costs[kind] for kind in kinds])
        return float(of(np.where(present, each, 0.0).max(axis=1)) @ times)

    total = summed(short)
    if short == table.microbatches:
        return total
    return total + (summed(short + step) - total) * ((table.microbatches - short) // step)


class _Loads(NamedTuple):
    """A table as far as its time goes. cells: layers of each of `kinds` that a stage goes through in a tick, those that
    differ, [cell, kind]; present: which cells a tick has, of ticks that differ, bool [tick, cell]; times: how often
    each such tick is."""

    kinds: tuple[str, ...]
    cells: np.ndarray
    present: np.ndarray
    times: np.ndarray


@functools.lru_cache(maxsize=8192)
def _loads(table: Table, counts: tuple[int, ...]) -> _Loads:
    """From the builder's ticks alone: the table itself, with its laws checked, would take a hundred times as long."""
    ticks = builders.BUILDERS[table.name].ticks(*table[1:]) if table.built else _ticks(table.schedule)
    levels = np.array(sorted({0, *counts}))
    layers, stage = np.searchsorted(levels, counts), np.arange(table.stages * table.chunks) % table.stages
    codes = np.zeros((1 + max(int(when.max()) for when in ticks.values()), table.stages), int)
    for digit, when in enumerate(ticks.values()):
        codes[when, stage] += layers * len(levels) ** digit  # a cell has at most one action of a kind
    digits = np.arange(len(levels) ** len(ticks))[:, None] // len(levels) ** np.arange(len(ticks))
    present = np.zeros((len(codes), len(digits)), bool)
    present[np.arange(len(codes))[:, None], codes] = True
    return _Loads(tuple(ticks), levels[digits % len(levels)], *np.unique(present, axis=0, return_counts=True))


def _ticks(schedule: Schedule) -> builders.Ticks:
    return {kind: schedule.ticks_of(kind) for kind in schedule.kinds}


# --- one program a stage --------------------------------------------------------------------------


def asynchronous(stages: Sequence[float], microbatches: int, chunks: int = 1) -> float:
    """Time of 1F1B where stages wait for nothing but their inputs. stages: F + B of each stage.

    The busiest stage works through all its microbatches; before its first and after its last, one microbatch goes
    through the others, or one chunk's share of it when interleaved (arXiv 2104.04473).
    """
    busiest = max(stages)
    return microbatches * busiest + (sum(stages) - busiest) / chunks


def early_backward(stages: int, microbatches: int) -> Schedule:
    """1F1B as Megatron orders it (arXiv 2104.04473): P − s forwards at stage s, then a backward and a forward in
    turn, one action a tick. In flight at stage s: P − s."""
    i, s = np.arange(microbatches)[:, None], np.arange(stages)[None, :]
    forward = np.where(i < stages - s, i + s, 2 * i + s)
    return from_ticks("early-backward", stages, {FORWARD: forward, BACKWARD: 2 * stages - 1 - s + 2 * i})
