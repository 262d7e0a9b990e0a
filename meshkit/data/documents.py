"""Which documents a `data.text` names, and which of them are held out. A file is a document."""

import hashlib
import itertools
import os
import stat
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from meshkit.errors import MeshkitError

LINES = ".jsonl"  # files of JSON lines (see lines.py): many documents
MAGIC = set("*?[")  # a part of a path with one of these is a pattern


@dataclass(frozen=True, order=True)
class Document:
    """`size` bytes of a file from `start`. `name` is its path inside the folder or glob that named it."""

    name: str
    path: Path
    start: int
    size: int
    modified_ns: int

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


def find(text: Sequence[str]) -> list[Document]:
    """The files that the entries of `text` name, empty ones included, sorted by name, each once.

    An entry is a file, a folder (walked whole) or a glob (`**` for any depth); `{stdlib}` in it stands
    for the folder of Python's own sources. Raises MeshkitError naming an entry that matches no file.
    """
    if not text:
        raise MeshkitError("data.text names nothing: give text files, folders or globs")
    names: dict[Path, str] = {}
    for entry in text:
        found = list(_matches(entry.replace("{stdlib}", sysconfig.get_paths()["stdlib"])))
        if not found:
            raise MeshkitError(f"data.text: {entry!r} matches no file (searched from {Path.cwd()})")
        for name, path in found:
            names[path] = min(name, names.get(path, name))
    return sorted(_document(name, path) for path, name in names.items())


def split(documents: Sequence[Document], share: float) -> tuple[list[Document], list[Document]]:
    """(train, held out), about `share` of the bytes held out, both in the given order and never empty.

    Who is held out follows from the hash of a document's name, so that neither the order of the files
    nor the machine matters, and new files move few old ones. A single document is cut in two at the
    line's end nearest below. Raises MeshkitError when there is no byte to hold out.
    """
    full = [d for d in documents if d.size]
    total = sum(d.size for d in full)
    if total < 2:
        raise MeshkitError(f"data.text: {len(documents)} files hold {total} bytes: too few to hold some out")
    if len(full) == 1:
        first, last = _cut(full[0], share)
        return [first], [last]
    held: set[Document] = set()
    taken = 0
    for document in sorted(full, key=lambda d: (_hash(d.name), d)):
        if taken + document.size <= share * total:
            held.add(document)
            taken += document.size
    held = held or {min(full, key=lambda d: (d.size, _hash(d.name), d))}
    return [d for d in full if d not in held], [d for d in full if d in held]


def _matches(entry: str) -> Iterator[tuple[str, Path]]:
    """(name, absolute path) of everything but folders that an entry names."""
    path = Path(entry).expanduser()
    if path.is_dir():
        yield from _walk(path)
    elif path.exists():
        yield path.name, path.resolve()
    else:
        fixed = list(itertools.takewhile(lambda part: not MAGIC & set(part), path.parts))
        pattern = path.parts[len(fixed) :]
        if pattern:
            # A last ** means folders only to some versions of Python; here it means all that is in them.
            pattern = (*pattern, "*") if pattern[-1] == "**" else pattern
            root = Path(*fixed)
            yield from ((str(p.relative_to(root)), p.resolve()) for p in root.glob("/".join(pattern)) if not p.is_dir())


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    def refuse(error: OSError) -> None:
        raise MeshkitError(f"{error.filename}: cannot be read: {error.strerror}")

    for parent, _, files in os.walk(folder, onerror=refuse):
        for file in files:
            path = Path(parent, file)
            yield str(path.relative_to(folder)), path.resolve()


def _document(name: str, path: Path) -> Document:
    try:
        status = path.stat()
    except OSError as error:
        raise MeshkitError(f"{path}: cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise MeshkitError(f"{path}: not a regular file: leave it out of data.text")
    return Document(name, path, 0, status.st_size, status.st_mtime_ns)


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", errors="surrogateescape")).digest()


def _cut(document: Document, share: float) -> tuple[Document, Document]:
    """The document in two: at the end of the last line before the held-out share, else exactly there."""
    place = min(max(round(document.size * (1 - share)), 1), document.size - 1)
    lines = document.path.suffix == LINES  # which stay whole
    window = place if lines else min(place, 1 << 16)
    with document.open() as file:
        file.seek(document.start + place - window)
        line_end = file.read(window).rfind(b"\n")
    if lines and line_end < 0:
        raise MeshkitError(f"{document.path}: its first line is too long to hold out {share:g} of the file: give more")
    place = place - window + line_end + 1 if line_end >= 0 else place
    return replace(document, size=place), replace(document, start=document.start + place, size=document.size - place)
