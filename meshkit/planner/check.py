"""`meshkit plan --check`: the best layouts through XLA's own compiler, which corrects their memory. No JAX here."""

import dataclasses
from typing import Any

from meshkit.config import RunConfig, load
from meshkit.errors import MeshkitError
from meshkit.planner.compile import compile_step
from meshkit.planner.compile_report import GIB, Report
from meshkit.planner.estimate import Estimate
from meshkit.planner.search import Plan


@dataclasses.dataclass(frozen=True)
class Checked:
    """A row of a plan, as it was ranked and estimated, and what the compiler made of it."""

    rank: int
    estimate: Estimate
    report: Report

    @property
    def peak(self) -> int:
        """Bytes that XLA needs at once."""
        assert self.report.memory is not None, "a check compiles for the cluster's own GPUs"
        return self.report.memory.peak

    def corrected(self) -> Estimate:
        """The estimate with XLA's peak: what the planner missed is added to what comes and goes within a step."""
        by_kind = dict(self.estimate.memory[0])
        by_kind["working set"] += self.peak - self.estimate.peak_memory
        return dataclasses.replace(self.estimate, memory=(by_kind,))

    def __str__(self) -> str:
        error, verdict = self.estimate.peak_memory / self.peak - 1, "fits" if self.report.ok else "does NOT fit"
        return (
            f"planned row {self.rank}, {self.estimate.layout}: compiled in {self.report.seconds:.0f} s, "
            f"{self.peak / GIB:.2f} GiB a GPU by XLA, estimated {self.estimate.peak_memory / GIB:.2f} "
            f"({error:+.1%}): it {verdict}"
        )

    def as_json(self) -> dict[str, Any]:
        """As plain values; bytes, seconds."""
        return {
            "rank": self.rank,
            "estimated_peak_memory": self.estimate.peak_memory,
            "peak_memory": self.peak,
            "fits": self.report.ok,
            "seconds": self.report.seconds,
        }


def check(plan: Plan, base: RunConfig, count: int) -> tuple[Plan, tuple[Checked, ...]]:
    """The plan with the memory of its best `count` rows as XLA has it, without those that do not fit; and these rows.

    base: the config that was planned. Raises MeshkitError for a plan of another framework, when no compiler is
    there (see `compile_step`), and when no row is left.
    """
    if count < 1:
        raise MeshkitError(f"--check {count}: it is at least 1")
    if plan.profile.name != "meshkit":
        raise MeshkitError(f"--check compiles what meshkit runs, not {plan.profile.name}: leave out --profile")
    rows = tuple(
        Checked(rank, found, compile_step(config_of(found, base), plan.cluster))
        for rank, found in enumerate(plan.best[:count], 1)
    )
    fitting = [row.corrected() for row in rows if row.report.ok]
    best = (*fitting, *plan.best[count:])
    if not best:
        raise MeshkitError(f"no layout fits {plan.cluster} after all:\n" + "\n".join(map(str, rows)))
    return dataclasses.replace(plan, best=best), rows


def config_of(found: Estimate, base: RunConfig) -> RunConfig:
    """`base` with the layout of an estimate."""
    layout, job = found.layout, found.job
    pipeline = {"schedule": layout.schedule, "virtual": layout.virtual, "microbatches": layout.microbatches}
    return load(
        base,
        {
            "mesh": layout.mesh.sizes,
            "pipeline": pipeline | {"layers_per_stage": None, "overlap": False},
            "recompute": layout.recompute,
            "zero": layout.zero,
            "precision": job.precision,
            "data": {"batch": job.batch, "sequence": job.sequence},
        },
    )
