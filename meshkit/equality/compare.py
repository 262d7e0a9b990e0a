"""How far two courses of the same training are apart, leaf by leaf. NumPy only.

Exactly (float64): largest |difference| ÷ measure, where a leaf's measure is its own largest value, or
FLOOR of the largest of any leaf if that is more. The gradient of a key bias, for one, is zero by
mathematics: only rounding is left of it, and to divide by that would say nothing.

Roughly (float32, bfloat16): the root mean square of the distance from the float64 result ÷ that of the
leaf (floor as above), to be compared with the same distance of one device in the same precision.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

BOUND = 1e-12
"""Exactly: what the order of summation may change, and no more."""

RATIO = 3.0
"""Roughly: the layout may be this many times as far from the float64 result as one device is."""

FLOOR = 1e-3

DETERMINED = 1e-6
"""Where a gradient is below this share of its leaf's measure, rounding decides what lion's sign or
adam's quotient makes of it. Such elements are left out where updated parameters are compared."""

DEVIATIONS = 4.0
"""In lower precision, rounding decides up to this many times the root mean square of its errors."""

Leaves = Mapping[str, np.ndarray]


class Course(NamedTuple):
    """What some training steps showed, in canonical form (no padded rows): loss, global norm and
    gradients of each, parameters after the last."""

    losses: np.ndarray
    norms: np.ndarray
    gradients: list[Leaves]
    params: Leaves


@dataclasses.dataclass(frozen=True)
class Row:
    """One compared quantity, of one leaf or of the worst. `error` and `bound` are relative, `absolute`
    is the largest |difference|. compared: the share of all its elements that was compared, the rest being left to
    rounding; NaN is the error of what compared nothing."""

    quantity: str
    leaf: str
    precision: str
    error: float
    bound: float
    absolute: float
    compared: float = 1.0

    @property
    def ok(self) -> bool:
        """Whether the layout and the one device agree, as far as that was compared; not where nothing was."""
        return self.error <= self.bound  # also False for NaN


def drawn(got: Leaves, want: Leaves, precision: str) -> Row:
    """Initial parameters: up to rounding in the last place the same numbers."""
    rows = []
    for name, leaf in want.items():
        absolute, largest = float(np.max(np.abs(got[name] - leaf))), float(np.max(np.abs(leaf)))
        bound = 4 * float(ml_dtypes.finfo(leaf.dtype).eps)
        rows.append(
            Row("initial parameters", name, precision, absolute / largest if absolute else 0.0, bound, absolute)
        )
    return _worst(rows)


def exactly(course: Course, one: Course) -> list[Row]:
    """float64: a course on a mesh against the one on one device."""

    def row(quantity: str, leaf: str, got: np.ndarray, want: np.ndarray, measure: float) -> Row:
        absolute = float(np.max(np.abs(got - want), initial=0))
        return Row(quantity, leaf, "float64", absolute / measure if absolute else 0.0, BOUND, absolute)

    def tree(quantity: str, got: Leaves, want: Leaves) -> list[Row]:
        measures = _measures(want, np.max)
        return [row(quantity, name, got[name], want[name], measures[name]) for name in want]

    settled = determined(course, one, {})
    got, want = ({name: p[settled[name]] for name, p in c.params.items()} for c in (course, one))
    return [
        row("loss", "", course.losses, one.losses, float(np.max(np.abs(one.losses)))),
        *tree("gradient", course.gradients[0], one.gradients[0]),
        row("global norm", "", course.norms, one.norms, float(np.max(one.norms))),
        *_updated(tree(f"parameters after {len(one.losses)} updates", got, want), settled),
    ]


