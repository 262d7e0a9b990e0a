"""`meshkit schedule`: a schedule drawn, with its time and its memory. No JAX."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from meshkit.config import ModelConfig
from meshkit.errors import MeshkitError, counted
from meshkit.models.presets import Sizes, sizes
from meshkit.pipeline import grid
from meshkit.pipeline.costs import action_costs, slot_bytes
from meshkit.pipeline.placement import Placement, place
from meshkit.pipeline.schedule import FORWARD, Schedule
from meshkit.pipeline.slots import allocate
from meshkit.pipeline.timeline import CAUSES, Timeline, asynchronous, lock_step, memory, trace
from meshkit.show.draw import draw

HOP = "hop"
"""The cost that is no kind's: of an exchange between neighbours; absent: none."""


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
    each: dict[str, float]
    peak: np.ndarray


@dataclasses.dataclass(frozen=True)
class ScheduleReport:
    """A schedule and what follows from it. Times are in units of F of a mean stage; slots: file -> slots on every
    stage. placement: the layers of each chunk; None: all alike, and not said how many."""

    schedule: Schedule
    placement: Placement | None
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

    @property
    def ideal_bubble(self) -> float:
        """Idle share of an ideal pipeline of stages with these layers."""
        return self.schedule.ideal_bubble(None if self.placement is None else self.placement.shares)

    @property
    def _even(self) -> bool:
        return self.placement is None or self.placement.even

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
            "layers": None if self.placement is None else self.placement.counts,
            "costs": self.costs,
            "ideal_bubble": self.ideal_bubble,
            "lock_step": _timeline_json(self.lock_step),
            "asynchronous": _timeline_json(self.asynchronous),
            "in_flight": self.in_flight.tolist(),
            "slots": self.slots,
        }
        if self.memory is not None:
            report["memory"] = {
                **dataclasses.asdict(self.memory.model),
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
        console.print(f"[bold]{schedule.name}[/]: {shape}; {counted(schedule.ticks, 'tick')}", highlight=False)
        draw(schedule, console)
        costs = " ".join(f"{kind}={_number(cost)}" for kind, cost in self.costs.items())
        unit = "F" if self._even else "F of a mean stage"
        console.print(f"\nTime in units of {unit}, with {costs}", highlight=False)
        console.print(self._times())
        if schedule.splits or schedule.chunks > 1:
            console.print(
                "The ideal is of stages that split no backward and do not interleave: this schedule may be faster."
            )
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
            console.print(
                "Weights, gradients and optimizer state come on top, as mesh and zero cut them: "
                f"meshkit plan --model {model.preset} --cluster 64xh100 --mesh D,T,{schedule.stages} shows them.",
                highlight=False,
            )

    def _times(self) -> Table:
        table = Table("", "time", "work", "bubble", "utilisation")
        for column in table.columns[1:]:
            column.justify = "right"
        work = float(self.lock_step.busy.mean())
        ideal = 1 - self.ideal_bubble
        name = "ideal of 1F1B, m/(m+P−1)" if self._even else "ideal of 1F1B, of such stages"
        table.add_row(name, _number(work / ideal), _number(work), f"{1 - ideal:.1%}", f"{ideal:.1%}")
        for name, line in (("in lock-step, as it runs", self.lock_step), ("asynchronous", self.asynchronous)):
            table.add_row(name, _number(line.total), _number(work), f"{line.bubble:.1%}", f"{1 - line.bubble:.1%}")
        return table

    def _stages(self) -> Table:
        """Per stage: where its time goes in lock-step, and what it stores at its peak."""
        layers = () if self.placement is None else ("layers",)
        peak = () if self.memory is None else ("activations at peak",)
        table = Table("stage", *layers, "busy", *CAUSES, "in flight", *peak)
        for column in table.columns:
            column.justify = "right"
        for stage in range(self.schedule.stages):
            times = [self.lock_step.busy[stage], *(self.lock_step.idle[cause][stage] for cause in CAUSES)]
            row = [str(stage), *map(_number, times), str(self.in_flight[stage])]
            if self.placement is not None:
                row.insert(1, "+".join(map(str, self.placement.counts[stage :: self.schedule.stages])))
            if self.memory is not None:
                row.append(_bytes(self.memory.peak[stage]))
            table.add_row(*row)
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
    schedule: Schedule,
    recompute: str,
    costs: Mapping[str, float] | None = None,
    model: Model | None = None,
    layers: Sequence[int] | None = None,
) -> ScheduleReport:
    """What there is to know about a schedule before it runs.

    costs: kind or HOP -> time; absent: those of the `recompute` policy. model: count its activations. layers: of each
    chunk, stage by stage; absent: the model's, as even as can be. Stages with more are slower.
    Raises MeshkitError for an unknown preset, layers that are not the model's, or fewer than there are chunks.
    """
    costs = dict(costs or action_costs(schedule, recompute))
    costs = {kind: cost / costs[FORWARD] for kind, cost in costs.items() if kind in (*schedule.kinds, HOP)}
    table = allocate(schedule)
    slots = {file: getattr(table, file) for file in ("inputs", "kept", "gradients", "held")}
    placement = stored = None
    if model is not None:
        chosen = _sizes(model)
        placement = place(chosen.layers, schedule.stages, schedule.chunks, layers)
        stored = _memory(schedule, recompute, model, chosen, placement)
    elif layers is not None:
        placement = place(sum(layers), schedule.stages, schedule.chunks, layers)
    shares = None if placement is None else placement.shares
    lock, free = (run(schedule, costs, costs.get(HOP, 0.0), shares) for run in (lock_step, asynchronous))
    return ScheduleReport(schedule, placement, recompute, costs, lock, free, slots, stored)


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


def _sizes(model: Model) -> Sizes:
    chosen = sizes(ModelConfig(preset=model.preset))
    for option, number in (("--sequence", model.sequence), ("--microbatch-size", model.microbatch_size)):
        if number < 1:
            raise MeshkitError(f"{option} {number}: it is at least 1")
    if model.sequence > chosen.context:
        raise MeshkitError(f"--sequence {model.sequence} exceeds the context of {model.preset}: {chosen.context}")
    return chosen


def _memory(schedule: Schedule, recompute: str, model: Model, chosen: Sizes, placement: Placement) -> Memory:
    each = slot_bytes(
        schedule, chosen, placement.longest, recompute, model.microbatch_size, model.sequence, model.precision
    )
    return Memory(model, each, memory(schedule, each).max(axis=0))


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
