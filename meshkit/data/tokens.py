"""The flat token-file format: one stream of token ids a split, memory-mapped.

A prepared folder holds

    header.json               format, version, dtype, vocab, end, tokenizer, counts of each split
    train.bin                 every document's ids and its end token, one after the other, little-endian
    train.documents.npy       int64 [documents]: where each document starts in train.bin
    held_out.bin, held_out.documents.npy
    tokenizer.json            a copy of the tokenizer; not there when tokens are bytes
    skipped.txt               what of the text was corrupt and left out, a line each; not there when nothing was

The folder appears whole or not at all (see writer.py).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from meshkit.errors import MeshkitError, nearest

FORMAT, VERSION = "meshkit-tokens", 1
SPLITS = ("train", "held_out")
BYTES = "bytes"
DTYPES = ("uint16", "uint32")


@dataclass(frozen=True)
class Counts:
    """Size of one split, and the CRC-32 of its .bin file."""

    tokens: int
    documents: int
    crc32: int


@dataclass(frozen=True)
class Header:
    """What header.json says. `end` is the id that closes a document; `tokenizer` "bytes" or a file of the folder."""

    dtype: str
    vocab: int
    end: int
    tokenizer: str
    splits: Mapping[str, Counts]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The header of a prepared folder; MeshkitError naming the file when it is missing or malformed."""
        path = folder / "header.json"
        if not folder.is_dir():
            raise MeshkitError(f"{folder}: no such folder of tokens; make it with `meshkit data prepare`")
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise MeshkitError(f"{path}: missing, so {folder} is not a folder made by `meshkit data prepare`") from None
        except (OSError, ValueError) as error:
            raise MeshkitError(f"{path}: cannot be read as JSON: {error}") from None
        return cls._parse(values, path)

    @classmethod
    def _parse(cls, values: Any, path: Path) -> Self:
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise MeshkitError(f'{path}: not a token header: "format" is not "{FORMAT}"')
        if values.get("version") != VERSION:
            raise MeshkitError(
                f"{path}: version {values.get('version')!r} of the format, and this meshkit reads version {VERSION}: "
                "prepare the text again"
            )
        try:
            splits = {name: Counts(**{k: int(v) for k, v in values["splits"][name].items()}) for name in SPLITS}
            dtype, tokenizer = str(values["dtype"]), str(values["tokenizer"])
            header = cls(dtype, int(values["vocab"]), int(values["end"]), tokenizer, splits)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise MeshkitError(f"{path}: malformed header ({reason}): prepare the text again") from None
        if header.dtype not in DTYPES:
            raise MeshkitError(f"{path}: dtype {header.dtype!r}; known: {', '.join(DTYPES)}")
        return header

    def write(self, folder: Path) -> None:
        """Writes header.json into `folder`."""
        text = json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=2)
        (folder / "header.json").write_text(text + "\n", encoding="utf-8")


@dataclass(frozen=True)
class TokenFile:
    """One split of a prepared folder, or of Megatron's files.

    `tokens` is the memory-mapped stream, uint16 or uint32 [tokens]; `documents` int64 [documents], the
    start of each document in it; every document ends with the token `end`. `identity` is equal for equal tokens.

    One of Megatron's (see megatron.py) has its prefix as folder, ids of any whole type, and says nothing of its
    vocabulary, end token (None) and tokenizer ("").
    """

    folder: Path
    split: str
    tokens: np.ndarray
    documents: np.ndarray
    vocab: int | None
    end: int | None
    tokenizer: str
    identity: str

    @classmethod
    def open(cls, folder: str | os.PathLike[str], split: str) -> Self:
        """Maps the "train" or "held_out" split of `folder`.

        Raises MeshkitError naming the file that is missing, malformed or of another size than the header says.
        """
        folder = Path(folder)
        if split not in SPLITS:
            raise MeshkitError(f"no split {split!r}; {nearest(split, SPLITS)}")
        header = Header.read(folder)
        counts = header.splits[split]
        path = folder / f"{split}.bin"
        _check_size(path, counts.tokens * np.dtype(header.dtype).itemsize, f"{counts.tokens} tokens of {header.dtype}")
        tokens = np.memmap(path, dtype=np.dtype(header.dtype).newbyteorder("<"), mode="r")
        documents = _read_documents(folder / f"{split}.documents.npy", counts)
        if header.tokenizer != BYTES and not (folder / header.tokenizer).is_file():
            raise MeshkitError(f"{folder / header.tokenizer}: missing; the header says that it made these tokens")
        identity = f"{counts.tokens} tokens, CRC-32 {counts.crc32:08x}"
        return cls(folder, split, tokens, documents, header.vocab, header.end, header.tokenizer, identity)


def is_whole(folder: Path) -> bool:
    """Whether both splits of `folder` open."""
    try:
        return all(TokenFile.open(folder, split) for split in SPLITS)
    except MeshkitError:
        return False


def _check_size(path: Path, expected: int, meaning: str) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise MeshkitError(f"{path}: cannot be read: {error.strerror}") from None
    if size != expected or not expected:
        raise MeshkitError(
            f"{path}: {size} bytes, and the header says {meaning} = {expected} bytes: the file is truncated or "
            "not the header's; prepare the text again"
        )


def _read_documents(path: Path, counts: Counts) -> np.ndarray:
    try:
        documents: np.ndarray = np.load(path, mmap_mode="r")
    except FileNotFoundError:
        raise MeshkitError(f"{path}: missing: prepare the text again") from None
    except (OSError, ValueError, EOFError) as error:
        raise MeshkitError(f"{path}: cannot be read as a NumPy array ({error}): prepare the text again") from None
    if documents.shape != (counts.documents,) or documents.dtype != np.int64:
        raise MeshkitError(
            f"{path}: {documents.dtype} {list(documents.shape)}, and the header says int64 [{counts.documents}]: "
            "the file is truncated or not the header's; prepare the text again"
        )
    return documents
