"""The planner's estimate of a config beside what XLA made of it, term by term. No JAX."""

import dataclasses
from collections.abc import Iterable, Sequence

from meshkit.config import RunConfig
from meshkit.models.presets import sizes
from meshkit.planner import search
from meshkit.planner.cluster import Cluster
from meshkit.planner.estimate import Estimate, estimate
from meshkit.planner.figures import Figures
from meshkit.planner.layout import Job, beyond, of_config
from meshkit.planner.workload import DATA, PIPE, TENSOR, Term

STATE = ("weights", "moments")
"""Of the planner's kinds of memory, those that are arguments of the step."""

LAYERS, ATTENTION, HEAD = (False, "products"), (False, "attention"), (True, "products")
"""(of the head, kind) of `figures.Work`. Forward and backward together: where both multiply by one matrix in one
tick, XLA may make one product of the two, under one name."""


@dataclasses.dataclass(frozen=True)
class Beside:
    """One quantity of one device and step. unit: "B" or "FLOP"; of the busiest stage."""

    term: str
    unit: str
    planner: float
    xla: float

    @property
    def error(self) -> float:
        """(planner − XLA) / XLA; 0 where both are 0."""
        return (self.planner - self.xla) / self.xla if self.xla else float(self.planner != 0)


def estimated(config: RunConfig, cluster: Cluster, vocab: int | None) -> Estimate | str:
    """The planner's estimate of a config whose mesh is resolved, or why there is none."""
    model, data = sizes(config.model, vocab), config.data
    unusual = beyond(config, model)
    if config.precision not in cluster.accelerator.flops:
        unusual.append(f"precision = {config.precision}")
    job, layout = Job(config.model.preset, model, data.batch, data.sequence, config.precision), None
    if not unusual:
        layout = of_config(config, config.mesh)
        if config.zero in search.ZERO and search.legal(job, layout):
            return estimate(job, layout, cluster)
    return f"the planner has no estimate for {', '.join(unusual) or layout}"


def beside(found: Estimate, arguments: float, peak: float, figures: Figures) -> list[Beside]:
    """The estimate's terms with XLA's. arguments, peak: XLA's bytes of memory."""
    fullest = max(found.memory, key=lambda stage: sum(stage.values()))
    state = sum(fullest[kind] for kind in STATE)
    rows = [
        Beside("memory: arguments", "B", state, arguments),
        Beside("memory: temporaries", "B", found.peak_memory - state, peak - arguments),
        Beside("memory: peak", "B", found.peak_memory, peak),
    ]
    flops = [term for term in found.terms if term.unit == "FLOP"]
    for name, ours, theirs in (
        ("products of layers", [t for t in flops if _in_layer(t) and not _attends(t)], LAYERS),
        ("attention", [t for t in flops if _attends(t)], ATTENTION),
        ("products of the head", [t for t in flops if not _in_layer(t)], HEAD),
    ):
        done = _busiest([w.flops for w in figures.work if (w.action == "head", w.kind) == theirs])
        rows.append(Beside(name, "FLOP", sum(t.repeats * t.volume for t in ours), done))
    for axis in (TENSOR, PIPE, DATA):
        sent = sum(term.repeats * term.volume for term in found.terms if term.unit == "B" and term.kind == axis)
        xla = _busiest([t.bytes for t in figures.traffic if t.axis == axis])
        if sent or xla:
            rows.append(Beside(f"exchanges over {axis}", "B", sent, xla))
    return rows


def _in_layer(term: Term) -> bool:
    """Whether the planner's term is of layers, which it names by their action: "forward: linears"."""
    return ":" in term.name


def _attends(term: Term) -> bool:
    return "attention" in term.name


def _busiest(by_stage: Iterable[Sequence[float]]) -> float:
    """The most that any stage has, of the sum of several."""
    return max((sum(stage) for stage in zip(*by_stage, strict=True)), default=0.0)
