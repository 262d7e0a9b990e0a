"""A schedule's grid on a terminal: a row a stage, a column a tick, coloured by kind of action.

A block is as wide as its work is long: F one unit, B two, I and W one each, the halves of a B. A column
is as wide as its busiest stage, as a tick in lock-step lasts as long as that: what stays dark is idle.
"""

import itertools
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from meshkit.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Action, Schedule

UNITS = {FORWARD: 1, BACKWARD: 2, INPUT: 1, WEIGHT: 1}

NAMES = {FORWARD: "forward", BACKWARD: "backward", INPUT: "input gradient", WEIGHT: "weight gradient"}

STYLES = {
    FORWARD: ("#000000 on #a8d5f2", "#000000 on #7fe0c3"),
    BACKWARD: ("#ffffff on #1f4e79", "#ffffff on #1b6b53"),
    INPUT: ("#ffffff on #1f4e79", "#ffffff on #1b6b53"),
    WEIGHT: ("#ffffff on #6b4c9a", "#ffffff on #8a6d1f"),
}
"""Of a kind, in chunks of even and odd number."""

GAP = 1
"""Blank characters between columns."""


def draw(schedule: Schedule, console: Console) -> None:
    """Print the grid: in colour, wrapped to the terminal's width; where there is no colour, as plain text."""
    if console.color_system is None:
        console.print(str(schedule), markup=False, highlight=False, soft_wrap=True)
        return
    unit = max(2, len(str(schedule.microbatches - 1)) + 1)
    widths = [unit * max(1, *(_units(actions) for actions in column)) for column in schedule.cells]
    title = len(f"stage {schedule.stages - 1} ")
    for ticks in _bands(widths, console.width - title):
        ruler = Text("tick".ljust(title), "dim")
        rows = [Text(f"stage {stage}".ljust(title)) for stage in range(schedule.stages)]
        for tick in ticks:
            ruler.append(_fitting(str(tick), widths[tick]) + " " * GAP, "dim")
            for row, actions in zip(rows, schedule.cells[tick], strict=True):
                for action in actions:
                    row.append(_label(action, unit), STYLES[action.kind][action.chunk % 2])
                row.append(" " * (widths[tick] - unit * _units(actions) + GAP))
        for line in (ruler, *rows):
            console.print(line, no_wrap=True, crop=True)
    console.print(_legend(schedule))


def _units(actions: tuple[Action, ...]) -> int:
    return sum(UNITS[action.kind] for action in actions)


def _bands(widths: list[int], room: int) -> Iterator[list[int]]:
    """Ticks that fit side by side, band after band; at least one in each."""
    band: list[int] = []
    for tick, width in enumerate(widths):
        if band and sum(widths[t] + GAP for t in band) + width > room:
            yield band
            band = []
        band.append(tick)
    yield band


def _fitting(number: str, width: int) -> str:
    return (number if len(number) <= width else "").ljust(width)


def _label(action: Action, unit: int) -> str:
    return str(action.microbatch).center(unit * UNITS[action.kind])


def _legend(schedule: Schedule) -> Text:
    legend = Text("number: microbatch")
    shades = range(min(schedule.chunks, 2))
    for kind, shade in itertools.product(schedule.kinds, shades):
        chunk = f", {'odd' if shade else 'even'} chunks" if schedule.chunks > 1 else ""
        legend.append("  ").append(f" {kind} ", STYLES[kind][shade]).append(f" {NAMES[kind]}{chunk}")
    return legend