def roughly(course: Course, one: Course, exact: Course, precision: str, epsilon: float) -> list[Row]:
    """Lower precision: a course on a mesh and one on one device, both against float64.

    epsilon: of the precision computed and summed in. A distance of one device below a quarter of it is luck.
    """
    noise = dict.fromkeys(exact.params, 0.0)
    for got, want in zip(one.gradients, exact.gradients, strict=True):
        for name, measure in _measures(want, _rms).items():
            noise[name] = max(noise[name], RATIO * max(_rms(got[name] - want[name]), measure * epsilon / 4))

    def distance(got: np.ndarray, want: np.ndarray, measure: float) -> float:
        return _rms(got - want) / measure

    def row(quantity: str, leaf: str, got: np.ndarray, other: np.ndarray, want: np.ndarray, measure: float) -> Row:
        bound = RATIO * max(distance(other, want, measure), epsilon / 4)
        absolute = float(np.max(np.abs(got - want), initial=0))
        return Row(quantity, leaf, precision, distance(got, want, measure), bound, absolute)

    def tree(quantity: str, got: Leaves, other: Leaves, want: Leaves) -> list[Row]:
        measures = _measures(want, _rms)
        return [row(quantity, name, got[name], other[name], want[name], measures[name]) for name in want]

    real = determined(exact, exact, {})
    settled = determined(exact, exact, {name: DEVIATIONS * size for name, size in noise.items()})
    # Where rounding may decide all of a leaf that has a gradient (as where it decides which experts a token goes
    # through), all is compared: one device in this precision, left to rounding as well, sets the bound.
    moved = {name: np.any([tree[name] for tree in exact.gradients], axis=0) for name in settled}
    settled = {name: mask if (mask & moved[name]).any() else real[name] for name, mask in settled.items()}
    params = [{name: p[settled[name]] for name, p in c.params.items()} for c in (course, one, exact)]
    return [
        row("loss", "", course.losses, one.losses, exact.losses, _rms(exact.losses)),
        *tree("gradient", course.gradients[0], one.gradients[0], exact.gradients[0]),
        row("global norm", "", course.norms, one.norms, exact.norms, _rms(exact.norms)),
        *_updated(tree(f"parameters after {len(exact.losses)} updates", *params), settled),
    ]


def determined(course: Course, one: Course, noise: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Name -> bool mask of the elements whose every gradient is more than rounding, or no gradient at all.

    noise: what rounding may make of a leaf's elements, if that is more than DETERMINED.
    """
    masks = {name: np.ones(p.shape, bool) for name, p in one.params.items()}
    for got, want in zip(course.gradients, one.gradients, strict=True):
        measures = _measures(want, np.max)
        for name, mask in masks.items():
            large = np.abs(want[name]) >= max(DETERMINED * measures[name], noise.get(name, 0.0))
            mask &= large | ((want[name] == 0) & (got[name] == 0))
    return masks


def _updated(rows: list[Row], settled: Mapping[str, np.ndarray]) -> list[Row]:
    """Of the rows of updated parameters the worst, or one that says that nothing was compared.

    settled: which elements were compared. A leaf that has none, such as a key bias, whose gradient is zero by
    mathematics, is left out; the share that was compared says so.
    """
    seen = [row for row in rows if settled[row.leaf].any()]
    if not seen:
        return [dataclasses.replace(rows[0], error=math.nan, absolute=math.nan, compared=0.0)]
    share = sum(int(mask.sum()) for mask in settled.values()) / sum(mask.size for mask in settled.values())
    return [dataclasses.replace(_worst(seen), compared=share)]


def _measures(leaves: Leaves, size: Any) -> dict[str, float]:
    sizes = {name: float(size(np.abs(leaf))) if leaf.size else 0.0 for name, leaf in leaves.items()}
    return {name: max(own, FLOOR * max(sizes.values())) for name, own in sizes.items()}


def _rms(values: np.ndarray) -> float:
    return math.sqrt(float(np.mean(np.square(values, dtype=np.float64)))) if values.size else 0.0


def _worst(rows: list[Row]) -> Row:
    """The row nearest to its bound, or beyond it the most; NaN is worse than any number."""
    return max(rows, key=lambda row: math.inf if math.isnan(row.error) else row.error / row.bound)
