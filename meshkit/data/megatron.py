"""Token files of Megatron-LM, PREFIX.bin and PREFIX.idx, read as they are: mapped into memory, nothing converted.

PREFIX.bin holds the ids of all sequences, one after the other. PREFIX.idx says where they are, little-endian, in one
of two formats:

    MMIDIDX\\0\\0 u64 version = 1, u8 dtype, u64 sequences, u64 entries of the document index;
                 int32 lengths [sequences], int64 pointers [sequences] (bytes), int64 documents [entries];
                 int8 modes [sequences], which multimodal files have and nobody needs here
    TNTIDX\\0\\0  u64 version = 1, u64 dtype, u64 bytes of an id, u64 sequences, u64 lengths, u64 entries;
                 int64 dimensions [sequences + 1], int64 pointers [sequences + 1] (ids), int64 lengths, int64 documents

The document index goes from 0 to the number of sequences: document d is the sequences index[d] … index[d + 1] − 1.
"""

import os
import struct
import zlib
from pathlib import Path

import numpy as np

from meshkit.data.tokens import TokenFile
from meshkit.errors import MeshkitError

MAPPED, LEGACY = b"MMIDIDX\x00\x00", b"TNTIDX\x00\x00"
DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # and 6, 7: floats, which are no ids
BLOCK = 1 << 20  # entries checked at a time


def prefix_of(path: str | os.PathLike[str]) -> Path | None:
    """The prefix that `path` means, itself or one of its two files; None when there are no such files."""
    path = Path(path)
    prefix = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
    return prefix if _beside(prefix, ".idx").is_file() else None


def split(prefix: Path, held_out: float) -> tuple[TokenFile, TokenFile]:
    """(train, held out): of PREFIX's documents the last, about `held_out` of the tokens, and those before.

    Where no document begins near the place, half of `held_out` away at most, one is cut in two, exactly there.
    Raises MeshkitError naming the file and the field that is wrong.
    """
    tokens, documents, identity = _read(prefix)
    if tokens.size < 2:
        raise MeshkitError(f"{_beside(prefix, '.bin')}: {tokens.size} token: too few to hold some out")
    wanted = min(max(round(tokens.size * (1 - held_out)), 1), tokens.size - 1)
    inside = documents[(documents > 0) & (documents < tokens.size)]
    near = inside[np.abs(inside - wanted) <= held_out * tokens.size / 2]
    cut = int(near[np.argmin(np.abs(near - wanted))]) if near.size else wanted
    first = np.searchsorted(documents, cut)
    after = documents[first:] - cut
    after = after if near.size else np.append(0, after)
    parts = {"train": (tokens[:cut], documents[:first]), "held_out": (tokens[cut:], after)}
    train, held = (
        TokenFile(prefix, name, *part, vocab=None, end=None, tokenizer="", identity=f"{identity}, first {cut}")
        for name, part in parts.items()
    )
    return train, held


def _read(prefix: Path) -> tuple[np.ndarray, np.ndarray, str]:
    """(mapped ids, int64 where each document begins, what is equal for equal .idx files)."""
    path = _beside(prefix, ".idx")
    try:
        index = np.memmap(path, np.uint8, mode="r")
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise MeshkitError(f"{path}: cannot be read: {error}") from None
    head = index[:64].tobytes()
    if head.startswith(MAPPED):
        dtype, pointers, size, documents = _mapped(path, index, head)
    elif head.startswith(LEGACY):
        dtype, pointers, size, documents = _legacy(path, index, head)
    else:
        raise MeshkitError(f"{path}: magic {head[:9]!r}: it must begin with {MAPPED!r} or {LEGACY!r}")
    sequences = pointers.size
    if not documents.size or documents[0] or documents[-1] != sequences or _falls(documents):
        raise MeshkitError(f"{path}: document index: it must rise from 0 to the number of sequences, {sequences}")
    tokens = _tokens(_beside(prefix, ".bin"), path, dtype, size)
    starts = np.append(pointers, size * dtype.itemsize)[documents[:-1]] // dtype.itemsize
    return tokens, starts, f"{size} tokens, CRC-32 of .idx {zlib.crc32(index):08x}"


def _mapped(path: Path, index: np.ndarray, head: bytes) -> tuple[np.dtype, np.ndarray, int, np.ndarray]:
    """(dtype, byte at which each sequence begins, ids in all, document index)."""
    code, sequences, entries = _fields(path, head, "<BQQ", len(MAPPED))
    dtype, offset = _dtype(path, code), len(MAPPED) + 8 + 17
    lengths, offset = _array(path, index, offset, "<i4", sequences, "sequence lengths")
    pointers, offset = _array(path, index, offset, "<i8", sequences, "sequence pointers")
    documents, offset = _array(path, index, offset, "<i8", entries, "document index")
    if index.size - offset not in (0, sequences):
        raise MeshkitError(
            f"{path}: {index.size - offset} bytes follow the document index, and none or a mode a sequence may"
        )
    size = _check_contiguous(path, lengths, pointers, dtype.itemsize)
    return dtype, pointers, size, documents


