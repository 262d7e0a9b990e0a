"""Files to a folder of tokens: `prepare` for `meshkit data prepare`, `prepare_cached` for `data.text`."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass
from pathlib import Path

from meshkit.data import documents, pieces
from meshkit.data.documents import COLUMN, Document
from meshkit.data.pieces import Piece
from meshkit.data.text import Tokenizer, load_tokenizer
from meshkit.data.tokens import FORMAT, SPLITS, VERSION, Header, is_whole
from meshkit.data.workers import Work, encoded
from meshkit.data.writer import SKIPPED, Journal, TokenWriter
from meshkit.errors import MeshkitError, counted

Report = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


@dataclass(frozen=True)
class Summary:
    """What `prepare` made: the folder, its header, and what it read.

    bytes: of the files. text_bytes: of the texts in them as UTF-8, which took `seconds` of CPU time, those of an
    interrupted preparation included. skipped: sentences about what was corrupt.
    """

    folder: Path
    header: Header
    files: int
    empty: int
    bytes: int
    text_bytes: int
    seconds: float
    skipped: tuple[str, ...]

    @property
    def megabytes_a_second(self) -> float:
        """Text encoded in a second of one core, in 10⁶ bytes."""
        return self.text_bytes / 1e6 / max(self.seconds, 1e-9)

    def __str__(self) -> str:
        splits = ", ".join(
            f"{split} {counts.tokens:,} tokens in {counts.documents:,} documents"
            for split, counts in self.header.splits.items()
        )
        skipped = f"; {counted(len(self.skipped), 'corrupt part')} left out: {SKIPPED}" if self.skipped else ""
        return (
            f"{self.folder}: {splits} ({self.header.dtype}, vocabulary {self.header.vocab:,}), "
            f"from {self.files:,} files of {self.bytes:,} bytes, {self.empty:,} of them empty; "
            f"{self.megabytes_a_second:.2f} MB/s a core{skipped}"
        )


def prepare(
    text: Sequence[str],
    out: str | os.PathLike[str],
    tokenizer: str | None = None,
    held_out: float = 0.05,
    *,
    column: str = COLUMN,
    workers: int | None = None,
    skip_corrupt: bool = False,
    report: Report | None = None,
) -> Summary:
    """Writes the tokens of `text` (files, folders, globs; see `documents.find`) into the new folder `out`.

    `tokenizer` is the path of a tokenizer.json, or None for one token a byte; about `held_out` of the
    bytes become the held-out split. column: where lines of JSON and rows of tables have their text. workers: how many
    processes (begun anew, so that a script needs its `if __name__ == "__main__"`); None: this one. skip_corrupt: leave
    out what cannot be read, and list it in skipped.txt. The folder is the same for any number of workers, and after any
    interruption: the same call goes on where one ended.
    Raises MeshkitError when nothing matches, a file cannot be read or encoded, or `out` is taken.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise MeshkitError(f"{out}: already there: choose another folder, or remove it first")
    if workers is not None and workers < 1:
        raise MeshkitError(f"workers = {workers}: at least 1")
    unreadable: list[str] = []
    found = documents.find(text, column, (lambda c: unreadable.append(str(c))) if skip_corrupt else documents.refuse)
    encoder = load_tokenizer(tokenizer)
    with TokenWriter(out, encoder.vocab, encoder.end, Path(tokenizer) if tokenizer else None) as writer:
        work = Work(tokenizer, column, writer.dtype, skip_corrupt)
        return _write(writer, found, _plan(found, held_out, encoder, column), work, unreadable, workers, report)


