"""JSON lines (.jsonl): every line an object with a text, every text a document of its own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from meshkit.data.corrupt import CorruptError

BLOCK = 1 << 20  # bytes read at a time where lines are only counted


def texts(path: Path, file: IO[bytes], span: range, column: str) -> Iterator[str | CorruptError]:
    """The strings under `column` of the lines that begin at a byte in `span`; empty lines and texts are no documents.

    A line that cannot be read comes as a `CorruptError` in its place.
    """
    file.seek(max(span.start - 1, 0))
    if span.start:
        file.readline(len(span) + 1)  # the end of a line that begins before, if only its line feed; or all of the span
    first = place = file.tell()
    number, before = 0, None
    while place in span and (line := file.readline()):
        place, number = place + len(line), number + 1
        if not line.strip():
            continue
        found = _text(line, column)
        if isinstance(found, CorruptError):
            before = _lines(path, first) if before is None else before
            yield CorruptError(f"{path}: line {before + number}: {found}")
        elif found:
            yield found


def line_start(file: IO[bytes], place: int) -> int:
    """Where the line begins that the byte at `place` belongs to."""
    while place:
        start = max(0, place - BLOCK)
        file.seek(start)
        end = file.read(place - start).rfind(b"\n")
        if end >= 0:
            return start + end + 1
        place = start
    return 0


def _text(line: bytes, column: str) -> str | CorruptError:
    try:
        text = json.loads(line)[column]
        if not isinstance(text, str):
            return CorruptError(f"{column!r} is a {type(text).__name__}, not a string")
        text.encode()  # fails on half of a character, which a string of JSON may hold
        return text
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        return CorruptError(f"not UTF-8: {error.reason}")
    except (ValueError, RecursionError) as error:
        return CorruptError(f"not JSON: {error}")
    except (KeyError, TypeError):
        return CorruptError(f"not an object with a {column!r}")


def _lines(path: Path, size: int) -> int:
    """Lines in the first `size` bytes of a file."""
    count = 0
    with path.open("rb") as file:
        while size and (block := file.read(min(size, BLOCK))):
            count, size = count + block.count(b"\n"), size - len(block)
    return count
