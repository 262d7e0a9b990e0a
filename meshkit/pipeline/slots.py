"""From a Schedule to what each stage does at each tick with which buffer slot. NumPy only.

A compiler gives registers to values from their lifetimes; this gives slots to activations and
gradients the same way, on the host. Four files of slots, each as large as its busiest stage needs:
  inputs     a stage input, from its arrival until its forward;
  kept       what the forward keeps for the backward, from the one to the other;
  gradients  the gradient of a stage output, from its arrival until its backward;
  held       what an input gradient leaves for its weight gradient, from the one to the other.
A value that a hop brings is written when a tick ends, so its slot may be one that the tick freed.
"""

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np

from meshkit.pipeline.schedule import FORWARD, IDLE, WEIGHT, Schedule

PHASE = "phase"
"""The scan of phase number k is named `phase_k` in the compiled program, so that it can be found there."""


@dataclasses.dataclass(frozen=True)
class Columns:
    """The table as arrays; IDLE (−1) where there is nothing to do.

    Per stage, int32 [tick, stage]: microbatch, chunk and slots of the forward, of the backward (B or I)
    and of the weight gradient (W); `arrival` and `gradient_arrival`: the slot for what a hop brings as
    the tick ends.
    For the whole mesh, int32 [tick]: the microbatch whose embedding is looked up (by all stages, for
    stage 0), whose loss is taken (from the last stage), whose embedding gradient is added;
    `embed_slot`, `head_slot`: where stage 0, the last stage put the result.
    """

    forward: np.ndarray
    forward_chunk: np.ndarray
    input_slot: np.ndarray
    keep_slot: np.ndarray
    backward: np.ndarray
    backward_chunk: np.ndarray
    kept_slot: np.ndarray
    gradient_slot: np.ndarray
    hold_slot: np.ndarray
    weight: np.ndarray
    weight_chunk: np.ndarray
    held_slot: np.ndarray
    arrival: np.ndarray
    gradient_arrival: np.ndarray
    embed: np.ndarray
    embed_slot: np.ndarray
    head: np.ndarray
    head_slot: np.ndarray
    embed_gradient: np.ndarray

    def __getitem__(self, ticks: slice) -> "Columns":
        """The columns of some ticks."""
        return Columns(**{field.name: getattr(self, field.name)[ticks] for field in dataclasses.fields(self)})


@dataclasses.dataclass(frozen=True)
class SlotTable:
    """Columns, and how many slots of each kind a stage needs."""

    columns: Columns
    inputs: int
    kept: int
    gradients: int
    held: int


class Lifetimes(NamedTuple):
    """When the values of each file of slots live: pairs of int arrays [microbatch, group].

    A value is born at the end of tick `birth` and read last at tick `death`; None: no such values.
    """

    inputs: tuple[np.ndarray, np.ndarray]
    kept: tuple[np.ndarray, np.ndarray] | None
    gradients: tuple[np.ndarray, np.ndarray] | None
    held: tuple[np.ndarray, np.ndarray] | None


def lifetimes(schedule: Schedule) -> Lifetimes:
    """When what is stored in slots lives."""
    hop, start = schedule.hop, schedule.ticks_of(FORWARD)
    # The embedding is written before its forward in the same tick, as if the tick before had ended with
    # it; so is the head's gradient.
    inputs = np.concatenate([start[:, :1] - 1, start[:, :-1] + hop - 1], axis=1), start
    if not schedule.trains:
        return Lifetimes(inputs, None, None, None)
    end = schedule.ticks_of(schedule.backward)
    gradients = np.concatenate([end[:, 1:] + hop - 1, start[:, -1:] - 1], axis=1), end
    held = (end - 1, schedule.ticks_of(WEIGHT)) if schedule.splits else None
    return Lifetimes(inputs, (start - 1, end), gradients, held)