def _legacy(path: Path, index: np.ndarray, head: bytes) -> tuple[np.dtype, np.ndarray, int, np.ndarray]:
    """The same of the older format."""
    code, itemsize, sequences, lengths_in_all, entries = _fields(path, head, "<QQQQQ", len(LEGACY))
    dtype, offset = _dtype(path, code), len(LEGACY) + 8 + 40
    if itemsize != dtype.itemsize:
        raise MeshkitError(f"{path}: bytes of an id: {itemsize}, and its dtype {dtype.name} has {dtype.itemsize}")
    if lengths_in_all != sequences:
        raise MeshkitError(f"{path}: {sequences} sequences have {lengths_in_all} lengths: they are no rows of ids")
    _, offset = _array(path, index, offset, "<i8", sequences + 1, "dimension offsets")
    places, offset = _array(path, index, offset, "<i8", sequences + 1, "sequence pointers")
    lengths, offset = _array(path, index, offset, "<i8", sequences, "sequence lengths")
    documents, offset = _array(path, index, offset, "<i8", entries, "document index")
    if offset != index.size:
        raise MeshkitError(f"{path}: {index.size - offset} bytes follow the document index, and none may")
    pointers = places[:-1] * dtype.itemsize
    return dtype, pointers, _check_contiguous(path, lengths, pointers, dtype.itemsize), documents


def _fields(path: Path, head: bytes, form: str, magic: int) -> tuple[int, ...]:
    """The numbers after the magic and the version."""
    if len(head) < magic + 8 + struct.calcsize(form):
        raise MeshkitError(f"{path}: truncated in its header: {len(head)} bytes")
    (version,) = struct.unpack_from("<Q", head, magic)
    if version != 1:
        raise MeshkitError(f"{path}: version {version}: known is 1")
    return struct.unpack_from(form, head, magic + 8)


def _dtype(path: Path, code: int) -> np.dtype:
    if code not in DTYPES:
        known = ", ".join(f"{number} ({np.dtype(name).name})" for number, name in DTYPES.items())
        raise MeshkitError(f"{path}: dtype {code} is none of ids: known are {known}")
    return np.dtype(DTYPES[code])


def _array(path: Path, index: np.ndarray, offset: int, dtype: str, count: int, name: str) -> tuple[np.ndarray, int]:
    """The array of `count` entries at byte `offset`, and the byte after it."""
    end = offset + count * np.dtype(dtype).itemsize
    if end > index.size:
        raise MeshkitError(
            f"{path}: truncated in the {name}: {count} entries of {np.dtype(dtype).name} end at byte {end}, the file "
            f"at {index.size}"
        )
    return np.frombuffer(index, dtype, count, offset), end


def _check_contiguous(path: Path, lengths: np.ndarray, pointers: np.ndarray, itemsize: int) -> int:
    """The sum of the lengths; MeshkitError when a sequence does not begin where the one before it ends."""
    size = 0
    for start in range(0, lengths.size, BLOCK):
        block = lengths[start : start + BLOCK].astype(np.int64)
        ends = size + np.cumsum(block)
        wrong = np.flatnonzero((block < 0) | (pointers[start : start + BLOCK] != (ends - block) * itemsize))
        if wrong.size:
            at, number = int(wrong[0]), start + int(wrong[0])
            raise MeshkitError(
                f"{path}: sequence {number}: length {block[at]} at byte {pointers[number]}, and the one before it ends "
                f"at byte {(ends[at] - block[at]) * itemsize}: sequences must follow one another"
            )
        size = int(ends[-1])
    return size


def _tokens(path: Path, index: Path, dtype: np.dtype, size: int) -> np.ndarray:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise MeshkitError(f"{path}: cannot be read: {error.strerror}") from None
    if found != size * dtype.itemsize or not size:
        raise MeshkitError(
            f"{path}: {found} bytes, and {index} says {size} ids of {dtype.name} = {size * dtype.itemsize} bytes: the "
            "file is truncated or not the index's"
        )
    return np.memmap(path, dtype, mode="r")


def _falls(documents: np.ndarray) -> bool:
    return bool((np.diff(documents) < 0).any())


def _beside(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(prefix.name + suffix)
