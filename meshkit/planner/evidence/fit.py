"""How the catalogue's efficiencies and the profiles' fitted figures were found: python -m meshkit.planner.evidence.fit.

Least squares of log(predicted / measured) with Cauchy's loss, so that a run that stood still for a minute does not
count more than one that did not; every table weighs the same. Memory is fitted on nanotron's runs alone. What it
prints is rounded into `hardware.py` and `profile.py` by hand. Cross-validated by layouts: fitted on one half of them,
judged on the other, and the reverse.
"""

import argparse
import dataclasses
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshkit.planner.evidence.cases import Case
from meshkit.planner.evidence.tables import TABLES
from meshkit.planner.hardware import GIGA, MICRO
from meshkit.planner.profile import EAGER, FUSED, Profile, scaled

SCALE = 0.05
"""Errors (in logarithms) from which Cauchy's loss stops taking them at their square."""

Values = Mapping[str, float]
Change = Callable[[Case, float], Case]


def _efficiency(kinds: Sequence[str], field: str) -> Change:
    def change(case: Case, value: float) -> Case:
        device = case.cluster.accelerator
        if device.name not in kinds:
            return case
        efficiency = dataclasses.replace(device.efficiency, **{field: value})
        device = dataclasses.replace(device, efficiency=efficiency)
        return dataclasses.replace(case, cluster=dataclasses.replace(case.cluster, accelerator=device))

    return change


def _profile(name: str, make: Callable[[Profile, float], Profile]) -> Change:
    def change(case: Case, value: float) -> Case:
        return dataclasses.replace(case, profile=make(case.profile, value)) if case.profile.name == name else case

    return change


def _latency(network: str) -> Change:
    def change(case: Case, value: float) -> Case:
        set_ = lambda link: dataclasses.replace(link, latency=value * MICRO) if link.name == network else link
        node, between, spine = map(set_, case.cluster.links)
        return dataclasses.replace(case, cluster=dataclasses.replace(case.cluster, links=(node, between, spine)))

    return change


def _nanotron(field: str, unit: float = 1.0, part: str | None = None) -> Change:
    """Sets a field of nanotron's profile, or of a `part` of it (host, stall, kept)."""

    def make(profile: Profile, value: float) -> Profile:
        changed: dict[str, Any] = {field: value * unit}
        if part is not None:
            changed = {part: dataclasses.replace(getattr(profile, part), **changed)}
        return dataclasses.replace(profile, **changed)

    return _profile("nanotron", make)


PARAMETERS: dict[str, tuple[float, Change]] = {
    "ampere matmul": (0.8, _efficiency(["a100-80"], "matmul")),
    "ampere memory": (0.9, _efficiency(["a100-80"], "memory")),
    "hopper matmul": (0.7, _efficiency(["h100"], "matmul")),
    "blackwell matmul": (0.5, _efficiency(["b200", "gb200"], "matmul")),
    "aleph-alpha traffic": (
        2.0,
        _profile("aleph-alpha", lambda p, v: dataclasses.replace(p, traffic=scaled(EAGER, v))),
    ),
    "megatron traffic": (3.0, _profile("megatron", lambda p, v: dataclasses.replace(p, traffic=scaled(FUSED, v)))),
    "nanotron traffic": (3.0, _profile("nanotron", lambda p, v: dataclasses.replace(p, traffic=scaled(FUSED, v)))),
    "nanotron host, ms": (1.5, _nanotron("layer", 1e-3, part="host")),
    "nanotron host, by peers": (0.45, _nanotron("peer", part="host")),
    "nanotron host, by their square": (0.01, _nanotron("square", part="host")),
    "nanotron stall of replicas, s": (0.5, _nanotron("replicated", part="stall")),
    "nanotron stall of many, s": (1.0, _nanotron("many", part="stall")),
    "EFA latency, µs": (45.0, _latency("EFA")),
}
"""Of time. Name -> (where the fit starts, how a case changes with it)."""

