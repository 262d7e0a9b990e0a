"""Why a layout takes as long as it does, and what would help: its arithmetic, and its neighbours re-estimated."""

import dataclasses
from collections.abc import Iterator

from meshkit.config import MeshShape
from meshkit.planner.estimate import Estimate, estimate_on, workload
from meshkit.planner.layout import Layout
from meshkit.planner.search import RECOMPUTE, ZERO, legal
from meshkit.planner.workload import BUBBLE, COMPUTE, PIPE, TENSOR

SHORT = 0.05
"""A kind of time under this share of the step is not what to tune for."""

FULL = 0.9
"""Memory above this share of the budget is what keeps faster layouts out."""

CURES = {
    TENSOR: "lower T",
    PIPE: "fewer stages or larger microbatches",
    BUBBLE: "raise m, lower P, or interleave",
}
"""What to try first, by the kind of time that is long. What shortens DATA depends on zero and on what it is beside:
see `_cure`."""


@dataclasses.dataclass(frozen=True)
class Change:
    """A neighbouring layout: what differs, and its estimate."""

    what: str
    estimate: Estimate


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """bound: what the layout waits for, in a sentence with the figure. change: of the neighbours that fit the
    fastest, if it is faster; blocked: the fastest neighbour of all, if memory keeps it out."""

    bound: str
    change: Change | None
    blocked: Change | None


def diagnose(found: Estimate) -> Diagnosis:
    """What bounds a layout, and which one change would help most."""
    tried = [Change(what, _estimated(found, layout)) for what, layout in neighbours(found)]
    faster = [change for change in tried if change.estimate.step < found.step]
    fastest = lambda changes: min(changes, key=lambda change: change.estimate.step, default=None)
    change = fastest([change for change in faster if change.estimate.fits])
    blocked = fastest([change for change in faster if not change.estimate.fits])
    if change is not None and blocked is not None and change.estimate.step <= blocked.estimate.step:
        blocked = None
    return Diagnosis(_bound(found, blocked is not None, faster), change, blocked)


def _bound(found: Estimate, is_blocked: bool, faster: list[Change]) -> str:
    share = {kind: seconds / found.step for kind, seconds in found.seconds.items()}
    kind = max((k for k in share if k != COMPUTE), key=lambda k: share[k])
    use, gib = found.peak_memory / found.budget, 2**30
    memory = f"{found.peak_memory / gib:.1f} of {found.budget / gib:.1f} GiB"
    if not found.fits:
        return f"memory over: it needs {memory}: more stages, more T, recomputation, or a higher zero"
    if share[kind] > SHORT:
        name = "bubble-bound" if kind == BUBBLE else f"communication-bound ({kind})"
        return f"{name}: {share[kind]:.1%} of the step: {_cure(found, kind, faster)}"
    if is_blocked and use > FULL:
        return f"memory-bound: it takes {memory}, and what would be faster does not fit"
    return f"compute-bound: {share[COMPUTE]:.1%} of the step computes"


def _cure(found: Estimate, kind: str, faster: list[Change]) -> str:
    """What shortens a kind of time: for DATA the neighbour that fits, shortens it, and is fastest."""
    if kind in CURES:
        return CURES[kind]
    shorter = [c for c in faster if c.estimate.fits and c.estimate.seconds[kind] < found.seconds[kind]]
    best = min(shorter, key=lambda change: change.estimate.step, default=None)
    return best.what if best is not None else "no single change that fits shortens it"


def _estimated(found: Estimate, layout: Layout) -> Estimate:
    return estimate_on(workload(found.job, found.cluster, found.profile), found.job, layout)


def neighbours(found: Estimate) -> Iterator[tuple[str, Layout]]:
    """Layouts one decision away, each with the words for it; all legal."""
    layout, job = found.layout, found.job
    for what, changed in _changes(layout, job.batch):
        if changed != layout and legal(job, changed):
            yield what, changed


def _changes(layout: Layout, batch: int) -> Iterator[tuple[str, Layout]]:
    change = lambda **values: dataclasses.replace(layout, **values)
    for policy in RECOMPUTE:
        yield f"recompute {policy}", change(recompute=policy)
    for level in ZERO:
        yield f"zero {level}", change(zero=level)
    for schedule, virtual in (("1f1b", 1), ("zero-bubble", 1), ("interleaved", 2), ("interleaved", 4)):
        name = f"{schedule}" + (f" v={virtual}" if virtual > 1 else "")
        yield name, change(schedule=schedule, virtual=virtual)
    yield f"overlap {str(not layout.overlap).lower()}", change(overlap=not layout.overlap)
    yield "layers balanced", change(layers_per_stage=None)
    mesh = layout.mesh
    for one, other in (("tensor", "data"), ("tensor", "pipe"), ("pipe", "data")):
        for less, more in ((one, other), (other, one)):
            sizes = mesh.sizes
            if sizes[less] % 2:
                continue
            sizes = sizes | {less: sizes[less] // 2, more: sizes[more] * 2}
            share, rest = divmod(batch, sizes["data"])
            if rest or share % layout.microbatch:
                continue
            new = MeshShape(**sizes)
            followed = {"schedule": "1f1b", "virtual": 1, "overlap": False} if new.pipe == 1 else {}
            followed |= {"layers_per_stage": None} if new.pipe != mesh.pipe else {}
            what = ", ".join(f"{axis[0].upper()}={sizes[axis]}" for axis in ("data", "tensor", "pipe"))
            yield what, change(mesh=new, microbatches=share // layout.microbatch, **followed)
    for b, m in ((layout.microbatch * 2, layout.microbatches / 2), (layout.microbatch / 2, layout.microbatches * 2)):
        if b == int(b) and m == int(m):
            yield f"{int(m)} microbatches of {int(b)}", change(microbatch=int(b), microbatches=int(m))


# --- the arithmetic --------------------------------------------------------------------------------

UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def arithmetic(found: Estimate) -> list[tuple[str, str, str, float]]:
    """Every term of the step: (name, kind, how it comes about with units, seconds)."""
    rows = []
    for term in sorted(found.terms, key=lambda term: -term.seconds):
        extra = f" + {scaled(term.extra * 1e6, 'µs')}" if term.extra else ""
        how = f"{term.repeats:,.6g} × ({scaled(term.volume, term.unit)} ÷ {scaled(term.rate, term.unit + '/s')}{extra})"
        how += f"; hidden behind work: {term.hidden:.2%}" if term.hidden else ""
        rows.append((term.name, term.kind, how, term.seconds))
    rows.append(
        (
            BUBBLE,
            BUBBLE,
            f"{found.layout.schedule}'s table; ideal {1 - found.utilisation:.2%} of a pipeline",
            found.bubble_seconds,
        )
    )
    return rows


def scaled(value: float, unit: str) -> str:
    """1.5e12, FLOP -> 1.5 TFLOP."""
    if unit == "µs":
        return f"{value:,.3g} µs"
    for factor, prefix in UNITS:
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
