"""Around a setting: one control changed at a time, and the best layouts of as many devices."""

import dataclasses
import functools

from meshkit.planner import search
from meshkit.planner.estimate import Estimate
from meshkit.planner.layout import Job
from meshkit.planner.workload import Workload
from meshkit.view.choices import adapted, changes, choices
from meshkit.view.setting import Case, Setting
from meshkit.view.world import BALANCED

BEST = 40
"""Rows of the table of layouts."""

SWEEPS = ("microbatches", "pipe", "tensor", "data")


@dataclasses.dataclass(frozen=True)
class Point:
    """A value of a sweep: the controls that differ, and the figures."""

    value: int
    change: dict[str, int | str]
    devices: int
    step_seconds: float
    tokens_per_second_device: float
    mfu: float
    eta: float
    bubble: float
    peak_bytes: float
    fits: bool


@dataclasses.dataclass(frozen=True)
class Sweeps:
    """Control -> points in order of its value; illegal values left out."""

    of: dict[str, list[Point]]
    budget_bytes: float


def sweeps(case: Case) -> Sweeps:
    """One control changed at a time, the others kept where they can be."""
    found: dict[str, list[Point]] = {}
    offered = choices(case.world, case.setting)
    for name in SWEEPS:
        found[name] = []
        for choice in offered[name]:
            if not choice.reason:
                other = adapted(case.world, case.setting, name, choice.value)
                found[name].append(_point(case.setting, other, int(choice.value)))
    return Sweeps(found, case.estimate.budget)


def _point(before: Setting, case: Case, value: int) -> Point:
    found, devices = case.estimate, case.cluster.devices
    return Point(
        value,
        changes(before, case.setting),
        devices,
        found.step,
        found.tokens_per_second / devices,
        found.mfu,
        found.efficiency,
        found.bubble,
        found.peak_memory,
        found.fits,
    )


# --- the best layouts -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Row:
    """A layout of the table. mesh: data, tensor, pipe."""

    rank: int
    mesh: list[int]
    microbatches: int
    microbatch: int
    schedule: str
    virtual: int
    recompute: str
    zero: int
    step_seconds: float
    tokens_per_second: float
    mfu: float
    eta: float
    bubble: float
    peak_bytes: float


@dataclasses.dataclass(frozen=True)
class Best:
    """The fastest layouts of as many devices that fit. legal, fitting: how many were tried, how many fit."""

    rows: list[Row]
    legal: int
    fitting: int


def best(case: Case) -> Best:
    """The planner's search on the case's devices, for its batch."""
    found = _search(case.work, case.job)
    rows = [_row(rank, estimate) for rank, estimate in enumerate(found.best[:BEST], 1)]
    return Best(rows, found.tried, len(found.best))


@functools.lru_cache(maxsize=64)
def _search(work: Workload, job: Job) -> search.Plan:
    """Remembered: it takes seconds."""
    return search.search(job, work.cluster)


def _row(rank: int, found: Estimate) -> Row:
    layout = found.layout
    return Row(
        rank,
        list(layout.mesh.sizes.values()),
        layout.microbatches,
        layout.microbatch,
        layout.schedule,
        layout.virtual,
        layout.recompute,
        layout.zero,
        found.step,
        found.tokens_per_second,
        found.mfu,
        found.efficiency,
        found.bubble,
        found.peak_memory,
    )


def changes_of(row: Row) -> dict[str, int | str]:
    """The controls that loading a row sets."""
    data, tensor, pipe = row.mesh
    mesh: dict[str, int | str] = {"data": data, "tensor": tensor, "pipe": pipe}
    names = ("schedule", "virtual", "microbatches", "recompute", "zero")
    return mesh | {name: getattr(row, name) for name in names} | {"overlap": "false", "layers": BALANCED}
