"""How well predictions agree with what was measured: errors, order, the choice, and what runs out of memory."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshkit.planner.estimate import Estimate
from meshkit.planner.evidence.cases import Case

LEAST = 3
"""Rows that a group needs to have an order."""


class Predicted(NamedTuple):
    """A row and what the planner says of it."""

    case: Case
    estimate: Estimate

    @property
    def time(self) -> float | None:
        """Predicted over measured seconds."""
        return self.estimate.step / self.case.seconds if self.case.seconds else None

    @property
    def memory(self) -> float | None:
        """Predicted over measured bytes, of the fullest stage."""
        return self.estimate.peak_memory / self.case.memory if self.case.memory else None

    @property
    def stages(self) -> tuple[float, ...]:
        """Predicted over measured bytes of the first and the last stage."""
        found = [sum(stage.values()) for stage in self.estimate.memory]
        ends = (found[0], found[-1])
        return tuple(f / m for f, m in zip(ends, self.case.stages or (), strict=False))


@dataclasses.dataclass(frozen=True)
class Errors:
    """Absolute errors |predicted / measured − 1| of some rows. bias: median of predicted / measured."""

    rows: int
    median: float
    ninth: float
    mean: float
    bias: float


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Of one table, or of a part of it. rows: in the table; covered: those predicted.

    spearman: rank correlation of times, within groups, weighed by their rows; regret: share of the best measured
    throughput that is lost by taking the layout that the planner ranks first, mean over groups; precision, recall: of
    out of memory. None: the table has no such figures.
    """

    table: str
    rows: int
    covered: int
    time: Errors | None
    memory: Errors | None
    stages: Errors | None
    spearman: float | None
    regret: float | None
    precision: float | None
    recall: float | None


def judge(table: str, rows: int, found: Sequence[Predicted]) -> Judgement:
    """All figures of a table with `rows` rows, `found` of which the planner covers."""
    groups: dict[tuple[str, int, int], list[Predicted]] = defaultdict(list)
    for row in found:
        if row.case.seconds:
            groups[row.case.group].append(row)
    ordered = [group for group in groups.values() if len(group) >= LEAST]
    stages = [ratio for row in found for ratio in row.stages]
    return Judgement(
        table,
        rows,
        len(found),
        _errors([row.time for row in found if row.time is not None]),
        _errors([row.memory for row in found if row.memory is not None]),
        _errors(stages),
        _spearman(ordered),
        _mean([_regret(group) for group in ordered]),
        *_out_of_memory(found),
    )


def _errors(ratios: Sequence[float]) -> Errors | None:
    if not ratios:
        return None
    errors = np.abs(np.asarray(ratios) - 1)
    middle, ninth = np.quantile(errors, [0.5, 0.9])
    return Errors(len(ratios), float(middle), float(ninth), float(errors.mean()), float(np.median(ratios)))


def _spearman(groups: Sequence[Sequence[Predicted]]) -> float | None:
    from scipy.stats import spearmanr

    weights, values = [], []
    for group in groups:
        predicted = [row.estimate.step for row in group]
        measured = [row.case.seconds for row in group]
        if len(set(predicted)) > 1 and len(set(measured)) > 1:
            values.append(float(spearmanr(predicted, measured).statistic))
            weights.append(len(group))
    return float(np.average(values, weights=weights)) if values else None


def _regret(group: Sequence[Predicted]) -> float:
    throughput = lambda row: row.case.job.batch * row.case.job.sequence / (row.case.seconds or 1)
    chosen = min(group, key=lambda row: row.estimate.step * 1.0 / row.case.job.batch)
    # Runs of the chosen layout differ; what it is worth is their median.
    runs = [throughput(row) for row in group if row.case.layout == chosen.case.layout]
    return 1 - float(np.median(runs)) / max(map(throughput, group))


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _out_of_memory(found: Sequence[Predicted]) -> tuple[float | None, float | None]:
    told = [(row.case.out_of_memory, not row.estimate.fits) for row in found if row.case.out_of_memory is not None]
    hits = sum(measured and predicted for measured, predicted in told)
    measured, predicted = (sum(column) for column in zip(*told, strict=True)) if told else (0, 0)
    return (hits / predicted if predicted else None), (hits / measured if measured else None)
