"""JSON lines: every text a document, and what cannot be read named by file and line."""

import json
from pathlib import Path
from typing import Any

import pytest

from meshkit.cli import main
from meshkit.data.lines import texts
from meshkit.data.prepare import prepare
from meshkit.data.text import tokenizer_of
from meshkit.data.tokens import TokenFile
from meshkit.errors import MeshkitError

TEXTS = [f"Text {n}: käse\n and {n}." for n in range(20)]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def lines(texts: list[str] = TEXTS) -> list[str]:
    return [json.dumps({"id": n, "text": text}) for n, text in enumerate(texts)]


def documents(folder: Path) -> list[str]:
    found = []
    for split in ("train", "held_out"):
        file = TokenFile.open(folder, split)
        ends = [*file.documents[1:], len(file.tokens)]
        found += [tokenizer_of(folder).decode(file.tokens[a:b]) for a, b in zip(file.documents, ends, strict=True)]
    return found


def test_every_line_is_a_document(tmp_path: Path) -> None:
    """Empty lines are none; the one file is cut between lines."""
    path = write(tmp_path / "a.jsonl", [*lines()[:9], "", "  ", *lines()[9:]])
    prepare([str(path)], tmp_path / "out", held_out=0.2)
    assert documents(tmp_path / "out") == TEXTS
    assert TokenFile.open(tmp_path / "out", "held_out").documents.size in (3, 4, 5)


BAD = {
    '{"text": "cut': "not JSON",
    '{"txt": "no text"}': "not an object with a 'text'",
    '["a list"]': "not an object with a 'text'",
    '{"text": 7}': "'text' is a int, not a string",
    '{"text": "half \\ud800"}': "not UTF-8",
}


@pytest.mark.parametrize("line", BAD)
@pytest.mark.parametrize("at", [2, 19])
def test_a_bad_line_is_named_and_no_folder_made(line: str, at: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [*lines()[:at], line, *lines()[at:]])
    with pytest.raises(MeshkitError) as error:
        prepare([str(path)], tmp_path / "out", held_out=0.2)
    assert f"{path}: line {at + 1}: {BAD[line]}" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_bad_lines_are_skipped_if_asked(tmp_path: Path, capsys: Any) -> None:
    path = write(tmp_path / "a.jsonl", [*lines()[:3], *BAD, *lines()[3:]])
    assert main(["data", "prepare", str(path), "--out", str(tmp_path / "out"), "--skip-corrupt"]) == 0
    assert documents(tmp_path / "out") == TEXTS
    said, listed = capsys.readouterr().err, (tmp_path / "out/skipped.txt").read_text()
    assert said.splitlines()[-5:] == [f"skipped: {line}" for line in listed.splitlines()]
    assert [f"line {number}: " in said for number in range(3, 10)] == [False, *[True] * 5, False]


def test_a_line_that_cannot_be_cut_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines(["x" * 100_000]))
    with pytest.raises(MeshkitError, match="its first line is too long"):
        prepare([str(path)], tmp_path / "out")


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
@pytest.mark.parametrize("end", ["", "\n"])
def test_wherever_a_file_is_cut_every_line_is_read_once(size: int, end: str, tmp_path: Path) -> None:
    """Lines longer than a stretch, empty ones, and bad ones, which keep their numbers."""
    path = write(tmp_path / "a.jsonl", [*lines()[:4], "", "{", *lines(["long " * 100]), *lines()[4:]])
    path.write_bytes(path.read_bytes() + end.encode())
    whole = range(path.stat().st_size)
    with path.open("rb") as file:
        cuts = [whole[at : at + size] for at in whole[::size]]
        found = [str(text) for cut in cuts for text in texts(path, file, cut, "text")]
    bad = f"{path}: line 6: not JSON"
    assert [text if bad not in text else bad for text in found] == [*TEXTS[:4], bad, "long " * 100, *TEXTS[4:]]


def test_the_field_of_the_text_can_be_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [json.dumps({"text": 1, "body": text}) for text in TEXTS])
    prepare([str(path)], tmp_path / "out", column="body")
    assert documents(tmp_path / "out") == TEXTS


def test_a_line_too_deep_to_read_is_bad(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [*lines(), "[" * 200_000])
    with pytest.raises(MeshkitError, match="line 21: not JSON"):
        prepare([str(path)], tmp_path / "out")
