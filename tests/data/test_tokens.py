"""A prepared folder opens whole, or the error names the file and what is wrong with it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshkit.data.tokens import SPLITS, TokenFile
from meshkit.data.writer import TokenWriter
from meshkit.errors import MeshkitError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten documents a split."""
    with TokenWriter(tmp_path / "tokens", 257, 256) as writer:
        for split in SPLITS:
            for i in range(10):
                writer.add(split, [np.arange(i)])
        writer.finish()
    return tmp_path / "tokens"


def test_tokens_are_mapped_not_read(folder: Path) -> None:
    file = TokenFile.open(str(folder), "train")
    assert isinstance(file.tokens, np.memmap)
    assert isinstance(file.documents, np.memmap)
    assert (file.vocab, file.end, file.tokenizer) == (257, 256, "bytes")
    assert file.documents.tolist() == [i * (i + 1) // 2 for i in range(10)]


def test_bytes_on_disk_are_little_endian_uint16(folder: Path) -> None:
    assert (folder / "train.bin").read_bytes()[:4] == b"\x00\x01\x00\x00"


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("ending", [".bin", ".documents.npy"])
@pytest.mark.parametrize("lost", [1, 2, 8, None])
def test_truncated_files_are_named(folder: Path, split: str, ending: str, lost: int | None) -> None:
    path = folder / f"{split}{ending}"
    path.write_bytes(path.read_bytes()[: -lost if lost else 0])
    with pytest.raises(MeshkitError, match=f"{split}{ending}"):
        TokenFile.open(folder, split)


def test_files_of_another_preparation_are_named(folder: Path) -> None:
    with (folder / "train.bin").open("ab") as file:
        file.write(b"\0\0")
    with pytest.raises(MeshkitError, match=r"train\.bin: 112 bytes, .* says 55 tokens of uint16 = 110 bytes"):
        TokenFile.open(folder, "train")
    np.save(folder / "held_out.documents.npy", np.arange(11))
    with pytest.raises(MeshkitError, match=r"held_out\.documents\.npy: int64 \[11\].*int64 \[10\]"):
        TokenFile.open(folder, "held_out")


@pytest.mark.parametrize("name", ["header.json", "train.bin", "train.documents.npy"])
def test_missing_files_are_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(MeshkitError, match=name):
        TokenFile.open(folder, "train")


def test_a_missing_folder_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(MeshkitError, match=r"no-such: no such folder.*meshkit data prepare"):
        TokenFile.open(tmp_path / "no-such", "train")


def test_an_unknown_split_names_the_nearest(folder: Path) -> None:
    with pytest.raises(MeshkitError, match="did you mean 'held_out'"):
        TokenFile.open(folder, "heldout")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.update(version=2), "version 2 of the format, and this meshkit reads version 1"),
        (lambda h: h.update(format="other"), "not a token header"),
        (lambda h: h.update(dtype="int7"), "dtype 'int7'; known: uint16, uint32"),
        (lambda h: h.update(vocab="many"), "malformed header"),
        (lambda h: h.update(splits=[]), "malformed header"),
        (lambda h: h["splits"].pop("train"), "malformed header.*train"),
        (lambda h: h["splits"]["train"].pop("tokens"), "malformed header.*tokens"),
        (lambda h: h.pop("end"), "malformed header.*end"),
        (lambda h: h.update(tokenizer="gone.json"), "gone.json: missing"),
    ],
)
def test_header_mistakes_are_named(folder: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    header = json.loads((folder / "header.json").read_text())
    change(header)
    (folder / "header.json").write_text(json.dumps(header))
    with pytest.raises(MeshkitError, match=message):
        TokenFile.open(folder, "train")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_a_garbled_header_is_named(folder: Path, content: bytes) -> None:
    (folder / "header.json").write_bytes(content)
    with pytest.raises(MeshkitError, match=r"header\.json"):
        TokenFile.open(folder, "train")


def test_preparing_and_counting_start_no_jax() -> None:
    code = "import sys, meshkit.data.prepare, meshkit.data.baselines; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
