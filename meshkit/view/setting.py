"""What the page's controls say, and what it comes to: a job, a layout and a cluster, or the reason why not."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from meshkit.config import DataConfig, MeshShape, ModelConfig, PipelineConfig, RunConfig
from meshkit.errors import MeshkitError, nearest
from meshkit.models.presets import PRESETS, Sizes, check_cut, sizes
from meshkit.pipeline.placement import Placement
from meshkit.planner import flow
from meshkit.planner.cluster import Cluster, regular
from meshkit.planner.estimate import Estimate, estimate_on, workload
from meshkit.planner.hardware import CATALOGUE, GIGA, MICRO, Accelerator, Link
from meshkit.planner.layout import Job, Layout, placement
from meshkit.planner.workload import Workload

NODES_OF_A_RACK = 4
"""Of 8 devices of 700 W with their host: what a rack of 40 kW cools."""

ETHERNET = Link("Ethernet", 12.5 * GIGA, 20 * MICRO)
"""100 Gb/s a device between racks. Latency assumed: a routed fabric of a few switches."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """Every control of the page. batch: samples of a step over all replicas; sequence: tokens of a sample."""

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

    @property
    def mesh(self) -> MeshShape:
        """data × tensor × pipe."""
        return MeshShape(data=self.data, tensor=self.tensor, pipe=self.pipe)

    def but(self, change: Mapping[str, Any]) -> "Setting":
        """With some controls changed."""
        return dataclasses.replace(self, **change)

    @property
    def query(self) -> str:
        """As the query of a URL: every field, in order."""
        return urlencode(dataclasses.asdict(self))


def parse(query: str) -> Setting:
    """The Setting that a URL's query says; what it leaves out is the default.

    Raises MeshkitError for an unknown field or a value of another type.
    """
    fields = {field.name: field for field in dataclasses.fields(Setting)}
    values: dict[str, Any] = {}
    for name, text in parse_qsl(query):
        if name not in fields:
            raise MeshkitError(f"{name} = {text}: no such control; {nearest(name, fields)}")
        if isinstance(fields[name].default, int):
            if not text.isdecimal() or int(text) > 10**6:
                raise MeshkitError(f"{name} = {text}: it is a whole number")
            values[name] = int(text)
        else:
            values[name] = text
    return Setting(**values)


@dataclasses.dataclass(frozen=True, eq=False)
class World:
    """What there is to choose from: models by name, and clusters as (device, link between racks)."""

    models: Mapping[str, Sizes]
    clusters: Mapping[str, tuple[Accelerator, Link]]

    @classmethod
    def of(cls, own: Sizes | None = None) -> "World":
        """All presets and the catalogue's devices; `own`, a config's model, as "config"."""
        models = {name: sizes(ModelConfig(preset=name)) for name in PRESETS}
        clusters = {name: (device, device.network) for name, device in CATALOGUE.items()}
        clusters["h100-ethernet"] = (CATALOGUE["h100"], ETHERNET)
        return cls(({"config": own} if own else {}) | models, clusters)


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
        return placement(self.job.sizes.layers, self.setting.pipe, self.setting.virtual)

    @property
    def nodes(self) -> list[int]:
        """The node of each device, in the order of devices."""
        return [device // self.cluster.per_node for device in range(self.cluster.devices)]


@functools.lru_cache(maxsize=8192)
def resolve(world: World, setting: Setting) -> Case:
    """The Case of a setting. Raises MeshkitError with the rule that it breaks, as `train` would."""
    for name, known in (("model", world.models), ("cluster", world.clusters), ("schedule", flow.CLOSED)):
        if getattr(setting, name) not in known:
            raise MeshkitError(f"{name} = {getattr(setting, name)}: no such {name}; known: {', '.join(known)}")
    run = _config(setting)
    model, mesh = world.models[setting.model], setting.mesh
    check_cut(model, mesh, setting.sequence)
    placement(model.layers, setting.pipe, setting.virtual)
    size = run.microbatch_size(setting.data)
    # The builder's rules hold for m as they do for fewer microbatches, alike modulo P.
    flow.table(setting.schedule, setting.pipe, flow.shortened(setting.pipe, setting.microbatches), setting.virtual)
    layout = Layout(
        mesh, size, setting.microbatches, setting.schedule, setting.virtual, setting.recompute, setting.zero
    )
    work = _workload(world, setting.model, setting.cluster, mesh.devices, setting.sequence)
    return Case(world, setting, work, Job(setting.model, model, setting.batch, setting.sequence), layout)


def _config(setting: Setting) -> RunConfig:
    """The keys of a config that the setting is, by the config's own rules."""
    known = {"recompute": ("full", "selective", "none"), "zero": (0, 1, 2, 3)}
    for name, values in known.items():
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
def _workload(world: World, model: str, kind: str, devices: int, sequence: int) -> Workload:
    """One for all layouts of a model on as many devices: it remembers its parts."""
    device, between_racks = world.clusters[kind]
    cluster = regular(device, devices)
    per_rack = min(cluster.nodes, NODES_OF_A_RACK)
    links = (cluster.links[0], cluster.links[1], between_racks)
    cluster = dataclasses.replace(cluster, per_rack=per_rack, links=links)
    return workload(Job(model, world.models[model], 1, sequence), cluster)


