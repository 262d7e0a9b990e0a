"""What a compiled step does, from its text: FLOPs by action, exchanges by axis and link; of each stage, in one step.

Stages run the same program, but not all of it equally often: `pipeline/trips.py` says how often.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from meshkit.hlo import Collective, Module
from meshkit.pipeline.trips import ACTIONS, Trips, action_of
from meshkit.planner.products import flops, is_attention

INSIDE, BETWEEN = "in node", "between nodes"

OUTSIDE = "rest"
"""What stands outside of the ticks: gathered weights, reduced gradients, the update."""


@dataclasses.dataclass(frozen=True)
class Work:
    """FLOPs of one device in one step. action: of `trips.ACTIONS`, or OUTSIDE. flops: by stage.

    Where a forward and a backward of one tick multiply by the same matrix, XLA may make one product of the two and
    name it after either: their sum is sure, their parts are not.
    """

    action: str
    kind: str
    flops: list[float]


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Exchanges that one device takes part in, in one step.

    axis: mesh axes along which its groups lie, as "tensor" or "tensor × pipe". link: BETWEEN if any group leaves
    its node. kind: of `hlo.COLLECTIVES`. times, bytes: by stage; bytes of the whole arrays, see `hlo.Collective`.
    """

    axis: str
    link: str
    kind: str
    times: list[int]
    bytes: list[int]


@dataclasses.dataclass(frozen=True)
class Figures:
    """uncounted: instructions whose products or trips are not known, by their name in the program -> places."""

    work: list[Work]
    traffic: list[Traffic]
    uncounted: dict[str, int]


def figures(module: Module, trips: Trips, mesh: Mapping[str, int], nodes: Sequence[int]) -> Figures:
    """The figures of a step.

    mesh: axis -> size, in the order of the Mesh's axes. nodes: the node of each partition, in order of the
    Mesh's devices.
    """
    work: dict[tuple[str, str], np.ndarray] = {}
    uncounted: Counter[str] = Counter()
    for computation, instruction, loops in module.walk():
        done = flops(computation, instruction)
        if done == 0:
            continue
        times = trips.of(loops)
        if done is None or times is None:
            uncounted[instruction.op_name or instruction.name] += 1
            continue
        action = action_of(instruction.op_name) or next(filter(None, (action_of(e.op_name) for e in loops)), OUTSIDE)
        key = action, "attention" if is_attention(instruction) else "products"
        work[key] = work.get(key, 0) + done * times
    traffic: dict[tuple[str, str, str], tuple[np.ndarray, np.ndarray]] = {}
    for collective in module.collectives():
        axes, times = collective.axes(mesh), trips.of(collective.loops)
        if not axes:
            continue
        if times is None:
            uncounted[collective.op_name or collective.kind] += 1
            continue
        name = " × ".join(axis for axis in mesh if axis in axes), link(collective, nodes), collective.kind
        before = traffic.get(name, (0, 0))
        traffic[name] = before[0] + times, before[1] + times * collective.bytes
    order = (*ACTIONS, OUTSIDE)
    return Figures(
        [Work(*key, work[key].tolist()) for key in sorted(work, key=lambda key: (order.index(key[0]), key[1]))],
        [Traffic(*name, *(array.tolist() for array in traffic[name])) for name in sorted(traffic)],
        dict(uncounted),
    )


def link(collective: Collective, nodes: Sequence[int]) -> str:
    """The slowest link that an exchange crosses."""
    return BETWEEN if any(len({nodes[k] for k in group}) > 1 for group in collective.groups) else INSIDE