MEMORY: dict[str, tuple[float, Change]] = {
    "nanotron between": (20.0, _nanotron("between", part="kept")),
    "nanotron hidden": (2.0, _nanotron("hidden", part="kept")),
    "nanotron whole": (2.0, _nanotron("whole", part="kept")),
    "nanotron gradient": (5.0, _nanotron("gradient_memory")),
    "nanotron logit": (10.0, _nanotron("logit_memory")),
    "nanotron workspace, GB": (0.3, _nanotron("workspace", GIGA)),
}
"""Of memory, the same."""

Ratio = Callable[[Case, Values], float]


def _changed(case: Case, values: Values) -> Case:
    for name, value in values.items():
        case = (PARAMETERS | MEMORY)[name][1](case, value)
    return case


def time(case: Case, values: Values) -> float:
    """Predicted over measured time, with these values."""
    return _changed(case, values).predicted().step / (case.seconds or 1)


def memory(case: Case, values: Values) -> float:
    """Predicted over measured memory, with these values."""
    return _changed(case, values).predicted().peak_memory / (case.memory or 1)


def fitted(cases: Sequence[Case], start: Values, ratio: Ratio = time) -> dict[str, float]:
    """The values that predict `cases` best. ratio: of what, time or memory."""
    from scipy.optimize import least_squares

    tables = Counter(case.table for case in cases)
    weights = np.array([1 / np.sqrt(tables[case.table]) for case in cases])
    names = list(start)

    def errors(logarithms: np.ndarray) -> np.ndarray:
        values = dict(zip(names, np.exp(logarithms), strict=True))
        return np.array([np.log(ratio(case, values)) for case in cases])

    def loss(logarithms: np.ndarray) -> np.ndarray:
        # Cauchy's, before tables are weighed: what is far off is so whatever its table weighs.
        found = errors(logarithms) / SCALE
        return weights * np.sign(found) * np.sqrt(np.log1p(found**2))

    begin = np.log([start[name] for name in names])
    result = least_squares(loss, begin, diff_step=0.02, max_nfev=12)
    return dict(zip(names, map(float, np.exp(result.x)), strict=True))


def half(case: Case) -> int:
    """0 or 1, the same for every run of a layout."""
    return zlib.crc32(f"{case.model} {case.layout} {case.cluster}".encode()) % 2


def errors_by_table(cases: Sequence[Case], values: Values, ratio: Ratio) -> dict[str, tuple[float, float]]:
    """Table -> (median, 90th percentile) of |predicted / measured − 1|."""
    found: dict[str, list[float]] = {}
    for case in cases:
        found.setdefault(case.table, []).append(abs(ratio(case, values) - 1))
    return {name: (float(np.median(some)), float(np.quantile(some, 0.9))) for name, some in found.items()}


def _report(of: str, cases: Sequence[Case], parameters: Mapping[str, tuple[float, Change]], ratio: Ratio) -> None:
    start = {name: value for name, (value, _) in parameters.items()}
    halves = [[case for case in cases if half(case) == which] for which in (0, 1)]
    for what, learnt, judged in (
        ("fitted on all, judged on all", cases, cases),
        ("fitted on half of the layouts, judged on the others", halves[0], halves[1]),
        ("the reverse", halves[1], halves[0]),
    ):
        if not (learnt and judged):
            continue
        values = fitted(learnt, start, ratio)
        print(f"{of}: {what}")
        print("  " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()))
        for table, (median, ninth) in errors_by_table(judged, values, ratio).items():
            print(f"  {table:<32} median {median:6.1%}  90 % {ninth:6.1%}")


def main(argv: Sequence[str] | None = None) -> int:
    """Fit on all rows, then on each half, and print values and errors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of ultrascale's many rows, one in N")
    options = parser.parse_args(argv)
    cases = []
    for name, reader in TABLES.items():
        path = options.folder / f"{name}.csv"
        found = [case for case in reader(path) if case is not None] if path.is_file() else []
        cases += found[:: options.every] if len(found) > 500 else found
    timed = [case for case in cases if case.seconds]
    weighed = [case for case in cases if case.memory and case.profile.name == "nanotron"]
    _report("time", timed, PARAMETERS, time)
    _report("memory", weighed, MEMORY, memory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
