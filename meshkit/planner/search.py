"""Every legal layout of a job on a cluster, estimated and ranked."""

import dataclasses
import itertools
import math
from collections.abc import Iterator

from meshkit.config import MeshShape
from meshkit.errors import MeshkitError
from meshkit.planner import memory
from meshkit.planner.cluster import Cluster
from meshkit.planner.estimate import Estimate, estimate_on, workload
from meshkit.planner.layout import SCHEDULES, Job, Layout
from meshkit.planner.profile import MESHKIT, Profile

RECOMPUTE = ("none", "selective", "full")
ZERO = (1, 2, 3)
VIRTUAL = (2, 4)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a search found. best: fitting layouts, fastest first. tried: how many are legal; tight: of those that do
    not fit, the one that needs least memory. asked: a mesh whose rank is wanted; own: the layout of the config that
    was planned; why_no_own: what keeps the batch from it. ignored: keys of the config that change time or memory, and
    that no estimate knows."""

    job: Job
    cluster: Cluster
    profile: Profile
    best: tuple[Estimate, ...]
    tried: int
    tight: Estimate | None
    asked: MeshShape | None = None
    own: Layout | None = None
    why_no_own: str = ""
    ignored: tuple[str, ...] = ()

    def rank_of(self, mesh: MeshShape) -> int | None:
        """Place (from 1) of the fastest fitting layout on `mesh`; None when none fits."""
        return next((k for k, found in enumerate(self.best, 1) if found.layout.mesh == mesh), None)

    @property
    def own_rank(self) -> int | None:
        """Place (from 1) of the config's own layout; None when there is none, it does not fit, or was not tried."""
        return next((k for k, found in enumerate(self.best, 1) if found.layout == self.own), None)


def search(job: Job, cluster: Cluster, profile: Profile = MESHKIT) -> Plan:
    """All layouts that are legal, those that fit estimated, fastest first.

    Raises MeshkitError when no layout is legal.
    """
    work = workload(job, cluster, profile)
    budget, tried = work.device.memory - memory.RESERVE, 0
    fitting, least, smallest = [], float("inf"), None
    for layout in layouts(job, cluster.devices, profile):
        tried += 1
        need = max(sum(stage.values()) for stage in memory.stages(work, layout))
        if need <= budget:
            fitting.append(estimate_on(work, job, layout))
        elif need < least:
            least, smallest = need, layout
    if not tried:
        raise MeshkitError(_illegal(job, cluster))
    best = sorted(fitting, key=lambda found: (found.step, found.peak_memory))
    tight = estimate_on(work, job, smallest) if smallest is not None else None
    return Plan(job, cluster, profile, tuple(best), tried, tight)


def first_fitting(job: Job, cluster: Cluster, profile: Profile = MESHKIT) -> Layout | None:
    """The first layout that fits, of those that are legal; None when none is."""
    work = workload(job, cluster, profile)
    budget = work.device.memory - memory.RESERVE
    fits = lambda layout: max(sum(stage.values()) for stage in memory.stages(work, layout)) <= budget
    return next(filter(fits, layouts(job, cluster.devices, profile)), None)


def layouts(job: Job, devices: int, profile: Profile = MESHKIT) -> Iterator[Layout]:
    """Every legal layout: mesh × microbatch × schedule × recompute × zero.

    meshkit's tables and levels of ZeRO are its own: other frameworks have 1F1B, interleaved or not, and cut moments.
    """
    levels, tables = (ZERO, SCHEDULES) if profile.lock_step else (ZERO[:1], ("1f1b", "interleaved"))
    for mesh in meshes(job, devices):
        share = job.batch // mesh.data
        for microbatch in _divisors(share):
            m = share // microbatch
            for schedule, virtual in _schedules(job, mesh, m):
                if schedule not in tables:
                    continue
                for recompute, zero in itertools.product(RECOMPUTE, levels if mesh.data > 1 else levels[:1]):
                    yield Layout(mesh, microbatch, m, schedule, virtual, recompute, zero)


def meshes(job: Job, devices: int) -> Iterator[MeshShape]:
    """Every mesh of `devices` devices over which the model's sizes and the batch divide."""
    sizes = job.sizes
    for tensor in _divisors(devices):
        if any(size % tensor for size in (sizes.heads, sizes.kv_heads, sizes.mlp_width, job.sequence)):
            continue
        for pipe in _divisors(devices // tensor):
            data = devices // (tensor * pipe)
            if pipe <= sizes.layers and job.batch % data == 0:
                yield MeshShape(data=data, tensor=tensor, pipe=pipe)


def legal(job: Job, layout: Layout) -> bool:
    """Whether a search would try the layout, or could: its mesh, its microbatches, its schedule and its cut go
    together."""
    mesh, m, table = layout.mesh, layout.microbatches, layout.table
    try:
        layout.placement(job.sizes.layers)
        known = (layout.schedule, layout.virtual) in _schedules(job, mesh, m) if table.built else table.schedule.trains
    except MeshkitError:
        return False
    return (
        known
        and mesh in meshes(job, mesh.devices)
        and layout.microbatch * m * mesh.data == job.batch
        and not (layout.overlap and layout.schedule == "interleaved")
    )


def _schedules(job: Job, mesh: MeshShape, m: int) -> Iterator[tuple[str, int]]:
    yield "1f1b", 1
    if mesh.pipe == 1:
        return
    yield "gpipe", 1
    yield "zero-bubble", 1
    for virtual in VIRTUAL:
        if m % mesh.pipe == 0 and mesh.pipe * virtual <= job.sizes.layers:
            yield "interleaved", virtual


def _divisors(n: int) -> list[int]:
    """Ascending."""
    small = [k for k in range(1, math.isqrt(n) + 1) if n % k == 0]
    return small + [n // k for k in reversed(small) if k * k < n]


def _illegal(job: Job, cluster: Cluster) -> str:
    data = [d for d in _divisors(job.batch) if d <= cluster.devices]
    return (
        f"{job.model} has no legal mesh of {cluster.devices} devices: data must divide the batch of {job.batch} "
        f"({', '.join(map(str, data[-6:]))}), tensor the heads ({job.sizes.heads}, {job.sizes.kv_heads} of keys and "
        f"values), pipe is at most the layers ({job.sizes.layers}): change the number of devices or the batch"
    )
