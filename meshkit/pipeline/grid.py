"""A schedule that is written down as text. NumPy only.

A row is a stage, a column a tick, cells are parted by blanks: the text that `str(schedule)` prints.

    # 1f1b for 2 stages, 3 microbatches
    F0    F1    F2+B0 B1    B2
    .     F0+B0 F1+B1 F2+B2 .

`F2+B0` is two actions in one cell, `.` none, `F2.1` is microbatch 2 in chunk 1 (chunk 0 is left out). A
tick does F, then B or I, then W, in whatever order a cell has them. From `#` on a line is a comment;
a line `# hop 2` says that a hop takes two ticks (`pipeline.overlap`). `meshkit schedule NAME … --grid FILE`
writes the text of a schedule by name, to begin with.
"""

import contextlib
import re
from pathlib import Path
from typing import NamedTuple

from meshkit.errors import MeshkitError
from meshkit.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Action, LawError, Schedule

SUFFIX = ".txt"
ORDER = (FORWARD, BACKWARD, INPUT, WEIGHT)
HOPS = (1, 2)

LARGEST = 1 << 20
"""Bytes of a file that is looked into to name it as a schedule that could be meant."""

Cell = tuple[Action, ...]


class _Row(NamedTuple):
    """A stage's line of the text: its number in the file (from 1), its cells as written and as read."""

    line: int
    words: list[str]
    cells: list[Cell]


def is_path(name: str) -> bool:
    """Whether `pipeline.schedule` names a file rather than a builder."""
    return name.endswith(SUFFIX) or "/" in name or "\\" in name


def read(path: Path) -> Schedule:
    """The schedule in a file. Raises FileNotFoundError when there is none, MeshkitError when it breaks a law."""
    try:
        return parse(path.read_text(encoding="utf-8-sig"), str(path))
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise MeshkitError(f"{path}: cannot be read as a schedule: {error}") from None


def beside(path: Path) -> list[str]:
    """Names of the files in a path's folder that hold a schedule."""
    found = []
    for file in path.parent.glob(f"*{SUFFIX}") if path.parent.is_dir() else ():
        with contextlib.suppress(OSError, MeshkitError):
            if file.stat().st_size <= LARGEST:
                read(file)
                found.append(file.name)
    return found


def parse(text: str, name: str) -> Schedule:
    """The inverse of `unparse`; `name` (a file's, say) is the schedule's, and stands first in errors.

    Stages, microbatches and chunks are as many as the text has. Raises MeshkitError that names line
    (stage), column (tick), cell, action and the law broken.
    """
    rows, hop = _rows(text, name)
    if not rows:
        raise MeshkitError(f"{name}: no rows: a schedule has a row of cells for each stage")
    for row in rows:
        if len(row.cells) != len(rows[0].cells):
            raise MeshkitError(
                f"{name}: line {row.line} has {len(row.cells)} cells and line {rows[0].line} has "
                f"{len(rows[0].cells)}: every stage has a cell for every tick, `.` where it does nothing"
            )
    actions = [action for row in rows for cell in row.cells for action in cell]
    microbatches = 1 + max((action.microbatch for action in actions), default=0)
    chunks = 1 + max((action.chunk for action in actions), default=0)
    columns = tuple(zip(*(row.cells for row in rows), strict=True))
    try:
        return Schedule(name, len(rows), microbatches, columns, chunks, hop)
    except LawError as broken:
        raise MeshkitError(f"{name}: {_place(broken, rows)}{broken.law}") from None


def unparse(schedule: Schedule) -> str:
    """The text that `parse` reads the same schedule from."""
    return (f"# hop {schedule.hop}\n" if schedule.hop > 1 else "") + f"{schedule}\n"


def _rows(text: str, name: str) -> tuple[list[_Row], int]:
    """The stages' rows, and the ticks of a hop."""
    rows: list[_Row] = []
    hop, said = HOPS[0], 0
    for number, line in enumerate(text.splitlines(), 1):
        content, _, comment = line.partition("#")
        words, remark = content.split(), " ".join(comment.split())
        if re.fullmatch(r"hop\W*\w*", remark, re.IGNORECASE):
            if words or remark not in [f"hop {hop}" for hop in HOPS]:
                how = "write '# hop 1' or '# hop 2', in a line of its own"
                raise MeshkitError(f"{name}: line {number}: {line.strip()!r}: {how}")
            if said:
                raise MeshkitError(f"{name}: line {number}: {line.strip()!r}: line {said} says it already: say it once")
            hop, said = int(remark.split()[1]), number
        if words:
            cells = [
                _cell(word, f"{name}: line {number} (stage {len(rows)}), column {tick + 1} (tick {tick})")
                for tick, word in enumerate(words)
            ]
            rows.append(_Row(number, words, cells))
    return rows, hop


def _cell(word: str, where: str) -> Cell:
    if word == ".":
        return ()
    actions = []
    for part in word.split("+"):
        # Nine digits are more than any run has, and few enough to count.
        match = re.fullmatch(r"([FBIW])(\d{1,9})(?:\.(\d{1,9}))?", part, re.ASCII)
        if match is None:
            raise MeshkitError(
                f"{where}, cell {word!r}: {part!r} is no action: write F, B, I or W, the microbatch, and .1, .2 … "
                "for a chunk other than the first, as in F2 or F2.1; or `.` for nothing"
            )
        actions.append(Action(match[1], int(match[2]), int(match[3] or 0)))
    return tuple(sorted(actions, key=lambda action: ORDER.index(action.kind)))


def _place(broken: LawError, rows: list[_Row]) -> str:
    if broken.stage is None:
        return ""
    row = rows[broken.stage]
    line = f"line {row.line} (stage {broken.stage})"
    if broken.tick is None:
        return f"{line}: {broken.action} "
    return f"{line}, column {broken.tick + 1} (tick {broken.tick}), cell {row.words[broken.tick]!r}: {broken.action}: "
