"""What one layout of a job costs on a cluster: time of a step by kind, memory by kind, and what follows."""

import dataclasses
import functools
from typing import Any

from meshkit.pipeline.costs import FLOAT32
from meshkit.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT
from meshkit.planner import flow, memory
from meshkit.planner.cluster import Cluster, Group, groups
from meshkit.planner.layout import Job, Layout, placement
from meshkit.planner.profile import MESHKIT, Profile
from meshkit.planner.workload import (
    BUBBLE,
    COMPUTE,
    DATA,
    KINDS,
    PIPE,
    Layer,
    Term,
    Workload,
    exchange_term,
    head,
    layer,
    layer_parameters,
    model_flops,
    table_parameters,
    update,
)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A layout's step. terms: of the busiest stage; with the bubble, they add up to the step (seconds).

    memory: bytes by kind of a device of each stage (one entry: all alike). budget: bytes that a device offers.
    """

    job: Job
    layout: Layout
    cluster: Cluster
    profile: Profile
    terms: tuple[Term, ...]
    bubble_seconds: float
    memory: tuple[dict[str, float], ...]
    budget: float

    @functools.cached_property
    def seconds(self) -> dict[str, float]:
        """Kind (compute, tensor, pipe, data, bubble) -> its share of the step, in seconds."""
        spent = dict.fromkeys(KINDS, 0.0)
        for term in self.terms:
            spent[term.kind] += term.seconds
        return spent | {BUBBLE: self.bubble_seconds}

    @functools.cached_property
    def step(self) -> float:
        """Seconds of a step."""
        return sum(self.seconds.values())

    @property
    def efficiency(self) -> float:
        """η = T_compute / (T_compute + T_communication + T_bubble)."""
        return self.seconds[COMPUTE] / self.step

    @property
    def utilisation(self) -> float:
        """U = m / (m + (P−1)/v) of an ideal pipeline of equal stages."""
        m, fill = self.layout.microbatches, (self.layout.mesh.pipe - 1) / self.layout.virtual
        return m / (m + fill)

    @property
    def bubble(self) -> float:
        """The share of the step that the busiest stage is idle."""
        return self.bubble_seconds / self.step

    @property
    def tokens_per_second(self) -> float:
        """Of the whole cluster."""
        return self.job.batch * self.job.sequence / self.step

    @property
    def mfu(self) -> float:
        """Model FLOPs (no recomputation) over the peak of all devices."""
        flops = model_flops(self.job.sizes, self.job.sequence, self.job.batch * self.job.sequence)
        peak = self.cluster.accelerator.flops["bfloat16"] * self.layout.mesh.devices
        return flops / (self.step * peak)

    @property
    def peak_memory(self) -> float:
        """Bytes of the fullest stage's devices."""
        return max(sum(stage.values()) for stage in self.memory)

    @property
    def fits(self) -> bool:
        """Whether every stage's memory stays in the budget."""
        return self.peak_memory <= self.budget


def estimate(job: Job, layout: Layout, cluster: Cluster, profile: Profile = MESHKIT) -> Estimate:
    """The estimate of one layout."""
    return estimate_on(workload(job, cluster, profile), job, layout)


def workload(job: Job, cluster: Cluster, profile: Profile = MESHKIT) -> Workload:
    """What the layouts of a job have in common. Make one and use it for all: it remembers its parts."""
    return Workload(job.sizes, job.sequence, cluster, profile, job.precision)


def estimate_on(work: Workload, job: Job, layout: Layout) -> Estimate:
    """`estimate` for one of many layouts."""
    step = _lock_step if work.profile.lock_step else _asynchronous
    terms, bubble = step(work, layout, groups(layout.mesh, work.cluster))
    budget = work.device.memory - memory.RESERVE
    return Estimate(job, layout, work.cluster, work.profile, terms, bubble, memory.stages(work, layout), budget)


# --- meshkit's tables -----------------------------------------------------------------------------


