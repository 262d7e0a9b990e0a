"""Text files to a folder of tokens: `prepare` for `meshkit data prepare`, `prepare_cached` for `data.text`."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from meshkit.data import documents
from meshkit.data.documents import Document
from meshkit.data.lines import Bad, refuse, texts
from meshkit.data.text import load_tokenizer
from meshkit.data.tokens import FORMAT, VERSION, Header, TokenWriter, is_whole
from meshkit.errors import MeshkitError

Report = Callable[[int, int], None]


@dataclass(frozen=True)
class Summary:
    """What `prepare` made: the folder, its header, and how many files it read."""

    folder: Path
    header: Header
    files: int
    empty: int
    bytes: int

    def __str__(self) -> str:
        splits = ", ".join(
            f"{split} {counts.tokens:,} tokens in {counts.documents:,} documents"
            for split, counts in self.header.splits.items()
        )
        return (
            f"{self.folder}: {splits} ({self.header.dtype}, vocabulary {self.header.vocab:,}), "
            f"from {self.files:,} files of {self.bytes:,} bytes, {self.empty:,} of them empty"
        )


def prepare(
    text: Sequence[str],
    out: str | os.PathLike[str],
    tokenizer: str | None = None,
    held_out: float = 0.05,
    report: Report | None = None,
    bad: Bad = refuse,
) -> Summary:
    """Writes the tokens of `text` (files, folders, globs; see `documents.find`) into the new folder `out`.

    `tokenizer` is the path of a tokenizer.json, or None for one token a byte; about `held_out` of the
    bytes become the held-out split. `report(done, total)` is called with bytes after each file; `bad` with a sentence
    about each line of a .jsonl that cannot be read.
    Raises MeshkitError when nothing matches, a file cannot be read or encoded, or `out` is taken.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise MeshkitError(f"{out}: already there: choose another folder, or remove it first")
    return _write(documents.find(text), out, tokenizer, held_out, report, bad)


def prepare_cached(
    text: Sequence[str],
    cache: str | os.PathLike[str],
    tokenizer: str | None = None,
    held_out: float = 0.05,
    report: Report | None = None,
) -> Path:
    """The folder of `text`'s tokens inside `cache`, made now unless it stands there whole.

    Its name is a hash of the files' paths, sizes and times of change and of the settings: a changed
    file gets a new folder. Errors as for `prepare`.
    """
    found = documents.find(text)
    folder = Path(cache) / _key(found, tokenizer, held_out)
    if is_whole(folder):
        return folder
    if folder.exists():  # damaged by hand or by a disk: put out of the way in one move, then removed
        aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.damaged")
        folder.rename(aside)
        shutil.rmtree(aside)
    return _write(found, folder, tokenizer, held_out, report).folder


def _write(
    found: list[Document],
    out: Path,
    tokenizer: str | None,
    held_out: float,
    report: Report | None,
    bad: Bad = refuse,
) -> Summary:
    if not 0 < held_out < 1:
        raise MeshkitError(f"held_out = {held_out}: the share kept for evaluation is above 0 and below 1, such as 0.05")
    encoder = load_tokenizer(tokenizer)
    train, held = documents.split(found, held_out)
    total, done = sum(d.size for d in found), 0
    with TokenWriter(out, encoder.vocab, encoder.end, Path(tokenizer) if tokenizer else None) as writer:
        for split, members in (("train", train), ("held_out", held)):
            for document in members:
                with document.open() as file:
                    if document.path.suffix == documents.LINES:
                        for text in texts(document, file, bad):
                            writer.add(split, [encoder.encode(text)])
                    else:
                        writer.add(split, encoder.encode_file(file, document.size))
                done += document.size
                if report:
                    report(done, total)
        header = writer.finish()
    return Summary(out, header, len(found), sum(not d.size for d in found), total)


def _key(found: list[Document], tokenizer: str | None, held_out: float) -> str:
    try:
        tokenizer_hash = hashlib.sha256(Path(tokenizer).read_bytes()).hexdigest() if tokenizer else None
    except OSError as error:
        raise MeshkitError(f"{tokenizer}: cannot be read (data.tokenizer): {error.strerror}") from None
    settings = [FORMAT, VERSION, tokenizer_hash, held_out, [astuple(d) for d in found]]
    return hashlib.sha256(json.dumps(settings, default=str).encode()).hexdigest()[:16]
