"""The planner's estimate of a config beside what XLA made of it, term by term. No JAX."""

import dataclasses
from collections.abc import Iterable, Sequence

from meshkit.config import RunConfig
from meshkit.models.presets import sizes
from meshkit.planner import search
from meshkit.planner.cluster import Cluster
from meshkit.planner.estimate import Estimate, estimate
from meshkit.planner.figures import Figures, Work
from meshkit.planner.layout import Job, of_config
from meshkit.planner.workload import DATA, PIPE, TENSOR, Term

STATE = ("weights", "moments")
"""Of the planner's kinds of memory, those that are arguments of the step."""

ACTIONS = {"forward": "forward", "inputs": "backward", "weights": "backward"}
"""What a term of the planner's lock-step names first -> the action that XLA's products are counted under."""


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
    unknown = [
        f"{key} = {value}"
        for key, value, default in (
            ("offload", config.offload, False),
            ("grad_dtype", config.grad_dtype, "float32"),
            ("loss", config.loss, "cross_entropy"),
            ("pipeline.layers_per_stage", config.pipeline.layers_per_stage, None),
            ("pipeline.overlap", config.pipeline.overlap, False),
            ("optimizer.name", config.optimizer.name, "adamw"),
        )
        if value != default
    ]
    job = Job(
        config.model.preset, sizes(config.model, vocab), config.data.batch, config.data.sequence, config.precision
    )
    layout = of_config(config, config.mesh)
    if unknown or config.zero == 0 or not search.legal(job, layout):
        return f"the planner does not estimate {', '.join(unknown) or layout}"
    return estimate(job, layout, cluster)


def beside(found: Estimate, arguments: float, peak: float, figures: Figures) -> list[Beside]:
    """The estimate's terms with XLA's. arguments, peak: XLA's bytes of memory."""
    fullest = max(found.memory, key=lambda stage: sum(stage.values()))
    state = sum(fullest[kind] for kind in STATE)
    rows = [
        Beside("memory: arguments", "B", state, arguments),
        Beside("memory: temporaries", "B", found.peak_memory - state, peak - arguments),
        Beside("memory: peak", "B", found.peak_memory, peak),
    ]
    for action in ("forward", "backward", "head"):
        for kind in ("products", "attention"):
            ours = sum(t.repeats * t.volume for t in found.terms if t.unit == "FLOP" and _is(t, action, kind))
            xla = _busiest([w.flops for w in figures.work if _counts(w, action, kind)])
            if ours or xla:
                rows.append(Beside(f"{kind}: {action}", "FLOP", ours, xla))
    for axis in (TENSOR, PIPE, DATA):
        ours = sum(t.repeats * t.volume for t in found.terms if t.unit == "B" and t.kind == axis)
        xla = _busiest([t.bytes for t in figures.traffic if t.axis == axis])
        if ours or xla:
            rows.append(Beside(f"exchanges over {axis}", "B", ours, xla))
    return rows


def _is(term: Term, action: str, kind: str) -> bool:
    """Whether a term of the planner's is of an action, and of attention or of other products."""
    of, colon, _ = term.name.partition(":")
    return (ACTIONS.get(of) if colon else "head") == action and ("attention" in term.name) == (kind == "attention")


def _counts(work: Work, action: str, kind: str) -> bool:
    """Whether work of the program is of an action; a backward in two halves counts as one."""
    return ("backward" if work.action == "weight" else work.action) == action and work.kind == kind


def _busiest(by_stage: Iterable[Sequence[float]]) -> float:
    """The most that any stage has, of the sum of several."""
    return max((sum(stage) for stage in zip(*by_stage, strict=True)), default=0.0)
