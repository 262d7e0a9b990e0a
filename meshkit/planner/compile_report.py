"""What `meshkit compile` found: typed, as JSON, and as tables. No JAX."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Self

from rich.console import Console
from rich.table import Table

from meshkit.config import RunConfig
from meshkit.planner.beside import Beside
from meshkit.planner.figures import Figures
from meshkit.planner.memory import RESERVE

GIB, TERA = 2**30, 1e12

JAX_SHARE = 0.75
"""Of a GPU's memory JAX takes this share for arrays, unless XLA_PYTHON_CLIENT_MEM_FRACTION is set."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one GPU; the same on all, as all run one program.

    arguments: state and batch. results: what does not take an argument's place. temporaries: all else, at their
    peak. host: of the host's memory, for what is offloaded. capacity: of the GPU.
    """

    arguments: int
    results: int
    temporaries: int
    host: int
    capacity: int
    reserve: int = RESERVE

    @classmethod
    def of(cls, xla: dict[str, int], capacity: int) -> Self:
        """From XLA's own names (`CompiledMemoryStats`)."""
        return cls(xla["argument"], xla["output"] - xla["alias"], xla["temp"], xla["host_temp"], capacity)

    @property
    def peak(self) -> int:
        """What XLA needs at once."""
        return self.arguments + self.results + self.temporaries

    @property
    def fits(self) -> bool:
        """Whether peak and reserve are in the GPU's memory."""
        return self.peak + self.reserve <= self.capacity


@dataclasses.dataclass(frozen=True)
class Report:
    """A compiled step. memory, figures: None where only its legality was checked (backend "cpu").

    seconds: tracing and compiling. beside: the planner's estimate with XLA's figures, where it has one.
    notes: what the user should know, in sentences.
    """

    cluster: str
    backend: str
    config: RunConfig
    jax: str
    seconds: float
    memory: Memory | None
    figures: Figures | None
    beside: list[Beside]
    notes: list[str]

    @property
    def ok(self) -> bool:
        """Whether the step can run: it compiled, and fits if that is known."""
        return self.memory is None or self.memory.fits

    @property
    def layout(self) -> str:
        """The config in a line."""
        c, p = self.config, self.config.pipeline
        schedule = p.schedule + (f" v={p.virtual}" if p.virtual > 1 else "")
        return f"{c.mesh}: {schedule}, microbatches {p.microbatches}, zero {c.zero}, recompute {c.recompute}"

    def to_json(self) -> str:
        """The report as a JSON object: bytes, FLOPs and seconds; lists have an entry a stage."""
        memory = None
        if self.memory is not None:
            memory = dataclasses.asdict(self.memory) | {"peak": self.memory.peak, "fits": self.memory.fits}
        return json.dumps(
            {
                "ok": self.ok,
                "cluster": self.cluster,
                "backend": self.backend,
                "layout": self.layout,
                "jax": self.jax,
                "seconds": self.seconds,
                "memory": memory,
                "figures": None if self.figures is None else dataclasses.asdict(self.figures),
                "beside": [dataclasses.asdict(row) | {"error": row.error} for row in self.beside],
                "notes": [*self.notes, *self._remarks()],
            }
        )

    def print(self, console: Console | None = None) -> None:
        """The report as tables."""
        console = console or Console()
        how = "XLA's CUDA compiler" if self.backend == "cuda" else "XLA:CPU"
        console.print(f"[bold]{self.cluster}[/] · {self.layout}", highlight=False)
        console.print(f"the step of meshkit train, compiled by {how} (jax {self.jax}) in {self.seconds:.1f} s")
        if self.memory is not None:
            console.print(_memory_table(self.memory), _verdict(self.memory))
        if self.figures is not None:
            console.print(_work_table(self.figures), _traffic_table(self.figures))
        if self.beside:
            console.print(_beside_table(self.beside))
        for note in [*self.notes, *self._remarks()]:
            console.print(f"– {note}", highlight=False)
        if self.memory is None:
            console.print("[bold green]This step is legal.[/]")

    def _remarks(self) -> list[str]:
        """What follows from the figures."""
        remarks = []
        if self.memory is None:
            remarks.append("XLA:CPU plans memory and exchanges otherwise than a GPU: only legality was checked")
        elif self.memory.fits and self.memory.peak > JAX_SHARE * self.memory.capacity:
            share = math.ceil(100 * self.memory.peak / self.memory.capacity) / 100
            remarks.append(
                f"JAX takes {JAX_SHARE:.0%} of a GPU unless told otherwise: set "
                f"XLA_PYTHON_CLIENT_MEM_FRACTION={share:g} or more"
            )
        if self.figures is not None and self.figures.uncounted:
            places = ", ".join(f"{name} (×{count})" for name, count in list(self.figures.uncounted.items())[:3])
            remarks.append(f"not counted, as their products or trips cannot be known: {places}")
        return remarks


