"""Why a layout takes as long as it does, and what would help: its arithmetic, and its neighbours re-estimated."""

import dataclasses
from collections.abc import Iterable, Iterator

from meshkit.config import MeshShape
from meshkit.planner.estimate import Estimate, estimate_on, workload
from meshkit.planner.hardware import GIB
from meshkit.planner.layout import Layout
from meshkit.planner.search import RECOMPUTE, ZERO, legal
from meshkit.planner.workload import BUBBLE, COMPUTE

SHORT = 0.05
"""A kind of time under this share of the step is not what to tune for."""

FULL = 0.9
"""Memory above this share of the budget is what keeps faster layouts out."""


@dataclasses.dataclass(frozen=True)
class Change:
    """A neighbouring layout: what differs, and its estimate."""

    what: str
    estimate: Estimate


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """bound: what the layout waits for, in a sentence with the figure that shows it and the change that shortens it.
    change: of the neighbours that fit the fastest, if it is faster; blocked: the fastest neighbour of all, if memory
    keeps it out."""

    bound: str
    change: Change | None
    blocked: Change | None


def diagnose(found: Estimate) -> Diagnosis:
    """What bounds a layout, and which one change would help most: all neighbours are tried."""
    tried = [Change(what, _estimated(found, layout)) for what, layout in neighbours(found)]
    faster = [change for change in tried if change.estimate.step < found.step]
    change = _fastest([change for change in faster if change.estimate.fits])
    blocked = _fastest([change for change in faster if not change.estimate.fits])
    if change is not None and blocked is not None and change.estimate.step <= blocked.estimate.step:
        blocked = None
    return Diagnosis(_bound(found, tried, blocked), change, blocked)


def _fastest(changes: Iterable[Change]) -> Change | None:
    return min(changes, key=lambda change: change.estimate.step, default=None)


def _bound(found: Estimate, tried: list[Change], blocked: Change | None) -> str:
    share = {kind: seconds / found.step for kind, seconds in found.seconds.items()}
    kind = max((k for k in share if k != COMPUTE), key=lambda k: share[k])
    use = found.peak_memory / found.budget
    memory = f"it takes {_gib(found.peak_memory)} of {_gib(found.budget)} GiB"
    if not found.fits:
        return f"memory over: {memory}: {_less_memory(found, tried)}"
    if share[kind] > SHORT:
        name = "bubble-bound" if kind == BUBBLE else f"communication-bound ({kind})"
        return f"{name}: {share[kind]:.1%} of the step, {duration(found.seconds[kind])}: {_shorter(found, kind, tried)}"
    if blocked is not None and use > FULL:
        return (
            f"memory-bound: {memory}, and {_decision(found, blocked)}, which would be faster, takes "
            f"{_gib(blocked.estimate.peak_memory)}: {_less_memory(found, tried)}"
        )
    return (
        f"compute-bound: {share[COMPUTE]:.1%} of the step, {duration(found.seconds[COMPUTE])}: "
        f"{_shorter(found, COMPUTE, tried)}"
    )


def _shorter(found: Estimate, kind: str, tried: list[Change]) -> str:
    """The neighbour that shortens a kind of time and, of those that fit, the step most; or that none does."""
    shorter = [c for c in tried if c.estimate.seconds[kind] < found.seconds[kind] and c.estimate.step < found.step]
    best = _fastest(c for c in shorter if c.estimate.fits) or _fastest(shorter)
    if best is None:
        return "no single change shortens it and the step"
    new = best.estimate
    over = "" if new.fits else f", but it takes {_gib(new.peak_memory)} of {_gib(new.budget)} GiB"
    return f"{_decision(found, best)} makes it {duration(new.seconds[kind])}, the step {duration(new.step)}{over}"


def _less_memory(found: Estimate, tried: list[Change]) -> str:
    """The fastest neighbour that takes less memory and fits; or the one that takes least."""
    less = [change for change in tried if change.estimate.peak_memory < found.peak_memory]
    best = _fastest(c for c in less if c.estimate.fits) or min(less, key=lambda c: c.estimate.peak_memory, default=None)
    if best is None:
        return "no single change takes less"
    new = best.estimate
    return f"{_decision(found, best)} takes {_gib(new.peak_memory)} GiB and {duration(new.step)} a step"


def _decision(found: Estimate, change: Change) -> str:
    """The words for a change: what is lowered, raised or chosen, and to what."""
    old, new = found.layout, change.estimate.layout
    values = lambda layout: (*(layout.mesh.sizes[axis] for axis in ("tensor", "pipe", "data")), layout.microbatches)
    turns = [
        f"{'lower' if after < before else 'raise'} {name}"
        for name, before, after in zip("TPDm", values(old), values(new), strict=True)
        if before != after
    ]
    return f"{', '.join(turns)} ({change.what})" if turns else change.what


def _gib(memory: float) -> str:
    return f"{memory / GIB:.1f}"


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
        extra = f" + {duration(term.extra)}" if term.extra else ""
        each = f"{scaled(term.volume, term.unit)} ÷ {scaled(term.rate, term.unit + '/s')}{extra}"
        how = f"{term.repeats:,.6g} × ({duration(term.volume) if term.unit == 's' else each})"
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
    for factor, prefix in UNITS:
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


NOTHING = 5e-10
"""Seconds under which a time is a matter of rounding."""


def duration(seconds: float) -> str:
    """Seconds with the digits that say something, and a unit: 12.35 s, 1.304 s, 81.4 ms, 95 µs."""
    if abs(seconds) < NOTHING:
        return "0"
    if abs(seconds) < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    value, unit, digits = (seconds, "s", 2) if abs(seconds) >= 0.9995 else (seconds * 1e3, "ms", 1)
    return f"{value:,.{digits if abs(value) >= 10 else 3}f} {unit}"
