"""How fast a setting is and why: its figures, its arithmetic, and what would help."""

import dataclasses
from typing import Any

from meshkit.planner import explain, memory
from meshkit.planner.counts import parameters
from meshkit.planner.estimate import Estimate
from meshkit.planner.workload import COMPUTE
from meshkit.view.choices import Choice, changes, choices
from meshkit.view.devices import LinkFacts, links
from meshkit.view.setting import Case, Setting
from meshkit.view.words import Text, said
from meshkit.view.world import BALANCED


@dataclasses.dataclass(frozen=True)
class Figures:
    """A layout in numbers. seconds: kind of time -> its share of the step; they add up to step_seconds.
    eta: share of the step that computes. utilisation: U of an ideal pipeline. bubble: idle share of the step."""

    step_seconds: float
    seconds: dict[str, float]
    tokens_per_second: float
    mfu: float
    eta: float
    utilisation: float
    bubble: float
    memory_bytes: dict[str, float]
    peak_bytes: float
    budget_bytes: float
    fits: bool


@dataclasses.dataclass(frozen=True)
class Change:
    """A layout one decision away. change: the controls that differ."""

    what: Text
    change: dict[str, int | str]
    step_seconds: float
    peak_bytes: float


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """kind: what the step waits for: memory, tensor, pipe, data, bubble or compute; share: of the step, of the budget
    for memory. change: the neighbour that helps most; blocked: one that memory forbids.
    """

    kind: str
    share: float
    change: Change | None
    blocked: Change | None


@dataclasses.dataclass(frozen=True)
class Term:
    """A part of the step: name, kind, its arithmetic in words, seconds."""

    name: str
    kind: str
    arithmetic: Text
    seconds: float


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """The model in numbers."""

    name: str
    family: str
    parameters: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    mlp_width: int
    vocabulary: int
    context: int


@dataclasses.dataclass(frozen=True)
class ClusterFacts:
    """The cluster in numbers. flops: peak bfloat16 FLOP/s of a device."""

    name: str
    devices: int
    nodes: int
    per_node: int
    nodes_per_rack: int
    flops: float
    memory_bytes: float
    reserve_bytes: float
    links: list[LinkFacts]
    source: Text


@dataclasses.dataclass(frozen=True)
class Overview:
    """What all modes show: the setting and its choices, its figures, and the diagnosis."""

    setting: dict[str, Any]
    query: str
    microbatch: int
    choices: dict[str, list[Choice]]
    model: ModelFacts
    cluster: ClusterFacts
    figures: Figures
    diagnosis: Diagnosis
    terms: list[Term]


def overview(case: Case) -> Overview:
    """The part that every mode needs."""
    sizes, cluster = case.job.sizes, case.cluster
    model = ModelFacts(
        case.setting.model,
        sizes.family,
        parameters(sizes),
        sizes.layers,
        sizes.width,
        sizes.heads,
        sizes.kv_heads,
        sizes.mlp_width,
        sizes.vocab,
        sizes.context,
    )
    device = cluster.accelerator
    on = ClusterFacts(
        case.setting.cluster,
        cluster.devices,
        cluster.nodes,
        cluster.per_node,
        cluster.per_rack,
        device.flops["bfloat16"],
        device.memory,
        memory.RESERVE,
        links(case),
        said(device.source),
    )
    return Overview(
        dataclasses.asdict(case.setting),
        case.setting.query,
        case.layout.microbatch,
        choices(case.world, case.setting),
        model,
        on,
        figures(case.estimate),
        diagnosis(case),
        [Term(name, kind, said(how), s) for name, kind, how, s in explain.arithmetic(case.estimate)],
    )


def figures(found: Estimate) -> Figures:
    """The estimate's figures; memory of the fullest stage."""
    fullest = max(found.memory, key=lambda stage: sum(stage.values()))
    return Figures(
        found.step,
        found.seconds,
        found.tokens_per_second,
        found.mfu,
        found.efficiency,
        found.utilisation,
        found.bubble,
        fullest,
        found.peak_memory,
        found.budget,
        found.fits,
    )


def diagnosis(case: Case) -> Diagnosis:
    """The planner's diagnosis, with the setting that each change is."""
    found, told = case.estimate, explain.diagnose(case.estimate)
    share = {kind: seconds / found.step for kind, seconds in found.seconds.items()}
    longest = max((kind for kind in share if kind != COMPUTE), key=lambda kind: share[kind])
    kind = told.bound.partition("-bound")[0].partition(":")[0]
    named = {"communication": longest, "memory over": "memory"}.get(kind, kind)
    use = found.peak_memory / found.budget if named == "memory" else share[named]
    change, blocked = (None if c is None else _change(case, c) for c in (told.change, told.blocked))
    return Diagnosis(named, use, change, blocked)


def _change(case: Case, change: explain.Change) -> Change:
    found = change.estimate
    return Change(
        said(change.what), changes(case.setting, of_layout(case.setting, found)), found.step, found.peak_memory
    )


def of_layout(setting: Setting, found: Estimate) -> Setting:
    """The setting whose layout an estimate is of."""
    layout, mesh = found.layout, found.layout.mesh
    return dataclasses.replace(
        setting,
        data=mesh.data,
        tensor=mesh.tensor,
        pipe=mesh.pipe,
        schedule=layout.schedule,
        virtual=layout.virtual,
        microbatches=layout.microbatches,
        recompute=layout.recompute,
        zero=layout.zero,
        overlap=str(layout.overlap).lower(),
        layers=",".join(map(str, layout.layers_per_stage or ())) or BALANCED,
    )
