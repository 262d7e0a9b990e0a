"""Builders of schedules, by name. NumPy only.

A builder takes (stages P, microbatches m, chunks v, hop) and says at which tick each action happens, with
i a microbatch, s a stage, c a chunk. The orders are for lock-step execution, where one tick holds a
forward and a backward: a stage that did only one of them would wait for neighbours that do the other.
What they cost in ticks, time and slots is said in `closed_forms.py`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from meshkit.config import PipelineConfig
from meshkit.errors import MeshkitError, nearest
from meshkit.pipeline import grid
from meshkit.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule, from_ticks

Ticks = Mapping[str, np.ndarray]
"""Kind of action -> when it happens: int array [microbatch, group], as `Schedule.ticks_of` returns it."""


@dataclasses.dataclass(frozen=True)
class Builder:
    """A schedule's name and its ticks; called with the same arguments, it builds the table that has them."""

    name: str
    ticks: Callable[[int, int, int, int], Ticks]

    def __call__(self, stages: int, microbatches: int, chunks: int = 1, hop: int = 1) -> Schedule:
        return from_ticks(self.name, stages, self.ticks(stages, microbatches, chunks, hop), hop)


def _named(name: str) -> Callable[[Callable[[int, int, int, int], Ticks]], Builder]:
    return lambda ticks: Builder(name, ticks)


@_named("gpipe")
def gpipe(stages: int, microbatches: int, chunks: int = 1, hop: int = 1) -> Ticks:
    """All forwards, then all backwards: stored activations grow with the microbatches (arXiv 1811.06965)."""
    i, s, last = *_grid(stages, microbatches, chunks, "gpipe"), stages - 1
    forward = i + hop * s
    return {FORWARD: forward, BACKWARD: forward.max() + 1 + i + hop * (last - s)}


@_named("1f1b")
def one_f_one_b(stages: int, microbatches: int, chunks: int = 1, hop: int = 1) -> Ticks:
    """A backward as soon as its microbatch has left the last stage (PipeDream-flush, arXiv 2006.09503).

    Few microbatches are in flight, whatever their number; with hop = 1 the bubble is the ideal one.
    """
    i, s, last = *_grid(stages, microbatches, chunks, "1f1b"), stages - 1
    return {FORWARD: i + hop * s, BACKWARD: i + hop * (2 * last - s)}