def allocate(schedule: Schedule) -> SlotTable:
    """The slot table of a schedule."""
    P, nothing = schedule.stages, np.zeros((schedule.microbatches, schedule.stages * schedule.chunks), int)
    table, lives = _Table(schedule.ticks, P), lifetimes(schedule)
    (input_slots, inputs), (kept_slots, kept), (gradient_slots, gradients), (held_slots, held) = (
        (nothing, 0) if life is None else _color(P, *life) for life in lives
    )
    arrives, start = lives.inputs
    table.write(start, forward=None, input_slot=input_slots, keep_slot=kept_slots)
    table.write(arrives[:, 1:], first_group=1, arrival=input_slots[:, 1:])
    table.write_mesh(start[:, 0], embed=None, embed_slot=input_slots[:, 0])
    table.write_mesh(start[:, -1], head=None, head_slot=gradient_slots[:, -1])
    if lives.gradients is not None:
        gradient_arrives, end = lives.gradients
        table.write(end, backward=None, kept_slot=kept_slots, gradient_slot=gradient_slots, hold_slot=held_slots)
        table.write(gradient_arrives[:, :-1], gradient_arrival=gradient_slots[:, :-1])
        table.write_mesh(end[:, 0], embed_gradient=None)
    if lives.held is not None:
        table.write(lives.held[1], weight=None, held_slot=held_slots)
    return SlotTable(Columns(**table.arrays), inputs, kept, gradients, held)


class _Table:
    """The arrays of Columns while they are filled."""

    def __init__(self, ticks: int, stages: int) -> None:
        per_mesh = ("embed", "embed_slot", "head", "head_slot", "embed_gradient")
        shapes = {f.name: (ticks,) if f.name in per_mesh else (ticks, stages) for f in dataclasses.fields(Columns)}
        self.stages = stages
        self.arrays = {name: np.full(shape, IDLE, np.int32) for name, shape in shapes.items()}

    def write(self, ticks: np.ndarray, first_group: int = 0, **values: np.ndarray | None) -> None:
        """Put `values` [microbatch, group] at their tick and stage; None: the microbatch (and its chunk beside)."""
        i, group = np.indices(ticks.shape)
        chunk, stage = np.divmod(group + first_group, self.stages)
        for name, value in values.items():
            self.arrays[name][ticks, stage] = i if value is None else value
            if value is None:
                self.arrays[f"{name}_chunk"][ticks, stage] = chunk

    def write_mesh(self, ticks: np.ndarray, **values: np.ndarray | None) -> None:
        """Put `values` [microbatch] at their tick; None: the microbatch."""
        for name, value in values.items():
            self.arrays[name][ticks] = np.arange(len(ticks)) if value is None else value


def _color(stages: int, birth: np.ndarray, death: np.ndarray) -> tuple[np.ndarray, int]:
    """Slots for values alive in (birth, death], both [microbatch, group]: the fewest, per stage.

    Taking the lowest free slot in order of birth is optimal for intervals.
    """
    slots = np.full(birth.shape, IDLE)
    most = 0
    for stage in range(stages):
        values = [(birth[i, g], death[i, g], i, g) for i, g in np.ndindex(*birth.shape) if g % stages == stage]
        free_at: list[int] = []  # slot -> the tick at whose end it is free
        for born, dies, i, group in sorted(values):
            slot = next((k for k, free in enumerate(free_at) if free <= born), len(free_at))
            free_at[slot : slot + 1] = [int(dies)]
            slots[i, group] = slot
        most = max(most, len(free_at))
    return slots, most


@dataclasses.dataclass(frozen=True)
class Phase:
    """Consecutive ticks that one scan runs, and which actions occur there: "never", "some", "always".

    An action that occurs always needs no gate; one that never does is not compiled at all.
    """

    start: int
    stop: int
    occurs: dict[str, str]


def phases(columns: Columns) -> list[Phase]:
    """The ticks as few scans: the steady runs, where every stage does the same, and the rest between.

    A loop with an unknown trip count makes the host of a GPU wait, so the steady state has no gates; but, where stages
    hold several chunks, those of embedding and head, which are one chunk's alone.
    """
    ticks = len(columns.embed)
    stage_actions = columns.forward, columns.backward, columns.weight
    kinds = [tuple(_occurs(action[t]) for action in stage_actions) for t in range(ticks)]
    cuts = [0]
    for t in range(1, ticks):
        steady_before, steady_here = "some" not in kinds[t - 1], "some" not in kinds[t]
        if kinds[t] != kinds[t - 1] and (steady_before or steady_here):
            cuts.append(t)
    cuts.append(ticks)
    actions = ("forward", "backward", "weight", "embed", "head", "embed_gradient", "arrival", "gradient_arrival")
    return [
        Phase(a, b, {name: _occurs(getattr(columns, name)[a:b]) for name in actions})
        for a, b in itertools.pairwise(cuts)
    ]


def _occurs(column: np.ndarray) -> str:
    busy = column != IDLE
    return "always" if busy.all() else "some" if busy.any() else "never"
