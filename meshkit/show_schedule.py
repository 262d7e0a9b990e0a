"""`meshkit schedule`: a schedule drawn, with its time and its memory. No JAX."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from meshkit.config import ModelConfig
from meshkit.draw_schedule import draw
from meshkit.errors import MeshkitError, counted, nearest
from meshkit.models.presets import sizes
from meshkit.pipeline import builders, grid
from meshkit.pipeline.costs import action_costs, slot_bytes
from meshkit.pipeline.placement import place
from meshkit.pipeline.schedule import FORWARD, Schedule
from meshkit.pipeline.slots import allocate
from meshkit.pipeline.timeline import CAUSES, Timeline, asynchronous, lock_step, memory, trace

HOP = "hop"
"""The cost that is no kind's: of an exchange between neighbours; absent: none."""

MOST = 1_000_000
"""Actions of a kind that a schedule to be looked at may have."""

HIGHEST = 1e9
"""Of a cost."""


@dataclasses.dataclass(frozen=True)
class Model:
    """Whose activations are counted: a preset, tokens of a sample, samples of a microbatch, precision."""

    preset: str
    sequence: int = 4096
    microbatch_size: int = 1
    precision: str = "bfloat16"


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes before any cut over tensor: of one slot by file, and of what each stage has in use at its peak."""

    model: Model
    layers: tuple[int, ...]
    each: dict[str, float]
    peak: np.ndarray


@dataclasses.dataclass(frozen=True)
class ScheduleReport:
    """A schedule and what follows from it. Times are in units of F; slots: file -> slots on every stage."""

    schedule: Schedule
    recompute: str
    costs: dict[str, float]
    lock_step: Timeline
    asynchronous: Timeline
    slots: dict[str, int]
    memory: Memory | None

    @property
    def in_flight(self) -> np.ndarray:
        """Most microbatches (of a chunk each) in flight at each stage: int [stage]."""
        return self.schedule.in_flight().max(axis=0)

    def to_json(self) -> str:
        """The report as one JSON object."""
        schedule = self.schedule
        report: dict[str, Any] = {
            "schedule": schedule.name,
            "stages": schedule.stages,
            "microbatches": schedule.microbatches,
            "chunks": schedule.chunks,
            "hop": schedule.hop,
            "grid": [row.split() for row in str(schedule).splitlines()],
            "ticks": schedule.ticks,
            "costs": self.costs,
            "ideal_bubble": schedule.ideal_bubble,
            "lock_step": _timeline_json(self.lock_step),
            "asynchronous": _timeline_json(self.asynchronous),
            "in_flight": self.in_flight.tolist(),
            "slots": self.slots,
        }
        if self.memory is not None:
            report["memory"] = {
                **dataclasses.asdict(self.memory.model),
                "layers": self.memory.layers,
                "slot_bytes": self.memory.each,
                "bytes": {file: count * self.memory.each[file] for file, count in self.slots.items()},
                "peak_in_use": self.memory.peak.tolist(),
            }
        return json.dumps(report)

    def print(self, console: Console | None = None) -> None:
        """The grid, and tables of time and memory."""
        console, schedule = console or Console(), self.schedule
        shape = f"{counted(schedule.stages, 'stage')}, {counted(schedule.microbatches, 'microbatch')}"
        shape += f", {schedule.chunks} chunks a stage" if schedule.chunks > 1 else ""
        shape += ", a hop takes two ticks" if schedule.hop > 1 else ""
        console.print(f"[bold]{schedule.name}[/]: {shape}; {schedule.ticks} ticks", highlight=False)
        draw(schedule, console)
        costs = " ".join(f"{kind}={_number(cost)}" for kind, cost in self.costs.items())
        console.print(f"\nTime in units of F, with {costs}", highlight=False)
        console.print(self._times())
        console.print(self._stages())
        console.print(self._memory())
        if self.memory is not None:
            model = self.memory.model
            console.print(
                f"{model.preset}, {model.sequence} tokens × {model.microbatch_size} a microbatch, {model.precision}, "
                f"recompute {self.recompute}; before any cut over tensor. Every stage reserves all slots. "
                "A split backward holds at least what is shown.",
                highlight=False,
            )

    def _times(self) -> Table:
        table = Table("", "time", "work", "bubble", "utilisation")
        for column in table.columns[1:]:
            column.justify = "right"
        work = float(self.lock_step.busy.mean())
        ideal = 1 - self.schedule.ideal_bubble
        table.add_row("ideal, m/(m+P−1)", _number(work / ideal), _number(work), f"{1 - ideal:.1%}", f"{ideal:.1%}")
        for name, line in (("in lock-step, as it runs", self.lock_step), ("asynchronous", self.asynchronous)):
            table.add_row(name, _number(line.total), _number(work), f"{line.bubble:.1%}", f"{1 - line.bubble:.1%}")
        return table

    def _stages(self) -> Table:
        """Per stage: where its time goes in lock-step, and what it stores at its peak."""
        layers = () if self.memory is None else ("layers",)
        peak = () if self.memory is None else ("activations at peak",)
        table = Table("stage", *layers, "busy", *CAUSES, "in flight", *peak)
        for column in table.columns:
            column.justify = "right"
        for stage in range(self.schedule.stages):
            times = [self.lock_step.busy[stage], *(self.lock_step.idle[cause][stage] for cause in CAUSES)]
            row = [*map(_number, times), str(self.in_flight[stage])]
            if self.memory is not None:
                held = self.memory.layers[stage :: self.schedule.stages]
                row = ["+".join(map(str, held)), *row, _bytes(self.memory.peak[stage])]
            table.add_row(str(stage), *row)
        return table

    def _memory(self) -> Table:
        table = Table("slots", "on a stage", *(() if self.memory is None else ("one", "all")))
        for column in table.columns[1:]:
            column.justify = "right"
        for file, count in self.slots.items():
            each = [] if self.memory is None else [self.memory.each[file]]
            table.add_row(file, str(count), *(_bytes(value * n) for value in each for n in (1, count)))
        if self.memory is not None and self.memory.each["again"]:
            table.add_row("layer inputs, made again", "1", *[_bytes(self.memory.each["again"])] * 2)
        return table


def examine(
    schedule: Schedule, recompute: str, costs: Mapping[str, float] | None = None, model: Model | None = None
) -> ScheduleReport:
    """What there is to know about a schedule before it runs.

    costs: kind or HOP -> time; absent: those of the `recompute` policy. model: count its activations, and let
    its layers, where they do not divide, make some stages slower.
    Raises MeshkitError for an unknown preset, or a model of fewer layers than there are chunks.
    """
    costs = dict(costs or action_costs(schedule, recompute))
    costs = {kind: cost / costs[FORWARD] for kind, cost in costs.items() if kind in (*schedule.kinds, HOP)}
    table = allocate(schedule)
    slots = {file: getattr(table, file) for file in ("inputs", "kept", "gradients", "held")}
    shares = stored = None
    if model is not None:
        stored = _memory(schedule, recompute, model)
        shares = [count * schedule.stages / sum(stored.layers) for count in stored.layers]
    lock, free = (run(schedule, costs, costs.get(HOP, 0.0), shares) for run in (lock_step, asynchronous))
    return ScheduleReport(schedule, recompute, costs, lock, free, slots, stored)


def choose(name: str, stages: int | None, microbatches: int | None, virtual: int | None, overlap: bool) -> Schedule:
    """The schedule of a builder's name, or of a file, which says its numbers itself.

    Raises MeshkitError for numbers that are missing, too many or too small, and for what is no schedule.
    """
    numbers = {"--stages": stages, "--microbatches": microbatches, "--virtual": virtual}
    if grid.is_path(name):
        given = [option for option, number in numbers.items() if number is not None] + ["--overlap"] * overlap
        if given:
            raise MeshkitError(f"{name} says how many stages, microbatches … it has: leave out {', '.join(given)}")
        return grid.read(Path(name))
    if name not in builders.BUILDERS:
        files = f", or a grid's file, whose name ends in {grid.SUFFIX}"
        raise MeshkitError(f"meshkit schedule {name!r}: no such schedule; {nearest(name, builders.BUILDERS)}{files}")
    for option, number in numbers.items():
        if number is not None and number < 1:
            raise MeshkitError(f"{option} {number}: it is at least 1")
    if stages is None or microbatches is None:
        raise MeshkitError(f"a schedule by name needs its size: meshkit schedule {name} --stages 4 --microbatches 8")
    if stages * microbatches * (virtual or 1) > MOST:
        raise MeshkitError(f"--stages {stages} --microbatches {microbatches}: over {MOST:,} actions of a kind to draw")
    return builders.build(name, stages, microbatches, virtual or 1, 2 if overlap else 1)


def given_costs(schedule: Schedule, text: str) -> dict[str, float]:
    """`F=1,B=2` as costs for each kind that the schedule has, and of a hop if `hop=0.1` is there.

    Raises MeshkitError when it is anything else.
    """
    costs: dict[str, float] = {}
    example = ",".join(f"{kind}=1" for kind in schedule.kinds)
    for part in text.split(","):
        kind, _, number = (piece.strip() for piece in part.partition("="))
        if kind in costs:
            raise MeshkitError(f"--costs {text}: {kind} has two costs")
        try:
            costs[kind] = float(number)
        except ValueError:
            raise MeshkitError(f"--costs {text}: {part!r} is no cost: write, for example, {example}") from None
        if not 1 / HIGHEST <= costs[kind] <= HIGHEST:
            raise MeshkitError(f"--costs {text}: {part!r}: a cost is from {1 / HIGHEST:g} to {HIGHEST:g}")
    if set(costs) - {HOP} != set(schedule.kinds):
        kinds = ", ".join(schedule.kinds)
        raise MeshkitError(f"--costs {text}: {schedule.name} has the kinds {kinds}: write, for example, {example}")
    return costs


def write_trace(timeline: Timeline, path: Path) -> None:
    """The timeline as a file that Perfetto opens. Raises MeshkitError when it cannot be written."""
    _write(path, json.dumps(trace(timeline)), "--trace")


def write_grid(schedule: Schedule, path: Path) -> None:
    """The schedule as text that `pipeline.schedule` can name. Raises MeshkitError when it cannot be written."""
    if not grid.is_path(str(path)):
        raise MeshkitError(f"--grid {path}: a grid's name ends in {grid.SUFFIX}")
    _write(path, grid.unparse(schedule), "--grid")


def _write(path: Path, text: str, option: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MeshkitError(f"{option} {path}: cannot be written: {error}") from None


def _memory(schedule: Schedule, recompute: str, model: Model) -> Memory:
    chosen = sizes(ModelConfig(preset=model.preset))
    for option, number in (("--sequence", model.sequence), ("--microbatch-size", model.microbatch_size)):
        if number < 1:
            raise MeshkitError(f"{option} {number}: it is at least 1")
    if model.sequence > chosen.context:
        raise MeshkitError(f"--sequence {model.sequence} exceeds the context of {model.preset}: {chosen.context}")
    placement = place(chosen.layers, schedule.stages, schedule.chunks)
    each = slot_bytes(
        schedule, chosen, placement.longest, recompute, model.microbatch_size, model.sequence, model.precision
    )
    return Memory(model, placement.counts, each, memory(schedule, each).max(axis=0))


def _timeline_json(timeline: Timeline) -> dict[str, Any]:
    idle = {cause: times.tolist() for cause, times in timeline.idle.items()}
    return {"time": timeline.total, "bubble": timeline.bubble, "busy": timeline.busy.tolist(), **idle}


def _number(value: float) -> str:
    return f"{round(float(value), 2) + 0.0:g}"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.4g} {unit}"
        count /= 1024
    return f"{count:,.2f} GiB"