@_named("interleaved")
def interleaved(stages: int, microbatches: int, chunks: int = 1, hop: int = 1) -> Ticks:
    """1F1B over v chunks a stage: the bubble shrinks, hops and stored activations grow (arXiv 2104.04473).

    Microbatches go through a chunk in groups of P, so m must be a multiple of P; with g, j = divmod(i, P)
    the forward of chunk c is at gPv + cP + j + s, its backward mirrors it from tick vP − 1 on.
    Raises MeshkitError when m is no multiple, or for a hop of 2 (the next chunk's forward would wait).
    """
    if microbatches % stages:
        fits = sorted({max(stages, microbatches // stages * stages), -(-microbatches // stages) * stages})
        raise MeshkitError(
            f"pipeline.microbatches = {microbatches} is not a multiple of mesh.pipe = {stages}, as the interleaved "
            f"schedule needs: set pipeline.microbatches to {' or '.join(map(str, fits))}"
        )
    if hop > 1:
        raise MeshkitError("pipeline.overlap = true does not go with the interleaved schedule: choose 1f1b, or false")
    group = np.arange(chunks * stages)[None, :]
    c, s = group // stages, group % stages
    g, j = np.divmod(np.arange(microbatches)[:, None], stages)
    start = g * stages * chunks + j
    forward = start + c * stages + s
    backward = start + (chunks - 1 - c) * stages + (stages - 1 - s) + chunks * stages - 1
    return {FORWARD: forward, BACKWARD: backward}


@_named("zero-bubble")
def zero_bubble(stages: int, microbatches: int, chunks: int = 1, hop: int = 1) -> Ticks:
    """1F1B with the backward split: the weight gradients wait for stage 0's tick (after ZB-H1, arXiv 2401.10241).

    While the pipeline fills, ticks hold F or F+I; the W that 1F1B would do there move into the drain,
    where stages are idle anyway: as many ticks as 1F1B, but those of the drain are shorter by W. It holds up to
    hop·(P−1) + 1 microbatches' inputs and output gradients of linears between I and W.
    """
    i, s, last = *_grid(stages, microbatches, chunks, "zero-bubble"), stages - 1
    return {FORWARD: i + hop * s, INPUT: i + hop * (2 * last - s), WEIGHT: i + hop * (2 * last + 0 * s)}


def forward_only(stages: int, microbatches: int, chunks: int = 1, hop: int = 1) -> Schedule:
    """Forwards without backwards: evaluation. Those of 1F1B; of several chunks one after another, a wave each.

    Evaluation has no need of the tight order that training has, and its hops nothing to hide behind where chunks wait
    for whole waves: there `hop` is 1 whatever was asked.
    """
    if chunks > 1:
        group = np.arange(chunks * stages)[None, :]
        wave = max(microbatches, stages)
        forward = np.arange(microbatches)[:, None] + group // stages * wave + group % stages
        return from_ticks("forward", stages, {FORWARD: forward})
    i, s = _grid(stages, microbatches, chunks, "forward")
    return from_ticks("forward", stages, {FORWARD: i + hop * s}, hop)


BUILDERS: dict[str, Builder] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zero-bubble": zero_bubble,
}


def from_config(config: PipelineConfig, stages: int) -> Schedule:
    """The schedule that the config's pipeline table asks for, as `named` gives it."""
    return named(config.schedule, stages, config.microbatches, config.virtual, 2 if config.overlap else 1)


def named(name: str, stages: int, microbatches: int, chunks: int = 1, hop: int = 1) -> Schedule:
    """The schedule that `pipeline.schedule` names, built or read from a file.

    Raises MeshkitError when there is none, or the file's is for another mesh or number of microbatches.
    """
    if not grid.is_path(name):
        return build(name, stages, microbatches, chunks, hop)
    table = from_file(name, "pipeline.schedule = ")
    as_overlap = lambda ticks: str(ticks > 1).lower()
    for what, found, key, asked, spell in (
        ("stages", table.stages, "mesh.pipe", stages, str),
        ("microbatches", table.microbatches, "pipeline.microbatches", microbatches, str),
        ("chunks a stage", table.chunks, "pipeline.virtual", chunks, str),
        ("ticks a hop ('# hop')", table.hop, "pipeline.overlap", hop, as_overlap),
    ):
        if found != asked:
            mend = f"set {key} to {spell(found)}"
            raise MeshkitError(f"{table.name} has {found} {what} and {key} = {spell(asked)}: {mend}")
    if not table.trains:
        raise MeshkitError(f"{table.name} has no backwards: a schedule of training has B, or I and W")
    return table


def from_file(name: str, asked: str) -> Schedule:
    """The schedule in a file. Raises MeshkitError for a bad one, and if there is none, after `asked` and its name."""
    try:
        return grid.read(Path(name))
    except FileNotFoundError:
        near, folder = grid.beside(Path(name)), Path(name).parent
        grids = f"; {nearest(Path(name).name, near)} (in {folder})" if near else ""
        raise MeshkitError(
            f"{asked}{name!r}: no such file; schedules without one: {', '.join(BUILDERS)}{grids}"
        ) from None


def unknown(name: str) -> str:
    """What is said of a name that neither a builder has nor a file of a grid could have."""
    return f"no such schedule, and a grid's file would end in {grid.SUFFIX}; {nearest(name, BUILDERS)}"


def build(name: str, stages: int, microbatches: int, chunks: int = 1, hop: int = 1) -> Schedule:
    """The schedule of a builder. Raises MeshkitError for an unknown name."""
    if name not in BUILDERS:
        raise MeshkitError(f"pipeline.schedule = {name!r}: {unknown(name)}")
    return BUILDERS[name](stages, microbatches, chunks, hop)


def _grid(stages: int, microbatches: int, chunks: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Broadcastable microbatch [m, 1] and stage [1, P] numbers, for schedules of one chunk a stage."""
    if chunks > 1:
        raise MeshkitError(
            f"pipeline.virtual = {chunks} needs pipeline.schedule = 'interleaved'; {name!r} has one chunk a stage"
        )
    return np.arange(microbatches)[:, None], np.arange(stages)[None, :]
