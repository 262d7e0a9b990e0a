"""JSON lines (.jsonl): every line an object with a text, every text a document of its own."""

import json
from collections.abc import Callable, Iterator
from typing import IO

from meshkit.data.documents import Document
from meshkit.errors import MeshkitError

FIELD = "text"

Bad = Callable[[str], None]
"""Called with a sentence about each line that cannot be read: raises, or lets the line be skipped."""


def refuse(sentence: str) -> None:
    """A `Bad` that skips nothing."""
    raise MeshkitError(f"{sentence}: mend or remove the line, or skip such lines with --skip-bad")


def texts(document: Document, file: IO[bytes], bad: Bad) -> Iterator[str]:
    """The texts of the lines of `document`, at whose first byte `file` stands. Empty lines are no documents."""
    left, number = document.size, 0
    while left > 0:
        line = file.readline(left)
        if not line:
            break
        left, number = left - len(line), number + 1
        if not line.strip():
            continue
        wrong = None
        try:
            text = json.loads(line)[FIELD]
            if not isinstance(text, str):
                wrong = f"{FIELD!r} is a {type(text).__name__}, not a string"
            elif text.encode():  # fails on half of a character, which a string of JSON may hold
                yield text
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            wrong = f"not UTF-8: {error.reason}"
        except ValueError as error:
            wrong = f"not JSON: {error}"
        except (KeyError, TypeError):
            wrong = f"not an object with a {FIELD!r}"
        if wrong is not None:
            bad(f"{document.path}: line {_lines_before(document) + number}: {wrong}")


def _lines_before(document: Document) -> int:
    """Lines of the file before the document, which may be its second part."""
    with document.path.open("rb") as file:
        return file.read(document.start).count(b"\n")
