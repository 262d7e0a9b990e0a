"""Which files a `data.text` names, and which of them are held out.

A file of text is a document. Files of records, by their suffix, hold many: `.jsonl` a document a line (lines.py),
`.parquet` and `.arrow` one a row (tables.py).
"""

import hashlib
import itertools
import os
import stat
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from meshkit.data import saved, tables
from meshkit.data.corrupt import CorruptError
from meshkit.data.lines import line_start
from meshkit.errors import MeshkitError

LINES, TABLES = ".jsonl", (".parquet", ".arrow")
COLUMN = "text"  # where records have their text, unless told otherwise
MAGIC = set("*?[")  # a part of a path with one of these is a pattern


@dataclass(frozen=True, order=True)
class Document:
    """A file, or a part of one: `size` bytes from `start`; of a table, those of `rows`, in proportion.

    `name` is its path inside the folder or glob that named it. `split`: "train" or "held_out" if its data set says so.
    """

    name: str
    path: Path
    start: int
    size: int
    modified_ns: int
    rows: tuple[int, int] | None = None
    split: str = ""

    @property
    def span(self) -> range:
        """Bytes of the file; of a table, rows."""
        return range(*self.rows) if self.rows else range(self.start, self.start + self.size)

    @property
    def of_records(self) -> bool:
        """Whether it holds documents of its own."""
        return self.rows is not None or self.path.suffix == LINES

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The file, at the document's first byte; MeshkitError when it cannot be opened."""
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise MeshkitError(f"{self.path}: cannot be read: {error.strerror}") from None
        with file:
            file.seek(self.start)
            yield file


Skip = Callable[[CorruptError], None]
"""Called with what cannot be read: raises, or lets it be left out."""


def refuse(corrupt: CorruptError) -> None:
    """A `Skip` that leaves nothing out."""
    raise corrupt.refused


def find(text: Sequence[str], column: str = COLUMN, skip: Skip = refuse) -> list[Document]:
    """The files that the entries of `text` name, empty ones included, sorted by name, each once.

    An entry is a file, a folder (walked whole) or a glob (`**` for any depth); `{stdlib}` in it stands for the folder
    of Python's own sources; of a folder that `datasets` saved, its Arrow files (see saved.py). `skip` is called with
    what of a table cannot be read.
    Raises MeshkitError naming an entry that matches no file, or a table without `column`.
    """
    if not text:
        raise MeshkitError("data.text names nothing: give text files, folders or globs")
    names: dict[Path, tuple[str, str]] = {}
    for entry in text:
        found = list(_matches(entry.replace("{stdlib}", sysconfig.get_paths()["stdlib"])))
        if not found:
            raise MeshkitError(f"data.text: {entry!r} matches no file (searched from {Path.cwd()})")
        for name, path, kept_for in found:
            names[path] = min((name, kept_for), names.get(path, (name, kept_for)))
    return sorted(_document(name, path, kept_for, column, skip) for path, (name, kept_for) in names.items())


def check_share(share: float) -> None:
    """MeshkitError unless `share` can be held out."""
    if not 0 < share < 1:
        raise MeshkitError(f"held_out = {share}: the share kept for evaluation is above 0 and below 1, such as 0.05")


def split(documents: Sequence[Document], share: float) -> tuple[list[Document], list[Document]]:
    """(train, held out), about `share` of the bytes held out, both in the given order and never empty.

    Who is held out follows from the hash of a document's name, so that neither the order of the files
    nor the machine matters, and new files move few old ones. Files whose data set says which split they are of keep
    it. A single file is cut in two, at the line's end nearest below or between rows; so is the smallest of several that
    are all larger than the share, if it holds records. Raises MeshkitError when there is nothing to hold out.
    """
    full = [d for d in documents if d.size and d.span]
    total = sum(d.size for d in full)
    if total < 2:
        raise MeshkitError(f"data.text: {len(documents)} files hold {total} bytes: too few to hold some out")
    parts = {d: [(d.split or "train", d)] for d in full}
    free = [d for d in full if not d.split]
    if len(free) > 1 or len(free) == len(full):
        parts |= _held_out(free, share)
    train, held = ([d for pair in parts.values() for of, d in pair if of == name] for name in ("train", "held_out"))
    for name, members in (("train", train), ("held_out", held)):
        if not members:
            raise MeshkitError(f"data.text: nothing is in the {name} split of its data sets: give more")
    return train, held


