"""What the page's controls say, and what it comes to: a job, a layout and a cluster, or the reason why not."""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from meshkit.config import DataConfig, MeshShape, PipelineConfig, RunConfig
from meshkit.errors import MeshkitError, nearest
from meshkit.models.presets import check_cut
from meshkit.pipeline.placement import Placement
from meshkit.planner.cluster import Cluster
from meshkit.planner.estimate import Estimate, estimate_on, workload
from meshkit.planner.layout import Job, Layout
from meshkit.planner.workload import Workload
from meshkit.view.world import BALANCED, World

MOST = 2**16
"""Devices that the page draws."""

LARGEST = 10**6
"""Of a control's number."""

RECOMPUTE = ("full", "selective", "none")
ZERO = (0, 1, 2, 3)
PRECISION = ("bfloat16", "float32")
OVERLAP = ("false", "true")
"""What the config allows; of precisions, those with a peak in the catalogue of devices."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """Every control of the page. schedule: a name, or a grid's file. layers: of each group, "3,2,2,1", or balanced.
    batch: samples of a step over all replicas; sequence: tokens of a sample."""

    model: str = "llama3-70b"
    cluster: str = "h100"
    data: int = 8
    tensor: int = 4
    pipe: int = 2
    schedule: str = "1f1b"
    virtual: int = 1
    microbatches: int = 64
    recompute: str = "full"
    zero: int = 1
    batch: int = 512
    sequence: int = 4096
    precision: str = "bfloat16"
    overlap: str = "false"
    layers: str = BALANCED

    @property
    def mesh(self) -> MeshShape:
        """data × tensor × pipe."""
        return MeshShape(data=self.data, tensor=self.tensor, pipe=self.pipe)

    @property
    def layers_per_stage(self) -> tuple[int, ...] | None:
        """The cut by hand, None for the balanced one. Raises MeshkitError for what is neither."""
        if self.layers == BALANCED:
            return None
        if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", self.layers, re.ASCII):
            raise MeshkitError(f"layers = {self.layers}: it is {BALANCED}, or layers of each stage, as 3,2,2,1")
        return tuple(map(int, self.layers.split(",")))

    def but(self, change: Mapping[str, Any]) -> "Setting":
        """With some controls changed."""
        return dataclasses.replace(self, **change)

    @property
    def query(self) -> str:
        """As the query of a URL: every field, in order."""
        return urlencode(dataclasses.asdict(self))


def parse(query: str) -> Setting:
    """The Setting that a URL's query says; what it leaves out is the default.

    Raises MeshkitError for an unknown field, one said twice, or a value of another type.
    """
    fields = {field.name: field for field in dataclasses.fields(Setting)}
    values: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in fields:
            raise MeshkitError(f"{name} = {text}: no such control; {nearest(name, fields)}")
        if name in values:
            raise MeshkitError(f"{name} = {text}: it is said twice")
        if isinstance(fields[name].default, int):
            if not text.isdecimal() or int(text) > LARGEST:
                raise MeshkitError(f"{name} = {text or 'nothing'}: it is a whole number up to {LARGEST}")
            values[name] = int(text)
        else:
            values[name] = text
    return Setting(**values)


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A setting that is legal, and what it stands for."""

    world: World
    setting: Setting
    work: Workload
    job: Job
    layout: Layout

    @property
    def cluster(self) -> Cluster:
        """The devices, as many as the mesh takes."""
        return self.work.cluster

    @functools.cached_property
    def estimate(self) -> Estimate:
        """The planner's estimate."""
        return estimate_on(self.work, self.job, self.layout)

    @property
    def placement(self) -> Placement:
        """Which layers sit on which stage."""
        return self.layout.placement(self.job.sizes.layers)

    @property
    def nodes(self) -> list[int]:
        """The node of each device, in the order of devices."""
        return [device // self.cluster.per_node for device in range(self.cluster.devices)]


@functools.lru_cache(maxsize=8192)
def resolve(world: World, setting: Setting) -> Case:
    """The Case of a setting. Raises MeshkitError when it is not legal, in the words of `train`."""
    run = _config(world, setting)
    model, mesh = world.models[setting.model], setting.mesh
    if mesh.devices > MOST:
        raise MeshkitError(f"the mesh takes {mesh.devices} devices: this page draws {MOST} at most")
    world.clusters[setting.cluster].take(mesh.devices)
    check_cut(model, mesh, setting.sequence)
    layout = Layout(
        mesh,
        run.microbatch_size(setting.data),
        setting.microbatches,
        setting.schedule,
        setting.virtual,
        setting.recompute,
        setting.zero,
        layers_per_stage=setting.layers_per_stage,
        overlap=setting.overlap == "true",
    )
    _check_table(layout)
    layout.placement(model.layers)
    work = _workload(world, setting.model, setting.cluster, mesh.devices, setting.sequence, setting.precision)
    job = Job(setting.model, model, setting.batch, setting.sequence, setting.precision)
    return Case(world, setting, work, job, layout)


def _check_table(layout: Layout) -> None:
    """Raises MeshkitError when the schedule does not go with the mesh, the microbatches or the overlap."""
    table, P = layout.table, layout.mesh.pipe
    # A builder's rules hold for m as they do for fewer microbatches, alike modulo P.
    few = min(layout.microbatches, layout.microbatches % P + P)
    _ = (table._replace(microbatches=few) if table.built else table).schedule


def _config(world: World, setting: Setting) -> RunConfig:
    """The keys of a config that the setting is. Raises MeshkitError for a value that a control cannot have."""
    for name, known in (("model", world.models), ("cluster", world.clusters), ("schedule", world.schedules)):
        if getattr(setting, name) not in known:
            raise MeshkitError(f"{name} = {getattr(setting, name)}: no such {name}; known: {', '.join(known)}")
    policies = {"recompute": RECOMPUTE, "zero": ZERO, "precision": PRECISION, "overlap": OVERLAP}
    for name, values in policies.items():
        if getattr(setting, name) not in values:
            raise MeshkitError(f"{name} = {getattr(setting, name)}: it is one of {', '.join(map(str, values))}")
    for field in dataclasses.fields(setting):
        if field.name != "zero" and getattr(setting, field.name) == 0:
            raise MeshkitError(f"{field.name} = 0: it is at least 1")
    return RunConfig(
        data=DataConfig(batch=setting.batch, sequence=setting.sequence),
        pipeline=PipelineConfig(microbatches=setting.microbatches),
    )


@functools.lru_cache(maxsize=256)
def _workload(world: World, model: str, kind: str, devices: int, sequence: int, precision: str) -> Workload:
    """One for all layouts of a model on as many devices: it remembers its parts."""
    return workload(Job(model, world.models[model], 1, sequence, precision), world.clusters[kind].take(devices))


# --- settings with a name -------------------------------------------------------------------------

PRESETS_OF_THE_PAGE: dict[str, Setting] = {
    "8×4×2": Setting(),
    "2×4×3": Setting(data=2, pipe=3, microbatches=64, batch=256, zero=3),
    "8×4×3": Setting(pipe=3),
}
"""Worked cases of the page: data × tensor × pipe."""

_FOUR_STAGES = Setting("llama3-8b", data=2, tensor=1, pipe=4, microbatches=4, recompute="selective", batch=32)

LESSONS: dict[str, Setting] = {
    "cuts": Setting("tiny", data=2, tensor=2, pipe=2, microbatches=4, recompute="none", batch=16, sequence=128),
    "few": _FOUR_STAGES,
    "many": _FOUR_STAGES.but({"microbatches": 16}),
    "many-gpipe": _FOUR_STAGES.but({"microbatches": 16, "schedule": "gpipe"}),
    "crossing": Setting("gpt3-175b", data=1, tensor=16, pipe=2, batch=64, microbatches=64, sequence=2048, zero=1),
    "seventy": Setting(),
    "zero3": Setting(zero=3),
}
"""What the figures of Learn show."""