def _lock_step(work: Workload, layout: Layout, peers: dict[str, Group]) -> tuple[tuple[Term, ...], float]:
    mesh, m, name = layout.mesh, layout.microbatches, layout.schedule
    counts = placement(work.sizes.layers, mesh.pipe, layout.virtual).counts
    at_once = mesh.pipe == 1 and layout.virtual == 1 and name != "gpipe"
    one = layer(work, layout.microbatch, peers["tensor"], True, layout.recompute, at_once)
    one = _with_zero(one, work, layout, peers["data"], at_once)
    forward, inputs, weights = (sum(t.seconds for t in terms) for terms in one)
    costs = {FORWARD: forward, INPUT: inputs, WEIGHT: weights, BACKWARD: inputs + weights}
    pipeline = flow.lock_step(name, mesh.pipe, m, layout.virtual, costs, counts)
    longest = max(sum(counts[s :: mesh.pipe]) for s in range(mesh.pipe))
    terms = [
        term.times(m * longest)._replace(name=f"{action}: {term.name}")
        for action, of in zip(Layer._fields, one, strict=True)
        for term in of
        if term.seconds
    ]
    busy = sum(term.seconds for term in terms)
    ways = mesh.tensor * mesh.pipe
    terms += [term.times(m) for term in head(work, layout.microbatch, peers["tensor"], ways)]
    activation = layout.microbatch * work.sequence * work.sizes.width * work.element / mesh.tensor
    # The embedding of what enters, the output of what leaves, its gradient and that of what entered, in float32.
    shared = exchange_term("embedding and head", PIPE, "all-reduce", activation * 2, peers["pipe"], work.cluster)
    hop = exchange_term("hops", PIPE, "hop", activation, peers["pipe"], work.cluster)
    columns = flow.ticks(name, mesh.pipe, m, layout.virtual)
    terms += [shared.times(4 * m), hop.times(columns if mesh.pipe > 1 else 0)]
    terms += _once(work, layout, peers["data"])
    return tuple(term for term in terms if term.seconds), max(0.0, pipeline - busy)


def _with_zero(one: Layer, work: Workload, layout: Layout, data: Group, at_once: bool) -> Layer:
    """With what replicas exchange of a layer for each microbatch."""
    if layout.zero < 2:
        return one
    weights = layer_parameters(work.sizes) / layout.mesh.tensor
    scatter = exchange_term("scatter gradients", DATA, "reduce-scatter", weights * FLOAT32, data, work.cluster)
    deposit = (*one.weights, scatter)
    if layout.zero < 3:
        return one._replace(weights=deposit)
    gather = exchange_term("gather weights", DATA, "all-gather", weights * work.element, data, work.cluster)
    fetches = 2 if layout.recompute == "full" and not at_once else 1
    split = layout.schedule == "zero-bubble"
    return Layer((*one.forward, gather), (*one.inputs, gather.times(fetches)), (*deposit, gather.times(int(split))))


def _once(work: Workload, layout: Layout, data: Group) -> list[Term]:
    """After the pipeline: gradients over data, update, and working weights."""
    sizes, mesh = work.sizes, layout.mesh
    rows = placement(sizes.layers, mesh.pipe, layout.virtual).longest * layout.virtual
    blocks = rows * layer_parameters(sizes) / mesh.tensor
    tables = table_parameters(sizes) * (1 if sizes.tied else 2) / (mesh.tensor * mesh.pipe)
    reduced = tables + (blocks if layout.zero < 2 else 0)
    gathered = tables + (blocks if layout.zero < 3 else 0)
    how = "all-reduce" if layout.zero == 0 else "reduce-scatter"
    gradients = exchange_term("gradients", DATA, how, reduced * work.profile.gradient_bytes, data, work.cluster)
    weights = exchange_term("weights", DATA, "all-gather", gathered * work.element, data, work.cluster)
    held = (blocks + tables) / (mesh.data if layout.zero else 1)
    return [gradients, weights.times(int(layout.zero > 0)), update(work, held)]


