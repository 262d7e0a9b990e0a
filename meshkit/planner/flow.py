"""How long a pipeline takes, from what a stage's actions take: the tables' own time, without running through them.

Lock-step (meshkit): a tick lasts as long as its busiest stage. Where all chunks are alike, that is a closed form;
else the ticks of the table are gone through, once, for few microbatches, and prolonged: in the steady
state more microbatches always cost the same. Asynchronous (one program a stage): the longest path.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from meshkit.pipeline import builders, closed_forms
from meshkit.pipeline.schedule import BACKWARD, FORWARD, Schedule, from_ticks

STEADY = 2
"""A table of STEADY·P microbatches or more has reached its steady state."""

HOP = 1
"""Ticks of a hop: no estimate knows `pipeline.overlap`."""

Costs = Mapping[str, float]
"""Kind of action -> its time for one layer."""


def lock_step(name: str, stages: int, microbatches: int, chunks: int, costs: Costs, counts: Sequence[int]) -> float:
    """Time of a table, hops left out. counts: layers of each of the P·v groups."""
    if len(set(counts)) == 1:
        times = {kind: cost * counts[0] * chunks for kind, cost in costs.items()}
        return closed_forms.TIME[name](stages, microbatches, chunks, HOP, times)
    short, step = shortened(name, stages, microbatches)
    time = _table_time(name, stages, short, chunks, costs, tuple(counts))
    if short == microbatches:
        return time
    longer = _table_time(name, stages, short + step, chunks, costs, tuple(counts))
    return time + (longer - time) * ((microbatches - short) // step)


def shortened(name: str, stages: int, microbatches: int) -> tuple[int, int]:
    """The fewest microbatches that reach the steady state, and by how many it goes on: interleaved by P at a time."""
    return min(microbatches, STEADY * stages), stages if name == "interleaved" else 1


@functools.lru_cache(maxsize=256)
def table(name: str, stages: int, microbatches: int, chunks: int) -> Schedule:
    """The executor's own table."""
    return builders.build(name, stages, microbatches, chunks)


class _Loads(NamedTuple):
    """A table as far as its time goes. cells: layers of each of `kinds` that a stage goes through in a tick, those that
    differ, [cell, kind]; present: which cells a tick has, of ticks that differ, bool [tick, cell]; times: how often
    each such tick is."""

    kinds: tuple[str, ...]
    cells: np.ndarray
    present: np.ndarray
    times: np.ndarray


@functools.lru_cache(maxsize=8192)
def _loads(name: str, stages: int, m: int, chunks: int, counts: tuple[int, ...]) -> _Loads:
    """From the builder's ticks alone: the table itself, with its laws checked, would take a hundred times as long."""
    ticks = builders.BUILDERS[name].ticks(stages, m, chunks, HOP)
    levels = np.array(sorted({0, *counts}))
    layers, stage = np.searchsorted(levels, counts), np.arange(stages * chunks) % stages
    codes = np.zeros((1 + max(int(when.max()) for when in ticks.values()), stages), int)
    for digit, when in enumerate(ticks.values()):
        codes[when, stage] += layers * len(levels) ** digit  # a cell has at most one action of a kind
    digits = np.arange(len(levels) ** len(ticks))[:, None] // len(levels) ** np.arange(len(ticks))
    present = np.zeros((len(codes), len(digits)), bool)
    present[np.arange(len(codes))[:, None], codes] = True
    return _Loads(tuple(ticks), levels[digits % len(levels)], *np.unique(present, axis=0, return_counts=True))


def _table_time(name: str, stages: int, m: int, chunks: int, costs: Costs, counts: tuple[int, ...]) -> float:
    kinds, cells, present, times = _loads(name, stages, m, chunks, counts)
    each = cells @ np.array([costs[kind] for kind in kinds])
    return float(np.where(present, each, 0.0).max(axis=1) @ times)


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
