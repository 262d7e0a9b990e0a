"""The step of a layout, part by part: of meshkit's lock-step tables, and of frameworks with one program a stage."""

import functools
from typing import NamedTuple

from meshkit.pipeline.costs import FLOAT32
from meshkit.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT
from meshkit.planner import flow
from meshkit.planner.cluster import Group
from meshkit.planner.counts import layer_parameters, table_parameters
from meshkit.planner.layout import Layout
from meshkit.planner.workload import (
    DATA,
    PIPE,
    Layer,
    Term,
    Terms,
    Workload,
    exchange_term,
    head,
    layer,
    others_layer,
    stage_layers,
    update,
)


class Part(NamedTuple):
    """Terms that occur `repeats` times on the busiest stage. action: what of a layer they are; empty: of no layer."""

    action: str
    repeats: float
    terms: Terms


Step = tuple[tuple[Part, ...], float]
"""The parts of a step, and the seconds in which the busiest stage is idle."""

# --- meshkit's tables -----------------------------------------------------------------------------


def lock_step(work: Workload, layout: Layout, peers: dict[str, Group]) -> Step:
    """Under meshkit: a tick lasts as long as its busiest stage, and all stages share embedding and head."""
    mesh, m, table = layout.mesh, layout.microbatches, layout.table
    counts, at_once = layout.placement(work.sizes.layers).counts, table.backward_at_once
    one = layer(work, layout.microbatch, peers["tensor"], True, layout.recompute, at_once)
    weights = work.layer_weights / mesh.tensor
    fetches = 2 if layout.recompute == "full" and not at_once else 1
    one = _with_zero(one, work, layout.zero, weights, fetches, table.splits, peers["data"])
    forward, inputs, deposit = (terms.seconds for terms in one)
    costs = {FORWARD: forward, INPUT: inputs, WEIGHT: deposit, BACKWARD: inputs + deposit}
    pipeline = flow.lock_step(table, costs, counts)
    longest = max(sum(counts[s :: mesh.pipe]) for s in range(mesh.pipe))
    activation = layout.microbatch * work.sequence * work.sizes.width * work.element / mesh.tensor
    shared, hop = _between_stages(work, activation, peers["pipe"])
    columns = table.ticks
    if layout.overlap and hop.seconds:
        hidden = 1 - flow.exposed(table, costs, counts, hop.seconds) / (columns * hop.seconds)
        hop = Terms(tuple(term._replace(hidden=hidden) for term in hop.items))
    rows = max(counts) * layout.virtual
    parts = (
        *(Part(action, m * longest, terms) for action, terms in zip(Layer._fields, one, strict=True)),
        Part("", m, head(work, layout.microbatch, peers["tensor"], mesh.tensor * mesh.pipe)),
        Part("", m, shared),
        Part("", columns, hop),
        Part("", 1, _once(work, rows, mesh.tensor, mesh.pipe, layout.zero, peers["data"])),
    )
    return parts, max(0.0, pipeline - m * longest * (forward + inputs + deposit))


@functools.lru_cache(maxsize=4096)
def _between_stages(work: Workload, activation: float, pipe: Group) -> tuple[Terms, Terms]:
    """What all stages share of a microbatch, and a hop. activation: bytes of it on a device."""
    # The embedding of what enters, the output of what leaves, its gradient and that of what entered, in float32.
    wide = activation * max(1, FLOAT32 / work.element)
    shared = exchange_term("embedding and head", PIPE, "all-reduce", wide, pipe, work.cluster).times(4)
    return Terms((shared,)), Terms((exchange_term("hops", PIPE, "hop", activation, pipe, work.cluster),))


@functools.lru_cache(maxsize=4096)
def _with_zero(one: Layer, work: Workload, zero: int, weights: float, fetches: int, split: bool, data: Group) -> Layer:
    """With what replicas exchange of a layer for each microbatch. weights: of a layer on a device; fetches: of them
    in an input gradient; split: the weight gradient is made later, and fetches them again."""
    if zero < 2:
        return one
    scatter = exchange_term("scatter gradients", DATA, "reduce-scatter", weights * FLOAT32, data, work.cluster)
    deposit = (*one.weights.items, scatter)
    if zero < 3:
        return one._replace(weights=Terms(deposit))
    gather = exchange_term("gather weights", DATA, "all-gather", weights * work.element, data, work.cluster)
    return Layer(
        Terms((*one.forward.items, gather)),
        Terms((*one.inputs.items, gather.times(fetches))),
        Terms((*deposit, gather.times(int(split)))),
    )


