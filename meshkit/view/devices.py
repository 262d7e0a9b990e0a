"""Who sits where: mesh coordinates on devices, nodes and racks; the groups of each axis and the links they cross."""

import dataclasses

import numpy as np

from meshkit.mesh import AXES, TENSOR, crossings, place, placement_warning
from meshkit.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT
from meshkit.planner.cluster import LEVELS
from meshkit.view.setting import Case
from meshkit.view.words import Text, said


@dataclasses.dataclass(frozen=True)
class LinkFacts:
    """A kind of link. level: node, network (in a rack), spine (between racks). bytes_per_second: one way, of one
    device, at its peak; reached_bytes_per_second: what exchanges get of it."""

    level: str
    name: str
    bytes_per_second: float
    reached_bytes_per_second: float
    latency_seconds: float


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What a group of an axis exchanges: how often a step, V bytes each time, V over what the group's links make of
    it (more than one link's rate where a device passes on only a part of V), latency; the share of its time that work
    hides; seconds of a step in all, without that."""

    name: str
    count: float
    volume_bytes: float
    bytes_per_second: float
    latency_seconds: float
    hidden: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Axis:
    """The groups of one mesh axis. levels: for each group, flat over the other two axes in mesh order, the widest
    level of links it crosses (index into LEVELS; −1 for a group of one). crossing_nodes: groups on several nodes."""

    size: int
    groups: int
    levels: list[int]
    crossing_nodes: int
    exchanges: list[Exchange]


@dataclasses.dataclass(frozen=True)
class DeviceMap:
    """The mesh on its devices. device_at: device number, flat over [data, tensor, pipe]; a device's node is
    device // per_node, its rack node // nodes_per_rack. layers: of each stage, a [first, end) range a chunk.
    warning: of tensor groups that leave their node."""

    shape: list[int]
    device_at: list[int]
    per_node: int
    nodes: int
    nodes_per_rack: int
    axes: dict[str, Axis]
    links: list[LinkFacts]
    layers: list[list[list[int]]]
    warning: Text | None


def mesh(case: Case) -> DeviceMap:
    """The part of the page that Architecture draws."""
    shape, cluster = case.setting.mesh, case.cluster
    grid = place(shape, case.nodes)
    node = grid // cluster.per_node
    crossed, warning = crossings(shape, case.nodes), placement_warning(shape, case.nodes)
    units = (node, node // cluster.per_rack)
    axes = {}
    for dim, axis in enumerate(AXES):
        size = grid.shape[dim]
        spans = [np.ptp(np.moveaxis(unit, dim, -1).reshape(-1, size), axis=1) > 0 for unit in units]
        levels = np.full(grid.size // size, -1) if size == 1 else spans[0].astype(int) + spans[1]
        axes[axis] = Axis(size, grid.size // size, levels.tolist(), crossed[axis], exchanges(case, axis))
    return DeviceMap(
        list(grid.shape),
        grid.reshape(-1).tolist(),
        cluster.per_node,
        cluster.nodes,
        cluster.per_rack,
        axes,
        links(case),
        [stage_layers(case, stage) for stage in range(shape.pipe)],
        said(warning) if warning else None,
    )


def exchanges(case: Case, axis: str) -> list[Exchange]:
    """The estimate's terms of an axis that happen at all, those of the same name and volume together."""
    found: dict[tuple[str, float], Exchange] = {}
    for term in case.estimate.terms:
        if term.kind == axis and term.repeats:
            same = found.get((term.name, term.volume))
            count, seconds = (same.count, same.seconds) if same else (0.0, 0.0)
            found[term.name, term.volume] = Exchange(
                term.name, count + term.repeats, term.volume, term.rate, term.extra, term.hidden, seconds + term.seconds
            )
    return list(found.values())


def links(case: Case) -> list[LinkFacts]:
    """The cluster's links by level."""
    cluster = case.cluster
    return [
        LinkFacts(level, link.name, link.bandwidth, cluster.rate(k), link.latency)
        for k, (level, link) in enumerate(zip(LEVELS, cluster.links, strict=True))
    ]


def stage_layers(case: Case, stage: int) -> list[list[int]]:
    """[first, end) of the layers in each chunk of a stage."""
    placed = case.placement
    groups = range(stage, len(placed.counts), placed.stages)
    return [[int(placed.starts[g]), int(placed.starts[g]) + placed.counts[g]] for g in groups]


def action_seconds(case: Case, kind: str | None = None) -> dict[str, float]:
    """Kind of action -> seconds of it on a stage of the most layers, from the estimate's own parts.

    kind: only those that it spends on compute, tensor, or data.
    """
    m, parts = case.setting.microbatches, [part for part in case.estimate.parts if part.action]
    spent = lambda terms: terms.seconds if kind is None else terms.by_kind.get(kind, 0.0)
    of = {part.action: part.repeats * spent(part.terms) / m for part in parts}
    forward, inputs, weights = of["forward"], of["inputs"], of["weights"]
    return {FORWARD: forward, BACKWARD: inputs + weights, INPUT: inputs, WEIGHT: weights}


def tensor_shares(case: Case) -> dict[str, float]:
    """Kind of action -> share of its time that is tensor peers' exchange."""
    whole, exchange = action_seconds(case), action_seconds(case, TENSOR)
    return {kind: exchange[kind] / seconds if seconds else 0.0 for kind, seconds in whole.items()}
