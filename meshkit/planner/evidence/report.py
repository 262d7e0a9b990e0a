"""`make planner-report EVIDENCE=folder`: every table of a folder predicted, judged and plotted."""

import argparse
import dataclasses
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from meshkit.errors import MeshkitError
from meshkit.planner.evidence.cases import read
from meshkit.planner.evidence.compiled import TABLE
from meshkit.planner.evidence.judge import Judgement, Predicted, judge
from meshkit.planner.evidence.tables import TABLES
from meshkit.planner.hardware import GIB


def report(folder: Path, out: Path | None) -> list[Judgement]:
    """Judgements of the folder's tables and of meshkit's own, in all and by model; plots into `out`.

    Raises MeshkitError for a folder without any of the TABLES.
    """
    found = {name: path for name in TABLES if (path := folder / f"{name}.csv").is_file()}
    if not found:
        raise MeshkitError(f"{folder}: it has none of the tables {', '.join(f'{name}.csv' for name in TABLES)}")
    judgements = []
    for name, path in ({TABLE.stem: TABLE} | found).items():
        rows = len(read(path, set()))
        try:
            predicted = [Predicted(case, case.predicted()) for case in TABLES[name](path) if case is not None]
        except ValueError as error:  # a word where a number is due
            raise MeshkitError(f"{path}: {error}") from None
        judgements.append(judge(name, rows, predicted))
        models = defaultdict(list)
        for row in predicted:
            models[row.case.model].append(row)
        if len(models) > 1:
            judgements += [judge(f"  {model}", len(part), part) for model, part in models.items()]
        if out is not None:
            plot(name, predicted, out / f"{name}.png")
    return judgements


def plot(name: str, predicted: Sequence[Predicted], path: Path) -> None:
    """Predicted against measured, time and memory, as a picture; none where nothing was measured but what ran out."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    times = [(row.case.model, row.case.seconds, row.estimate.step) for row in predicted if row.case.seconds]
    memories = [
        (row.case.model, row.case.memory / GIB, row.estimate.peak_memory / GIB) for row in predicted if row.case.memory
    ]
    shown = {title: points for title, points in (("seconds a step", times), ("GiB a device", memories)) if points}
    if not shown:
        path.unlink(missing_ok=True)
        return
    figure, axes = pyplot.subplots(1, len(shown), figsize=(6 * len(shown), 5.5), squeeze=False)
    for axis, (title, points) in zip(axes[0], shown.items(), strict=True):
        for model in sorted({model for model, _, _ in points}):
            some = [(measured, guess) for who, measured, guess in points if who == model]
            axis.scatter(*zip(*some, strict=True), s=9, label=model, alpha=0.7)
        ends = [min(min(m, g) for _, m, g in points), max(max(m, g) for _, m, g in points)]
        axis.plot(ends, ends, color="black", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlabel=f"measured, {title}", ylabel="predicted", title=name)
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def show(judgements: Sequence[Judgement], console: Console) -> None:
    """The judgements as a table."""
    table = Table(
        "table",
        "covered",
        "time: median",
        "90 %",
        "mean",
        "memory: median",
        "90 %",
        "stages: median",
        "Spearman",
        "regret",
        "OOM precision",
        "recall",
    )
    percent = lambda value: "" if value is None else f"{value:.1%}"
    part = lambda errors, field: "" if errors is None else percent(getattr(errors, field))
    for found in judgements:
        table.add_row(
            found.table,
            f"{found.covered} of {found.rows}",
            part(found.time, "median"),
            part(found.time, "ninth"),
            part(found.time, "mean"),
            part(found.memory, "median"),
            part(found.memory, "ninth"),
            part(found.stages, "median"),
            "" if found.spearman is None else f"{found.spearman:.3f}",
            percent(found.regret),
            percent(found.precision),
            percent(found.recall),
        )
    console.print(table)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: python -m meshkit.planner.evidence.report FOLDER [--out DIR] [--json]."""
    parser = argparse.ArgumentParser(description="The planner's predictions beside published measurements.")
    parser.add_argument("folder", type=Path, help="tables (CSV) by their names")
    parser.add_argument("--out", type=Path, help="folder for report.json and a plot a table")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    try:
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
        judgements = report(options.folder, options.out)
    except MeshkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    text = json.dumps([dataclasses.asdict(found) for found in judgements], indent=1)
    if options.out is not None:
        (options.out / "report.json").write_text(text, encoding="utf-8")
    if options.json:
        print(text)
    else:
        show(judgements, Console(width=max(Console().width, 160)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
