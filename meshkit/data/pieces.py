"""The work of a preparation in pieces of equal size, and the tokens of a piece.

Pieces follow from the input alone, so that however many processes share them, and wherever one was interrupted, the
tokens in their order are the same.
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from meshkit.data import lines, tables
from meshkit.data.corrupt import CorruptError
from meshkit.data.documents import LINES, Document
from meshkit.data.text import Tokenizer, read_text
from meshkit.errors import MeshkitError

PIECE = 1 << 23  # bytes of the input, about: seconds of work
SMALL = 1 << 10  # bytes that a file counts for besides its own: opening it takes time too
BATCH = 1 << 20  # characters given to the tokenizer at a time


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Bytes or rows `span` of a file, a part of `document`. Of a text that is cut, the last part ends the document."""

    document: Document
    span: range

    @property
    def size(self) -> int:
        """Its bytes; the sizes of a document's stretches add up to the document's."""
        whole, (first, last) = self.document.span, (self.span.start, self.span.stop)
        place = lambda unit: (unit - whole.start) * self.document.size // max(len(whole), 1)
        return place(last) - place(first)


@dataclasses.dataclass(frozen=True)
class Piece:
    """Stretches that follow one another in a split."""

    split: str
    stretches: tuple[Stretch, ...]

    @property
    def size(self) -> int:
        """Bytes of the input."""
        return sum(stretch.size for stretch in self.stretches)

    def mark(self, before: str) -> str:
        """A hash of this piece and of all before it, whose mark is `before`."""
        facts = [(str(s.document.path), s.document.modified_ns, s.span.start, s.span.stop) for s in self.stretches]
        return hashlib.sha256(json.dumps([before, self.split, facts]).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Encoded:
    """The tokens of a piece.

    ids: int [n], ends of documents included. starts: int64, where documents begin in it. corrupt: what was left out.
    bytes: UTF-8 bytes of the texts. seconds: of CPU time.
    """

    split: str
    ids: np.ndarray
    starts: np.ndarray
    corrupt: tuple[str, ...]
    bytes: int
    seconds: float


def cut(split: str, documents: Iterable[Document], column: str, bytewise: bool, size: int = PIECE) -> Iterator[Piece]:
    """`documents` in pieces of about `size` bytes. bytewise: a text may be cut too."""
    taken: list[Stretch] = []
    filled = 0
    for stretch in (s for document in documents for s in _stretches(document, column, bytewise, size)):
        taken.append(stretch)
        filled += stretch.size + SMALL
        if filled >= size:
            yield Piece(split, tuple(taken))
            taken, filled = [], 0
    if taken:
        yield Piece(split, tuple(taken))


def _stretches(document: Document, column: str, bytewise: bool, size: int) -> Iterator[Stretch]:
    span = document.span
    ends: Sequence[int] = [span.stop]
    if document.rows:  # between groups, which are read whole
        ends = [*(row for row in tables.groups(document.path, column)[0] if row in span[1:]), span.stop]
    elif bytewise or document.path.suffix == LINES:
        ends = [*span[size::size], span.stop]
    for start, end in zip([span.start, *ends[:-1]], ends, strict=True):
        yield Stretch(document, range(start, end))


def encode(piece: Piece, tokenizer: Tokenizer, column: str, dtype: np.dtype, skip: bool) -> Encoded:
    """The tokens of `piece`. Raises MeshkitError for what is corrupt unless `skip`, and for a file that has changed."""
    began, corrupt, parts = time.process_time(), [], _Parts(tokenizer, dtype)
    for stretch in piece.stretches:
        _check_unchanged(stretch.document)
        if tokenizer.bytewise and not stretch.document.of_records:
            parts.add_bytes(stretch)
            continue
        for text in _texts(stretch, column):
            if isinstance(text, str):
                parts.add(text)
            elif skip:
                corrupt.append(str(text))
            else:
                raise text.refused
    ids, starts = parts.joined()
    return Encoded(piece.split, ids, starts, tuple(corrupt), parts.bytes, time.process_time() - began)


def _texts(stretch: Stretch, column: str) -> Iterator[str | CorruptError]:
    """The texts in `stretch`, and what cannot be read."""
    document = stretch.document
    if document.rows is not None:
        yield from tables.texts(document.path, stretch.span, column)
        return
    with document.open() as file:
        if document.path.suffix == LINES:
            yield from lines.texts(document.path, file, stretch.span, column)
            return
        try:
            yield read_text(file, document.size)
        except CorruptError as error:
            yield error


def _check_unchanged(document: Document) -> None:
    try:
        modified = document.path.stat().st_mtime_ns
    except OSError as error:
        raise MeshkitError(f"{document.path}: cannot be read: {error.strerror}") from None
    if modified != document.modified_ns:
        raise MeshkitError(f"{document.path}: changed while it was being prepared: start again")


class _Parts:
    """Ids as they come, and where documents begin in them. bytes: UTF-8 bytes of the texts so far."""

    def __init__(self, tokenizer: Tokenizer, dtype: np.dtype) -> None:
        self._tokenizer, self._dtype = tokenizer, dtype
        self._end = np.array([tokenizer.end], dtype)
        self._ids: list[np.ndarray] = []
        self._starts: list[int] = []
        self._size, self.bytes = 0, 0
        self._waiting: list[str] = []
        self._characters = 0

    def add(self, text: str) -> None:
        """A document."""
        self._waiting.append(text)
        self._characters += len(text)
        self.bytes += len(text.encode())
        if self._characters >= BATCH:
            self._encode_waiting()

    def add_bytes(self, stretch: Stretch) -> None:
        """A stretch of a text whose bytes are its tokens."""
        self._encode_waiting()
        if stretch.span.start == stretch.document.start:
            self._starts.append(self._size)
        with stretch.document.open() as file:
            file.seek(stretch.span.start)
            for chunk in self._tokenizer.encode_file(file, len(stretch.span)):
                self._append(chunk)
                self.bytes += chunk.size
        if stretch.span.stop == stretch.document.span.stop:
            self._append(self._end)

    def joined(self) -> tuple[np.ndarray, np.ndarray]:
        """All ids, and int64 starts."""
        self._encode_waiting()
        return np.concatenate([np.zeros(0, self._dtype), *self._ids]), np.array(self._starts, np.int64)

    def _encode_waiting(self) -> None:
        for ids in self._tokenizer.encode_all(self._waiting) if self._waiting else []:
            self._starts.append(self._size)
            self._append(ids)
            self._append(self._end)
        self._waiting, self._characters = [], 0

    def _append(self, ids: np.ndarray) -> None:
        self._ids.append(ids.astype(self._dtype))
        self._size += ids.size