def _held_out(documents: Sequence[Document], share: float) -> dict[Document, list[tuple[str, Document]]]:
    """Document -> (split, document or a part of it), of those of which something is held out."""
    held: list[Document] = []
    taken, total = 0, sum(d.size for d in documents)
    for document in sorted(documents, key=lambda d: (_hash(d.name), d)):
        if taken + document.size <= share * total:
            held.append(document)
            taken += document.size
    smallest = min(documents, key=lambda d: (d.size, _hash(d.name), d))
    if len(documents) == 1 or (not held and smallest.of_records):
        # One of several that is a single record stays whole.
        with suppress(*[MeshkitError] * (len(documents) > 1)):
            first, last = _cut(smallest, share * total / smallest.size)
            return {smallest: [("train", first), ("held_out", last)]}
    return {document: [("held_out", document)] for document in held or [smallest]}


def _matches(entry: str) -> Iterator[tuple[str, Path, str]]:
    """(name, absolute path, split) of everything but folders that an entry names."""
    path = Path(entry).expanduser()
    if path.is_dir():
        yield from _walk(path)
    elif path.exists():
        yield path.name, path.resolve(), ""
    else:
        fixed = list(itertools.takewhile(lambda part: not MAGIC & set(part), path.parts))
        pattern = path.parts[len(fixed) :]
        if pattern:
            # A last ** means folders only to some versions of Python; here it means all that is in them.
            pattern = (*pattern, "*") if pattern[-1] == "**" else pattern
            root = Path(*fixed)
            found = (p for p in root.glob("/".join(pattern)) if not p.is_dir())
            yield from ((str(p.relative_to(root)), p.resolve(), "") for p in found)


def _walk(folder: Path) -> Iterator[tuple[str, Path, str]]:
    def refuse(error: OSError) -> None:
        raise MeshkitError(f"{error.filename}: cannot be read: {error.strerror}")

    for parent, folders, files in os.walk(folder, onerror=refuse):
        if saved.is_saved(Path(parent)):
            folders.clear()
            found = saved.files(Path(parent))
        else:
            found = [(Path(parent, file), "") for file in files]
        yield from ((str(path.relative_to(folder)), path.resolve(), kept_for) for path, kept_for in found)


def _document(name: str, path: Path, kept_for: str, column: str, skip: Skip) -> Document:
    try:
        status = path.stat()
        if path.suffix in TABLES:
            path.open("rb").close()
    except OSError as error:
        raise MeshkitError(f"{path}: cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise MeshkitError(f"{path}: not a regular file: leave it out of data.text")
    document = Document(name, path, 0, status.st_size, status.st_mtime_ns, split=kept_for)
    if path.suffix not in TABLES:
        return document
    starts, wrong = tables.groups(path, column)
    if wrong is not None:
        skip(wrong)
    return replace(document, rows=(0, starts[-1]))


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", errors="surrogateescape")).digest()


def _cut(document: Document, share: float) -> tuple[Document, Document]:
    """The document in two: between rows, or at the last line's end before the held-out share, else exactly there."""
    if document.rows:
        return _cut_rows(document, share)
    place = min(max(round(document.size * (1 - share)), 1), document.size - 1)
    with document.open() as file:
        line = line_start(file, place)
    if not line and document.of_records:  # whose lines stay whole
        raise MeshkitError(f"{document.path}: its first line is too long to hold out {share:g} of the file: give more")
    place = line or place
    return replace(document, size=place), replace(document, start=place, size=document.size - place)


def _cut_rows(document: Document, share: float) -> tuple[Document, Document]:
    rows = len(document.span)
    if rows < 2:
        raise MeshkitError(f"{document.path}: {rows} row: too few to hold some out")
    place = min(max(round(rows * (1 - share)), 1), rows - 1)
    size = document.size * place // rows
    first = replace(document, rows=(0, place), size=size)
    return first, replace(document, rows=(place, rows), start=size, size=document.size - size)