@functools.lru_cache(maxsize=4096)
def _once(work: Workload, rows: int, tensor: int, pipe: int, zero: int, data: Group) -> Terms:
    """After the pipeline: gradients over data, update, and working weights. rows: layers of a stage."""
    sizes = work.sizes
    blocks = rows * layer_parameters(sizes) / tensor
    tables = table_parameters(sizes) * (1 if sizes.tied else 2) / (tensor * pipe)
    reduced = tables + (blocks if zero < 2 else 0)
    gathered = tables + (blocks if zero < 3 else 0)
    how = "all-reduce" if zero == 0 else "reduce-scatter"
    gradients = exchange_term("gradients", DATA, how, reduced * work.profile.gradient_bytes, data, work.cluster)
    weights = exchange_term("weights", DATA, "all-gather", gathered * work.element, data, work.cluster)
    held = (blocks + tables) / (data.size if zero else 1)
    return Terms((gradients, weights.times(int(zero > 0)), update(work, held)))


# --- one program a stage --------------------------------------------------------------------------


def asynchronous(work: Workload, layout: Layout, peers: dict[str, Group]) -> Step:
    """Under other frameworks: stages wait for their inputs alone; the head is the last stage's."""
    mesh, m, v, profile = layout.mesh, layout.microbatches, layout.virtual, work.profile
    layers = stage_layers(work.sizes, layout, profile)
    one = others_layer(work, layout, peers)
    top = head(work, layout.microbatch, peers["tensor"], mesh.tensor)
    each = sum(terms.seconds for terms in one)
    stages = [count * each for count in layers]
    stages[-1] += top.seconds
    busiest = max(range(mesh.pipe), key=lambda s: stages[s])
    activation = layout.microbatch * work.sequence * work.sizes.width * work.element
    cut = mesh.tensor if layout.sequence_parallel else 1
    hop = exchange_term("hops", PIPE, "hop", activation / cut, peers["pipe"], work.cluster)
    hops = 2 * (m * v * (1 - profile.hidden_pipe) + mesh.pipe - 1) if mesh.pipe > 1 else 0
    stalled = profile.stall.seconds(mesh, peers["pipe"], m, layout.zero)
    window = layers[busiest] * (one.inputs.seconds + one.weights.seconds)
    parts = (
        *(Part(action, m * layers[busiest], terms) for action, terms in zip(Layer._fields, one, strict=True)),
        Part("", m if busiest == mesh.pipe - 1 else 0, top),
        Part("", hops, Terms((hop,))),
        Part("", m + (mesh.pipe - 1) / 2, Terms((Term("standing still", PIPE, 1, stalled, "s", 1.0),))),
        Part("", 1, Terms(tuple(_once_overlapped(work, layout, peers["data"], max(layers), window)))),
    )
    return parts, flow.asynchronous(stages, m, v) - m * stages[busiest]


def _once_overlapped(work: Workload, layout: Layout, data: Group, layers: int, window: float) -> list[Term]:
    """Data-parallel exchanges, less what a framework hides beside a microbatch's backward (`window`) and forward."""
    sizes, mesh, profile = work.sizes, layout.mesh, work.profile
    tables = table_parameters(sizes) * (2 if mesh.pipe == 1 and not sizes.tied else 1)
    held = (layers * layer_parameters(sizes) + tables) / mesh.tensor
    how = "reduce-scatter" if layout.zero else "all-reduce"
    gradients = exchange_term("gradients", DATA, how, held * profile.gradient_bytes, data, work.cluster)
    weights = exchange_term("weights", DATA, "all-gather", held * work.element, data, work.cluster)
    # A bucket a layer: every one has the steps of its ring.
    gradients, weights = (term._replace(extra=layers * term.extra) for term in (gradients, weights))
    terms = [(gradients, window), (weights.times(int(layout.zero > 0)), window / 2)]
    shown = [
        term.times(1 - profile.hidden_data * min(1.0, room / term.seconds)) for term, room in terms if term.seconds
    ]
    return [*shown, update(work, held / (mesh.data if layout.zero else 1))]