# --- choices --------------------------------------------------------------------------------------


VALUES: dict[str, tuple[Any, ...]] = {
    "data": (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512),
    "tensor": (1, 2, 4, 8, 16, 32),
    "pipe": (1, 2, 3, 4, 5, 8, 10, 16, 20, 32),
    "schedule": tuple(flow.CLOSED),
    "virtual": (1, 2, 4, 5, 8),
    "microbatches": (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512),
    "recompute": ("full", "selective", "none"),
    "zero": (0, 1, 2, 3),
    "batch": (8, 16, 24, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096),
    "sequence": (128, 512, 1024, 2048, 4096, 8192, 16384, 32768),
}
"""What a control offers besides the present value. Models and clusters: all that the world has."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """A value of a control. change: the controls that differ when it is chosen, itself and those that must follow.

    reason: why it cannot be chosen, "" when it can. fits: whether a device's memory holds it.
    """

    value: int | str
    change: dict[str, int | str]
    reason: str = ""
    fits: bool = True


@functools.lru_cache(maxsize=256)
def choices(world: World, setting: Setting) -> dict[str, list[Choice]]:
    """Control -> its choices in order, the present one among them."""
    values = VALUES | {"model": tuple(world.models), "cluster": tuple(world.clusters)}
    found = {}
    for name, offered in values.items():
        now = getattr(setting, name)
        wanted = sorted({*offered, now}) if isinstance(now, int) else offered
        found[name] = [_choice(world, setting, name, value) for value in wanted]
    return found


def _choice(world: World, setting: Setting, name: str, value: int | str) -> Choice:
    try:
        case = adapted(world, setting, name, value)
    except MeshkitError as error:
        return Choice(value, {}, str(error))
    return Choice(value, changes(setting, case.setting), fits=case.estimate.fits)


def changes(old: Setting, new: Setting) -> dict[str, int | str]:
    """The controls that differ, with their new values."""
    before, after = dataclasses.asdict(old), dataclasses.asdict(new)
    return {name: value for name, value in after.items() if value != before[name]}


def adapted(world: World, setting: Setting, name: str, value: int | str) -> Case:
    """The setting with one control changed, and no more of the others than the change needs.

    Chunks follow the schedule, microbatches keep their size where they can. Raises the MeshkitError of the plain change
    when nothing near is legal.
    """
    wanted = setting.but({name: value})
    if name == "schedule":
        wanted = dataclasses.replace(wanted, virtual=max(2, setting.virtual) if value == "interleaved" else 1)
    if name == "virtual" and value != 1:
        wanted = dataclasses.replace(wanted, schedule="interleaved")
    if name == "model" and value in world.models:
        wanted = dataclasses.replace(wanted, sequence=min(setting.sequence, world.models[str(value)].context))
    refused: MeshkitError | None = None
    for candidate in [wanted, *(_resplit(setting, wanted) if name != "microbatches" else ())]:
        try:
            return resolve(world, candidate)
        except MeshkitError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _resplit(before: Setting, wanted: Setting) -> Iterator[Setting]:
    """The setting with other numbers of microbatches, those first whose samples are nearest to what they were."""
    if wanted.data == 0 or wanted.batch % wanted.data:
        return
    share = wanted.batch // wanted.data
    size = max(1, before.batch // (before.data * before.microbatches))
    splits = [m for m in range(1, share + 1) if share % m == 0]
    for m in sorted(splits, key=lambda m: (abs(share // m - size), -m)):
        yield dataclasses.replace(wanted, microbatches=m)


PRESETS_OF_THE_PAGE: dict[str, Setting] = {
    "8×4×2": Setting(),
    "2×4×3": Setting(data=2, pipe=3, microbatches=64, batch=256, zero=3),
    "8×4×3": Setting(pipe=3),
}
"""SPEC's worked cases: data × tensor × pipe."""

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