# --- one program a stage --------------------------------------------------------------------------


def _asynchronous(work: Workload, layout: Layout, peers: dict[str, Group]) -> tuple[tuple[Term, ...], float]:
    mesh, m, v, profile = layout.mesh, layout.microbatches, layout.virtual, work.profile
    counts = placement(work.sizes.layers, mesh.pipe, v).counts
    layers = [sum(counts[s :: mesh.pipe]) for s in range(mesh.pipe)]
    one = layer(work, layout.microbatch, peers["tensor"], layout.sequence_parallel, layout.recompute, False)
    top = head(work, layout.microbatch, peers["tensor"], mesh.tensor)
    each, last = (sum(t.seconds for t in terms) for terms in ([t for of in one for t in of], top))
    stages = [count * each for count in layers]
    stages[-1] += last
    busiest = max(range(mesh.pipe), key=lambda s: stages[s])
    terms = [
        term.times(m * layers[busiest])._replace(name=f"{action}: {term.name}")
        for action, of in zip(Layer._fields, one, strict=True)
        for term in of
    ]
    terms += [term.times(m) for term in top] if busiest == mesh.pipe - 1 else []
    busy = m * stages[busiest]
    activation = layout.microbatch * work.sequence * work.sizes.width * work.element
    cut = mesh.tensor if layout.sequence_parallel else 1
    hop = exchange_term("hops", PIPE, "hop", activation / cut, peers["pipe"], work.cluster)
    hops = 2 * (m * v * (1 - profile.hidden_pipe) + mesh.pipe - 1) if mesh.pipe > 1 else 0
    terms.append(hop.times(hops))
    bubble = flow.asynchronous(stages, m, v) - busy
    window = layers[busiest] * sum(t.seconds for of in (one.inputs, one.weights) for t in of)
    terms += _once_overlapped(work, layout, peers["data"], max(layers), window)
    return tuple(term for term in terms if term.seconds), bubble


def _once_overlapped(work: Workload, layout: Layout, data: Group, layers: int, window: float) -> list[Term]:
    """Data-parallel exchanges, less what a framework hides beside a microbatch's backward (`window`) and forward."""
    sizes, mesh, profile = work.sizes, layout.mesh, work.profile
    tables = table_parameters(sizes) * (2 if mesh.pipe == 1 and not sizes.tied else 1)
    held = (layers * layer_parameters(sizes) + tables) / mesh.tensor
    how = "reduce-scatter" if layout.zero else "all-reduce"
    gradients = exchange_term("gradients", DATA, how, held * profile.gradient_bytes, data, work.cluster)
    weights = exchange_term("weights", DATA, "all-gather", held * work.element, data, work.cluster)
    terms = [(gradients, window), (weights.times(int(layout.zero > 0)), window / 2)]
    shown = [
        term.times(1 - profile.hidden_data * min(1.0, room / term.seconds)) for term, room in terms if term.seconds
    ]
    return [*shown, update(work, held / (mesh.data if layout.zero else 1))]


def as_json(found: Estimate) -> dict[str, Any]:
    """The estimate as plain values."""
    layout = found.layout
    return {
        "mesh": layout.mesh.sizes,
        "microbatch": layout.microbatch,
        "microbatches": layout.microbatches,
        "schedule": layout.schedule,
        "virtual": layout.virtual,
        "recompute": layout.recompute,
        "zero": layout.zero,
        "step_seconds": found.step,
        "tokens_per_second": found.tokens_per_second,
        "mfu": found.mfu,
        "eta": found.efficiency,
        "utilisation": found.utilisation,
        "bubble": found.bubble,
        "seconds": found.seconds,
        "memory": list(found.memory),
        "peak_memory": found.peak_memory,
        "budget": found.budget,
        "fits": found.fits,
    }