def prepare_cached(
    text: Sequence[str],
    cache: str | os.PathLike[str],
    tokenizer: str | None = None,
    held_out: float = 0.05,
) -> Path:
    """The folder of `text`'s tokens inside `cache`, made now unless it stands there whole.

    Its name is a hash of the files' paths, sizes and times of change and of the settings: a changed
    file gets a new folder. Of several processes that want it at once, one makes it. Errors as for `prepare`.
    """
    found = documents.find(text)
    folder = Path(cache) / _key(found, tokenizer, held_out)
    if is_whole(folder):
        return folder
    encoder = load_tokenizer(tokenizer)
    tokenizer_file = Path(tokenizer) if tokenizer else None
    with TokenWriter(folder, encoder.vocab, encoder.end, tokenizer_file, wait=True) as writer:
        if is_whole(folder):  # made by the process that was waited for
            return folder
        if folder.exists():  # damaged by hand or by a disk: put out of the way in one move, then removed
            aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.damaged")
            folder.rename(aside)
            shutil.rmtree(aside)
        work = Work(tokenizer, COLUMN, writer.dtype, skip=False)
        _write(writer, found, _plan(found, held_out, encoder, COLUMN), work)
    return folder


def _plan(found: list[Document], held_out: float, encoder: Tokenizer, column: str) -> list[Piece]:
    documents.check_share(held_out)
    members = zip(SPLITS, documents.split(found, held_out), strict=True)
    return [piece for split, docs in members for piece in pieces.cut(split, docs, column, encoder.bytewise)]


def _write(
    writer: TokenWriter,
    found: list[Document],
    plan: list[Piece],
    work: Work,
    unreadable: Sequence[str] = (),
    workers: int | None = None,
    report: Report | None = None,
) -> Summary:
    """Encodes what of `plan` is not written yet. unreadable: what of the files could not be planned."""
    marks = _marks(plan, work, unreadable)
    if not _goes_on(writer.journal, marks, work.skip):
        writer.begin(anew=True)
        writer.skipped(unreadable)
    else:
        writer.begin()
    journal = writer.journal
    total, done = sum(d.size for d in found), sum(piece.size for piece in plan[: journal.pieces])
    report = report or (lambda done, total: None)
    report(done, total)
    rest = plan[journal.pieces :]
    with closing(encoded(rest, work, workers)) as parts:
        for piece, part in zip(rest, parts, strict=True):
            writer.append(part.split, part.ids, part.starts)
            writer.skipped(part.corrupt)
            journal.bytes, journal.seconds = journal.bytes + part.bytes, journal.seconds + part.seconds
            writer.commit(marks[journal.pieces + 1])
            done += piece.size
            report(done, total)
    for split, count in journal.documents.items():
        if not count:
            raise MeshkitError(
                f"{writer.out}: no document is left for the {split} split: give more text, or another --held-out"
            )
    header = writer.finish()
    empty, skipped = sum(not d.size for d in found), writer.out / SKIPPED
    lines = tuple(skipped.read_text(encoding="utf-8").splitlines()) if skipped.exists() else ()
    return Summary(writer.out, header, len(found), empty, total, journal.bytes, journal.seconds, lines)


def _goes_on(journal: Journal, marks: Sequence[str], skip: bool) -> bool:
    """Whether what is written is the beginning of what is to be."""
    known = 0 < journal.pieces < len(marks) and journal.mark == marks[journal.pieces]
    return known and (skip or not journal.skipped_bytes)


def _marks(plan: Sequence[Piece], work: Work, unreadable: Sequence[str]) -> list[str]:
    """Of the first n pieces, for every n: equal only if their tokens are."""
    marks = [json.dumps([FORMAT, VERSION, _hash(work.tokenizer), work.column, list(unreadable)])]
    for piece in plan:
        marks.append(piece.mark(marks[-1]))
    return marks


def _key(found: list[Document], tokenizer: str | None, held_out: float) -> str:
    settings = [FORMAT, VERSION, _hash(tokenizer), held_out, [astuple(d) for d in found]]
    return hashlib.sha256(json.dumps(settings, default=str).encode()).hexdigest()[:16]


def _hash(tokenizer: str | None) -> str | None:
    """Of the tokenizer's file."""
    try:
        return hashlib.sha256(Path(tokenizer).read_bytes()).hexdigest() if tokenizer else None
    except OSError as error:
        raise MeshkitError(f"{tokenizer}: cannot be read (data.tokenizer): {error.strerror}") from None
