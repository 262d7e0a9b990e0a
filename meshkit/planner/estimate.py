"""What one layout of a job costs on a cluster: time of a step by kind, memory by kind, and what follows."""

import dataclasses
import functools
from typing import Any

from meshkit.errors import MeshkitError
from meshkit.planner import memory
from meshkit.planner.cluster import Cluster, groups
from meshkit.planner.counts import model_flops
from meshkit.planner.layout import Job, Layout
from meshkit.planner.profile import MESHKIT, Profile
from meshkit.planner.step import Part, asynchronous, lock_step
from meshkit.planner.workload import BUBBLE, COMPUTE, KINDS, Term, Workload


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A layout's step. parts: of the busiest stage; with the bubble, they add up to the step (seconds).

    memory: bytes by kind of a device of each stage (one entry: all alike). budget: bytes that a device offers.
    """

    job: Job
    layout: Layout
    cluster: Cluster
    profile: Profile
    parts: tuple[Part, ...]
    bubble_seconds: float
    memory: tuple[dict[str, float], ...]
    budget: float

    @functools.cached_property
    def seconds(self) -> dict[str, float]:
        """Kind (compute, tensor, pipe, data, bubble) -> its share of the step, in seconds."""
        spent = dict.fromkeys(KINDS, 0.0)
        for part in self.parts:
            for kind, seconds in part.terms.by_kind.items():
                spent[kind] += part.repeats * seconds
        return spent | {BUBBLE: self.bubble_seconds}

    @functools.cached_property
    def terms(self) -> tuple[Term, ...]:
        """Every term of the step, as often as it occurs, named by its action and what it is."""
        named = (
            term.times(part.repeats)._replace(name=f"{part.action}: {term.name}" if part.action else term.name)
            for part in self.parts
            for term in part.terms.items
        )
        return tuple(term for term in named if term.volume and term.repeats)

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
    """What the layouts of a job have in common. Make one and use it for all: it remembers its parts.

    Raises MeshkitError when the accelerator has no rate for the job's dtype.
    """
    rates = cluster.accelerator.flops
    if job.precision not in rates:
        raise MeshkitError(
            f"precision = {job.precision}: no peak rate of {cluster.accelerator.name} is published for it that the "
            f"planner could take: set precision to {' or '.join(rates)}, or describe the device in a cluster's file, "
            "with the rate as device.float32"
        )
    return Workload(job.sizes, job.sequence, cluster, profile, job.precision)


def estimate_on(work: Workload, job: Job, layout: Layout) -> Estimate:
    """`estimate` for one of many layouts."""
    step = lock_step if work.profile.lock_step else asynchronous
    parts, bubble = step(work, layout, groups(layout.mesh, work.cluster, work.profile.pipe_outermost))
    budget = work.device.memory - memory.RESERVE
    return Estimate(job, layout, work.cluster, work.profile, parts, bubble, memory.stages(work, layout), budget)


def as_json(found: Estimate) -> dict[str, Any]:
    """The estimate as plain values."""
    layout = found.layout
    return {
        "mesh": layout.mesh.sizes,
        "microbatch": layout.microbatch,
        "microbatches": layout.microbatches,
        "schedule": layout.schedule,
        "virtual": layout.virtual,
        "overlap": layout.overlap,
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