# --- tables ---------------------------------------------------------------------------------------


def _memory_table(memory: Memory) -> Table:
    table = Table("memory of one GPU", "GiB", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    rows = {
        "arguments: state and batch": memory.arguments,
        "results not in an argument's place": memory.results,
        "temporaries": memory.temporaries,
        "[bold]peak[/]": memory.peak,
        "reserve: CUDA context, NCCL": memory.reserve,
        "the GPU has": memory.capacity,
    }
    for name, count in rows.items():
        table.add_row(name, f"{count / GIB:.2f}")
    if memory.host:
        table.add_row("memory of its host", f"{memory.host / GIB:.2f}")
    return table


def _verdict(memory: Memory) -> str:
    spare = (memory.capacity - memory.peak - memory.reserve) / GIB
    return (
        f"[bold green]It fits: {spare:.1f} GiB to spare.[/]"
        if memory.fits
        else (f"[bold red]It does NOT fit: {-spare:.1f} GiB too much.[/]")
    )


def _by_stage(stages: int) -> tuple[list[str], Callable[[Sequence[float], Callable[[float], str]], list[str]]]:
    """Headings for values of stages, and what to write under them: the value, or the busiest stage's and the mean."""
    if stages == 1:
        return ["one GPU"], lambda values, spell: [spell(values[0])]
    return ["busiest stage", "mean"], lambda values, spell: [spell(max(values)), spell(sum(values) / len(values))]


def _work_table(figures: Figures) -> Table:
    stages = len(figures.work[0].flops) if figures.work else 1
    headings, cells = _by_stage(stages)
    table = Table("products, TFLOP a GPU and step", "", *headings, box=None, pad_edge=False)
    spell = lambda flops: f"{flops / TERA:,.1f}"
    for work in figures.work:
        table.add_row(work.action, work.kind, *cells(work.flops, spell))
    total = [sum(flops) for flops in zip(*(work.flops for work in figures.work), strict=True)]
    table.add_row("[bold]all[/]", "", *cells(total, spell))
    for column in table.columns[2:]:
        column.justify = "right"
    return table


def _traffic_table(figures: Figures) -> Table:
    table = Table("exchanges of a GPU over", "link", "kind", "times a step", "GiB a step", box=None, pad_edge=False)
    for traffic in figures.traffic:
        busiest = max(range(len(traffic.times)), key=lambda stage: traffic.bytes[stage])
        size = traffic.bytes[busiest] / GIB
        table.add_row(traffic.axis, traffic.link, traffic.kind, f"{traffic.times[busiest]:,}", f"{size:,.3f}")
    for column in table.columns[3:]:
        column.justify = "right"
    return table


def _beside_table(rows: Sequence[Beside]) -> Table:
    table = Table("the planner's estimate beside XLA's figures", "planner", "XLA", "error", box=None, pad_edge=False)
    scale = {"B": (GIB, "GiB"), "FLOP": (TERA, "TFLOP")}
    for row in rows:
        size, unit = scale[row.unit]
        table.add_row(
            f"{row.term}, {unit}", f"{row.planner / size:,.2f}", f"{row.xla / size:,.2f}", f"{row.error:+.1%}"
        )
    for column in table.columns[1:]:
        column.justify = "right"
    return table
