"""From a Schedule to what each stage does at each tick with which buffer slot. NumPy only.

A compiler gives registers to values from their lifetimes; this gives slots to activations and
gradients the same way, on the host. Three files of slots, each as large as its busiest stage needs:
  inputs     a stage input, from its arrival until its forward;
  kept       what the forward keeps for the backward, from the one to the other;
  gradients  the gradient of a stage output, from its arrival until its backward.
A value that a hop brings is written when a tick ends, so its slot may be one that the tick freed.
"""

import dataclasses
import itertools

import numpy as np

from meshkit.pipeline.schedule import BACKWARD, FORWARD, IDLE, Schedule


@dataclasses.dataclass(frozen=True)
class Columns:
    """The table as arrays; IDLE (−1) where there is nothing to do.

    Per stage, int32 [tick, stage]: microbatch, chunk and slots of the forward and of the backward;
    `arrival` and `gradient_arrival`: the slot for what the hop at the tick's end brings.
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


def allocate(schedule: Schedule) -> SlotTable:
    """The slot table of a schedule."""
    P, T, groups = schedule.stages, schedule.ticks, schedule.stages * schedule.chunks
    start = schedule.ticks_of(FORWARD)
    end = schedule.ticks_of(BACKWARD) if schedule.trains else start
    per_stage = {name: np.full((T, P), IDLE, np.int32) for name in _PER_STAGE}
    per_mesh = {name: np.full(T, IDLE, np.int32) for name in _PER_MESH}

    # A value is born at the end of tick `birth` and read last at tick `death`.
    input_slots, inputs = _color(P, _born(start, groups), start)
    kept_slots, kept = _color(P, start - 1, end) if schedule.trains else (start * 0 + IDLE, 0)
    gradient_slots, gradients = _color(P, _born_gradient(start, end), end) if schedule.trains else (kept_slots, 0)

    for (i, group), tick in np.ndenumerate(start):
        chunk, stage = divmod(group, P)
        per_stage["forward"][tick, stage] = i
        per_stage["forward_chunk"][tick, stage] = chunk
        per_stage["input_slot"][tick, stage] = input_slots[i, group]
        per_stage["keep_slot"][tick, stage] = kept_slots[i, group]
        if group == 0:
            per_mesh["embed"][tick], per_mesh["embed_slot"][tick] = i, input_slots[i, group]
        else:
            per_stage["arrival"][start[i, group - 1], stage] = input_slots[i, group]
        if group == groups - 1:
            per_mesh["head"][tick], per_mesh["head_slot"][tick] = i, gradient_slots[i, group]
    for (i, group), tick in np.ndenumerate(end) if schedule.trains else ():
        chunk, stage = divmod(group, P)
        per_stage["backward"][tick, stage] = i
        per_stage["backward_chunk"][tick, stage] = chunk
        per_stage["kept_slot"][tick, stage] = kept_slots[i, group]
        per_stage["gradient_slot"][tick, stage] = gradient_slots[i, group]
        if group == 0:
            per_mesh["embed_gradient"][tick] = i
        if group < groups - 1:
            per_stage["gradient_arrival"][end[i, group + 1], stage] = gradient_slots[i, group]
    return SlotTable(Columns(**per_stage, **per_mesh), inputs, kept, gradients)


_PER_STAGE = (
    "forward", "forward_chunk", "input_slot", "keep_slot", "backward", "backward_chunk",
    "kept_slot", "gradient_slot", "arrival", "gradient_arrival",
)  # fmt: skip
_PER_MESH = ("embed", "embed_slot", "head", "head_slot", "embed_gradient")


def _born(start: np.ndarray, groups: int) -> np.ndarray:
    """When inputs are written: as the previous group's tick ends; the embedding before its own forward."""
    return np.concatenate([start[:, :1] - 1, start[:, : groups - 1]], axis=1)


def _born_gradient(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """When gradients are written: as the next group's backward ends; the head's before its forward's tick ends."""
    return np.concatenate([end[:, 1:], start[:, -1:] - 1], axis=1)


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

    A loop with an unknown trip count makes the host of a GPU wait, so the steady state has no gates.
    """
    ticks = len(columns.embed)
    kinds = [(_occurs(columns.forward[t]), _occurs(columns.backward[t])) for t in range(ticks)]
    cuts = [0]
    for t in range(1, ticks):
        steady_before, steady_here = "some" not in kinds[t - 1], "some" not in kinds[t]
        if kinds[t] != kinds[t - 1] and (steady_before or steady_here):
            cuts.append(t)
    cuts.append(ticks)
    actions = ("forward", "backward", "embed", "head", "embed_gradient")
    return [
        Phase(a, b, {name: _occurs(getattr(columns, name)[a:b]) for name in actions})
        for a, b in itertools.pairwise(cuts)
    ]


def _occurs(column: np.ndarray) -> str:
    busy = column != IDLE
    return "always" if busy.all() else "some" if busy.any() else "never"
