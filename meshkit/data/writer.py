"""Writing a folder of token files, so that it appears whole or not at all, and goes on after an interruption.

Everything goes into a hidden folder beside the one to be made, and is renamed at the end. There, `journal.json` says
how much of each file is sure: it is put in its place, whole, after the files' bytes are on the disk. Who goes on cuts
the files off there. One process at a time holds the folder, by a lock that ends with the process.
"""

import errno
import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np

from meshkit.data.tokens import BYTES, SPLITS, Counts, Header, is_whole
from meshkit.errors import MeshkitError

JOURNAL, LOCK, SKIPPED = "journal.json", "lock", "skipped.txt"


@dataclass
class Journal:
    """What of a preparation is on the disk.

    pieces: how many are written; mark: a hash of them (`Piece.mark`). tokens, documents, crc32: of each split so far.
    skipped_bytes: size of skipped.txt. bytes, seconds: UTF-8 bytes encoded so far, and CPU time for it.
    """

    pieces: int = 0
    mark: str = ""
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    crc32: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    skipped_bytes: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @classmethod
    def read(cls, path: Path) -> Self:
        """The journal at `path`; an empty one if there is none, or none that this version wrote."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, TypeError, ValueError):
            return cls()


class TokenWriter:
    """Writes a prepared folder, document by document or piece by piece; used as a context manager.

    Leaving the context before `finish()` keeps what was committed, for the next writer of the same `out` to go on
    from, and otherwise leaves nothing. wait: while another process writes `out`, instead of an error.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        vocab: int,
        end: int,
        tokenizer_file: Path | None = None,
        wait: bool = False,
    ) -> None:
        self.out = Path(out)
        self.vocab, self.end = vocab, end
        self.tokenizer = BYTES if tokenizer_file is None else "tokenizer.json"
        self.dtype = np.dtype("<u2" if vocab <= 1 << 16 else "<u4")
        self.journal = Journal()
        self._folder = self.out.parent / f".{self.out.name}.partial"
        self._tokenizer_file, self._wait = tokenizer_file, wait
        self._placed = False
        self._files: dict[str, IO[bytes]] = {}
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._cleanup.enter_context(_held(self._folder, self._wait))
            self.journal = Journal.read(self._folder / JOURNAL)
        except OSError as error:
            self._cleanup.close()
            raise MeshkitError(f"{self.out}: cannot be written: {error}") from None
        return self

    def begin(self, anew: bool = False) -> None:
        """Opens the files where the journal ends, or new ones."""
        if anew:
            self.journal = Journal()
            old = [path for path in self._folder.iterdir() if path.name not in (LOCK, JOURNAL)]
            for path in [self._folder / JOURNAL, *old]:  # without it, nothing is sure of the others
                path.unlink(missing_ok=True)
        journal = self.journal
        if self._tokenizer_file is not None:
            shutil.copyfile(self._tokenizer_file, self._folder / self.tokenizer)
        sure = {f"{split}.bin": journal.tokens[split] * self.dtype.itemsize for split in SPLITS}
        sure |= {f"{split}.documents": journal.documents[split] * 8 for split in SPLITS}
        for name, size in (sure | {SKIPPED: journal.skipped_bytes}).items():
            file = self._files[name] = self._cleanup.enter_context((self._folder / name).open("ab"))
            if os.fstat(file.fileno()).st_size < size:
                raise MeshkitError(f"{self._folder / name}: shorter than its journal says: remove {self._folder}")
            file.truncate(size)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not self._placed and not (self._folder / JOURNAL).exists():
            self._cleanup.callback(shutil.rmtree, self._folder, ignore_errors=True)
        try:
            self._cleanup.close()
        except OSError as late:  # what was still buffered did not fit on the disk
            error = error or late
        if isinstance(error, OSError):
            raise MeshkitError(f"{self.out}: cannot be written: {error}") from error

    def add(self, split: str, chunks: Iterable[np.ndarray]) -> int:
        """Appends one document, given as pieces of its ids (int [n] each), and its end token; returns its tokens."""
        ids = np.concatenate([*chunks, np.array([self.end])])
        self.append(split, ids, np.zeros(1, np.int64))
        return ids.size

    def append(self, split: str, ids: np.ndarray, starts: np.ndarray) -> None:
        """Appends `ids` (int [n], ends of documents included), in which documents begin at `starts` (int64)."""
        if not self._files:
            self.begin(anew=True)
        data, journal = ids.astype(self.dtype).tobytes(), self.journal
        self._files[f"{split}.bin"].write(data)
        self._files[f"{split}.documents"].write((starts + journal.tokens[split]).astype("<i8").tobytes())
        journal.crc32[split] = zlib.crc32(data, journal.crc32[split])
        journal.tokens[split] += ids.size
        journal.documents[split] += starts.size

    def skipped(self, sentences: Iterable[str]) -> None:
        """Notes what was left out."""
        for sentence in sentences:
            line = " ".join(sentence.splitlines()) + "\n"
            self.journal.skipped_bytes += self._files[SKIPPED].write(line.encode(errors="replace"))

    def commit(self, mark: str) -> None:
        """One more piece is written; an interruption will not lose it."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.journal.pieces += 1
        self.journal.mark = mark
        _put(self._folder / JOURNAL, json.dumps(asdict(self.journal)))

    def finish(self) -> Header:
        """Puts the folder in its place, and returns its header.

        Raises MeshkitError when something else already stands there.
        """
        if not self._files:
            self.begin(anew=True)
        journal = self.journal
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        for split in SPLITS:
            starts = np.fromfile(self._folder / f"{split}.documents", dtype="<i8")
            np.save(self._folder / f"{split}.documents.npy", starts.astype(np.int64))
        counts = {s: Counts(journal.tokens[s], journal.documents[s], journal.crc32[s]) for s in SPLITS}
        header = Header(self.dtype.name, self.vocab, self.end, self.tokenizer, counts)
        header.write(self._folder)
        try:
            self._folder.rename(self.out)
        except OSError as error:
            taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
            if taken and is_whole(self.out) and Header.read(self.out) == header:
                (self._folder / JOURNAL).unlink(missing_ok=True)  # the same text was prepared meanwhile
                return header
            raise MeshkitError(f"{self.out}: cannot take the place of what is there: {error.strerror}") from None
        self._placed = True
        # Last, so that a process killed meanwhile loses nothing.
        own = [f"{split}.documents" for split in SPLITS] + [SKIPPED] * (not journal.skipped_bytes)
        for name in [*own, JOURNAL, LOCK]:
            (self.out / name).unlink(missing_ok=True)
        return header


def _held(folder: Path, wait: bool) -> IO[bytes]:
    """The locked file that says that this process writes `folder`, which is made if need be; closed, it lets go."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / LOCK
        try:
            file = path.open("ab")
        except FileNotFoundError:
            continue  # the folder was just put in its place
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                return file
        except BlockingIOError:
            file.close()
            raise MeshkitError(f"{folder}: another process is writing there: wait for it, or end it first") from None
        except FileNotFoundError:
            pass
        file.close()


def _put(path: Path, text: str) -> None:
    """The file at `path` is `text`, or what it was, at any moment."""
    new = path.with_name(f"{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
