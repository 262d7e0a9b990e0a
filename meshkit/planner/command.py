"""`meshkit plan`: the tables on screen, the same as JSON. No JAX."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from meshkit.config import MeshShape, load
from meshkit.errors import MeshkitError
from meshkit.planner import memory
from meshkit.planner.check import Checked, check
from meshkit.planner.estimate import Estimate, as_json
from meshkit.planner.explain import Change, arithmetic, diagnose, duration
from meshkit.planner.plan import plan as make
from meshkit.planner.search import Plan
from meshkit.planner.workload import KINDS

GIB = 2**30

WIDE = 160
"""Columns of a line that the tables need; a narrower terminal breaks lines, but nothing is left out."""


def run(options: argparse.Namespace) -> int:
    """The command, with its options as `cli.py` reads them."""
    if options.top < 1:
        raise MeshkitError(f"--top {options.top}: it is at least 1")
    if options.calibrate is not None:
        return _calibrate(options.calibrate, options.json)
    plan = make(
        options.config,
        options.cluster,
        model=options.model,
        global_batch=options.global_batch,
        sequence=options.sequence,
        nodes_of=options.nodes_of,
        mesh=None if options.mesh is None else _mesh(options.mesh),
        profile=options.profile,
    )
    rows: tuple[Checked, ...] = ()
    if options.check is not None:
        plan, rows = check(plan, load(options.config or {"model": {"preset": options.model}}), options.check)
    if options.json:
        print(to_json(plan, options.top, options.explain, rows))
    else:
        show(plan, options.top, options.explain)
        print(*rows, sep="\n", end="\n" * bool(rows))
    return 0


def _calibrate(path: Path, as_json: bool) -> int:
    from meshkit.planner.calibrate import calibrate

    file = calibrate(path)
    if as_json:
        print(json.dumps(file))
        return 0
    device, links = file["device"], file["links"]
    rates = f"{device['tflops']:.3g} TFLOP/s, {device['memory']:.3g} GiB at {device['bandwidth']:.3g} TB/s"
    print(f"{path}: {file['nodes']} × {file['per_node']} {device['name']}: {rates}")
    for name, link in links.items():
        print(f"  {name}: {link['bandwidth']:.3g} GB/s, {link['latency']:.3g} µs a step")
    print(f"plan with it: meshkit plan --model PRESET --cluster {path}")
    return 0


def _mesh(text: str) -> MeshShape:
    try:
        data, tensor, pipe = map(int, text.split(","))
        return MeshShape(data=data, tensor=tensor, pipe=pipe)
    except ValueError:
        raise MeshkitError(f"--mesh {text}: write data,tensor,pipe: three numbers, as 8,4,2") from None


def chosen(plan: Plan, explain: int | None) -> tuple[int, Estimate] | None:
    """The row to explain: the one asked for, else the config's own, else the fastest of the mesh asked for.

    Raises MeshkitError for no such row.
    """
    if explain is not None:
        if not 1 <= explain <= len(plan.best):
            raise MeshkitError(f"--explain {explain}: rows go from 1 to {len(plan.best)}")
        return explain, plan.best[explain - 1]
    if plan.asked is None:
        return None
    rank = plan.own_rank or plan.rank_of(plan.asked)
    if rank is None:
        raise MeshkitError(
            f"mesh {plan.asked}: no layout of it fits {plan.cluster}; the fastest that does: {plan.best[0].layout}"
        )
    return rank, plan.best[rank - 1]


def to_json(plan: Plan, top: int, explain: int | None, checked: Sequence[Checked] = ()) -> str:
    """One JSON object: what was planned, the best rows, the explained one, and those that were compiled."""
    row = chosen(plan, explain)
    report: dict[str, Any] = {
        "model": plan.job.model,
        "cluster": str(plan.cluster),
        "devices": plan.cluster.devices,
        "profile": plan.profile.name,
        "global_batch": plan.job.batch,
        "sequence": plan.job.sequence,
        "legal": plan.tried,
        "fitting": len(plan.best),
        "ignored": plan.ignored,
        "why_no_own": plan.why_no_own,
        "layouts": [as_json(found) for found in plan.best[:top]],
    }
    if row is not None:
        report["explained"] = {"rank": row[0], **as_json(row[1]), **_explained(row[1])}
    if checked:
        report["checked"] = [each.as_json() for each in checked]
    return json.dumps(report)


def _explained(found: Estimate) -> dict[str, Any]:
    diagnosis = diagnose(found)
    change = lambda c: None if c is None else {"change": c.what, **as_json(c.estimate)}
    keys = ("name", "kind", "arithmetic", "seconds")
    return {
        "terms": [dict(zip(keys, row, strict=True)) for row in arithmetic(found)],
        "bound": diagnosis.bound,
        "best_change": change(diagnosis.change),
        "blocked_by_memory": change(diagnosis.blocked),
    }


def show(plan: Plan, top: int, explain: int | None, console: Console | None = None) -> None:
    """The tables of time and memory of the best `top` rows, and the explanation of one."""
    console, job = console or Console(), plan.job
    console.width = max(console.width, WIDE)
    row = chosen(plan, explain)
    console.print(
        f"[bold]{job.model}[/] on {plan.cluster}: batch {job.batch} × {job.sequence} tokens, {plan.profile.name}; "
        f"{len(plan.best)} of {plan.tried} legal layouts fit",
        highlight=False,
    )
    if plan.ignored:
        console.print(f"no estimate knows {', '.join(plan.ignored)}: planned without", highlight=False)
    if plan.why_no_own:
        console.print(f"the config's own layout is not ranked: {plan.why_no_own}", highlight=False)
    rows = list(enumerate(plan.best[:top], 1))
    if row is not None and row[0] > top:
        rows.append(row)
    console.print(_times(rows))
    console.print(_memory(rows))
    if row is not None:
        _print_explanation(row[0], row[1], plan, console)


def _times(rows: list[tuple[int, Estimate]]) -> Table:
    columns = ("#", "D T P", "m × b", "schedule", "recompute", "zero", "step", "tokens/s", "MFU", "η", "U", *KINDS)
    table = _table("Time of a step, by kind", *columns)
    for rank, found in rows:
        layout, mesh = found.layout, found.layout.mesh
        virtual = f" v={layout.virtual}" if layout.virtual > 1 else ""
        table.add_row(
            str(rank),
            f"{mesh.data} {mesh.tensor} {mesh.pipe}",
            f"{layout.microbatches} × {layout.microbatch}",
            layout.schedule + virtual,
            layout.recompute,
            str(layout.zero),
            duration(found.step),
            f"{found.tokens_per_second:,.0f}",
            f"{found.mfu:.1%}",
            f"{found.efficiency:.1%}",
            f"{found.utilisation:.1%}",
            *(duration(found.seconds[kind]) for kind in KINDS),
        )
    return table


def _memory(rows: list[tuple[int, Estimate]]) -> Table:
    table = _table("Memory: GiB of a device of the fullest stage, by kind", "#", "all", "budget", *memory.KINDS)
    for rank, found in rows:
        fullest = max(found.memory, key=lambda stage: sum(stage.values()))
        table.add_row(
            str(rank),
            f"{found.peak_memory / GIB:.1f}",
            f"{found.budget / GIB:.1f}",
            *(f"{fullest[kind] / GIB:.2f}" for kind in memory.KINDS),
        )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        column.justify, column.no_wrap = "right", True
    return table


def _print_explanation(rank: int, found: Estimate, plan: Plan, console: Console) -> None:
    own = ", the config's own" if rank == plan.own_rank else ""
    console.print(f"\n[bold]Row {rank}[/]{own}: {found.layout}", highlight=False)
    if plan.own is not None and found.layout.mesh == plan.own.mesh and plan.own_rank is None:
        console.print(f"the config's own is not among the rows: {plan.own}", highlight=False)
    table = _table("", "term", "kind", "count × (volume ÷ rate + latency)", "time")
    for column in table.columns[:-1]:
        column.justify = "left"
    for name, kind, how, seconds in arithmetic(found):
        table.add_row(name, kind, how, duration(seconds))
    table.add_section()
    table.add_row("step", "", "", duration(found.step))
    console.print(table)
    say = lambda text: console.print(text, highlight=False)
    say(
        f"η = {duration(found.seconds['compute'])} / {duration(found.step)} = {found.efficiency:.1%};  "
        f"U = m/(m + (P−1)/v) = {found.utilisation:.1%};  bubble {found.bubble:.1%} of the step"
    )
    diagnosis = diagnose(found)
    say(diagnosis.bound)
    if diagnosis.change is not None:
        say(f"what would help most: {_change(found, diagnosis.change)}")
    if diagnosis.blocked is not None:
        say(f"kept out by memory: {_change(found, diagnosis.blocked)}")
    if diagnosis.change is None:
        say("no single change that fits is faster")
    if rank > 1:
        say(_against_first(found, plan.best[0]))


def _change(found: Estimate, change: Change) -> str:
    new = change.estimate
    return (
        f"{change.what}: {duration(found.step)} → {duration(new.step)} ({new.step / found.step - 1:+.1%}), "
        f"{found.peak_memory / GIB:.1f} → {new.peak_memory / GIB:.1f} GiB"
    )


def _against_first(found: Estimate, first: Estimate) -> str:
    """Why the row is not the first: where its seconds go beyond the first's."""
    more = {kind: found.seconds[kind] - first.seconds[kind] for kind in KINDS}
    parts = ", ".join(
        f"{kind} {'+' if delta >= 0 else '−'}{duration(abs(delta))}"
        for kind, delta in sorted(more.items(), key=lambda item: -item[1])
    )
    return f"behind row 1 ({first.layout}) by {duration(found.step - first.step)}: {parts}"
