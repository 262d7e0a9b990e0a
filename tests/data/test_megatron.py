"""Megatron's token files are read as they are; what is wrong with one is named by file and field."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshkit.data import megatron
from meshkit.errors import MeshkitError

CODES = {np.uint8: 1, np.int8: 2, np.int16: 3, np.int32: 4, np.int64: 5, np.uint16: 8}
LENGTHS, DOCUMENTS = [3, 5, 0, 4, 8], [0, 2, 3, 5]  # documents of 8, 0 and 12 ids


def mapped(prefix: Path, kind: Any = np.uint16, with_modes: bool = False, **fields: Any) -> None:
    """The format of today; `fields` replace what stands in the index."""
    size = np.dtype(kind).itemsize
    ids = np.arange(sum(LENGTHS)).astype(kind)
    prefix.with_name(prefix.name + ".bin").write_bytes(ids.tobytes())
    pointers = np.cumsum([0, *LENGTHS[:-1]]) * size
    parts = {
        "magic": b"MMIDIDX\x00\x00",
        "version": struct.pack("<Q", 1),
        "dtype": struct.pack("<B", CODES[kind]),
        "counts": struct.pack("<QQ", len(LENGTHS), len(DOCUMENTS)),
        "lengths": np.array(LENGTHS, "<i4").tobytes(),
        "pointers": pointers.astype("<i8").tobytes(),
        "documents": np.array(DOCUMENTS, "<i8").tobytes(),
        "modes": b"\0" * len(LENGTHS) * with_modes,
    }
    prefix.with_name(prefix.name + ".idx").write_bytes(b"".join((parts | fields).values()))


def legacy(prefix: Path, kind: Any = np.int32, **fields: Any) -> None:
    """The older format."""
    size = np.dtype(kind).itemsize
    prefix.with_name(prefix.name + ".bin").write_bytes(np.arange(sum(LENGTHS)).astype(kind).tobytes())
    parts = {
        "magic": b"TNTIDX\x00\x00",
        "version": struct.pack("<Q", 1),
        "dtype": struct.pack("<QQ", CODES[kind], size),
        "counts": struct.pack("<QQQ", len(LENGTHS), len(LENGTHS), len(DOCUMENTS)),
        "dimensions": np.arange(len(LENGTHS) + 1, dtype="<i8").tobytes(),
        "pointers": np.cumsum([0, *LENGTHS]).astype("<i8").tobytes(),
        "lengths": np.array(LENGTHS, "<i8").tobytes(),
        "documents": np.array(DOCUMENTS, "<i8").tobytes(),
    }
    prefix.with_name(prefix.name + ".idx").write_bytes(b"".join((parts | fields).values()))


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("write", [mapped, legacy])
def test_ids_and_documents_are_those_of_the_files(dtype: Any, write: Callable[..., None], tmp_path: Path) -> None:
    write(tmp_path / "some.corpus_text", dtype)
    train, held = megatron.split(tmp_path / "some.corpus_text", 0.5)
    assert (train.tokens.tolist(), held.tokens.tolist()) == ([*range(8)], [*range(8, 20)])
    assert (train.documents.tolist(), held.documents.tolist()) == ([0], [0, 0])
    assert isinstance(train.tokens, np.memmap)
    assert train.tokens.dtype == dtype
    assert (train.vocab, train.end, train.tokenizer) == (None, None, "")


def test_modes_of_sequences_are_no_error(tmp_path: Path) -> None:
    mapped(tmp_path / "m", with_modes=True)
    assert megatron.split(tmp_path / "m", 0.5)[0].tokens.size == 8


def test_the_only_document_is_cut(tmp_path: Path) -> None:
    mapped(tmp_path / "m", counts=struct.pack("<QQ", 5, 2), documents=np.array([0, 5], "<i8").tobytes())
    train, held = megatron.split(tmp_path / "m", 0.05)
    assert (train.tokens.size, held.tokens.size) == (19, 1)
    assert (train.documents.tolist(), held.documents.tolist()) == ([0], [0])


def test_a_long_last_document_is_cut_sooner_than_too_much_held_out(tmp_path: Path) -> None:
    mapped(tmp_path / "m")
    train, held = megatron.split(tmp_path / "m", 0.1)
    assert (train.tokens.size, held.tokens.size) == (18, 2)
    assert (train.documents.tolist(), held.documents.tolist()) == ([0, 8, 8], [0])


def test_prefix_and_both_files_mean_the_same(tmp_path: Path) -> None:
    mapped(tmp_path / "a.b")
    for path in ("a.b", "a.b.idx", "a.b.bin"):
        assert megatron.prefix_of(tmp_path / path) == tmp_path / "a.b"
    assert megatron.prefix_of(tmp_path / "a") is None


WRONG: dict[str, tuple[Callable[..., None], dict[str, Any], str]] = {
    "magic": (mapped, {"magic": b"MMIDIDY\x00\x00"}, r"m\.idx: magic b'MMIDIDY"),
    "version": (mapped, {"version": struct.pack("<Q", 2)}, r"m\.idx: version 2: known is 1"),
    "float": (mapped, {"dtype": b"\x06"}, r"m\.idx: dtype 6 is none of ids: known are 1 \(uint8\), .*8 \(uint16\)"),
    "dtype": (mapped, {"dtype": b"\x63"}, r"m\.idx: dtype 99"),
    "counts": (
        mapped,
        {"counts": struct.pack("<QQ", 1 << 40, 4)},
        r"m\.idx: truncated in the sequence lengths: 109951",
    ),
    "more": (mapped, {"modes": b"abc"}, r"m\.idx: 3 bytes follow the document index"),
    "pointers": (mapped, {"pointers": bytes(40)}, r"m\.idx: sequence 1: length 5 at byte 0, .* ends at byte 6"),
    "lengths": (
        mapped,
        {"lengths": np.array([3, -5, 0, 4, 8], "<i4").tobytes()},
        r"m\.idx: sequence 1: length -5",
    ),
    "documents": (mapped, {"documents": np.array([0, 2, 1, 5], "<i8").tobytes()}, "document index: it must rise"),
    "last": (mapped, {"documents": np.array([0, 2, 3, 4], "<i8").tobytes()}, "document index: .* sequences, 5"),
    "itemsize": (legacy, {"dtype": struct.pack("<QQ", 4, 2)}, "bytes of an id: 2, and its dtype int32 has 4"),
    "rows": (legacy, {"counts": struct.pack("<QQQ", 5, 9, 4)}, "5 sequences have 9 lengths"),
    "places": (legacy, {"pointers": bytes(48)}, r"m\.idx: sequence 1: length 5 at byte 0"),
    "old version": (legacy, {"version": struct.pack("<Q", 7)}, "version 7"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str, tmp_path: Path) -> None:
    write, fields, rule = WRONG[case]
    write(tmp_path / "m", **fields)
    with pytest.raises(MeshkitError, match=rule):
        megatron.split(tmp_path / "m", 0.05)


@pytest.mark.parametrize("write", [mapped, legacy])
def test_any_truncation_is_named(write: Callable[..., None], tmp_path: Path) -> None:
    write(tmp_path / "m")
    for name in ("m.idx", "m.bin"):
        whole = (tmp_path / name).read_bytes()
        for size in range(len(whole)):
            (tmp_path / name).write_bytes(whole[:size])
            with pytest.raises(MeshkitError, match=r"m\.(idx|bin)"):
                megatron.split(tmp_path / "m", 0.05)
        (tmp_path / name).write_bytes(whole)
    (tmp_path / "m.bin").unlink()
    with pytest.raises(MeshkitError, match=r"m\.bin: cannot be read: No such file"):
        megatron.split(tmp_path / "m", 0.05)
