"""JSON lines: every text a document, and what cannot be read named by file and line."""

import json
from pathlib import Path
from typing import Any

import pytest

from meshkit.cli import main
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
def test_a_bad_line_is_named_and_nothing_written(line: str, at: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [*lines()[:at], line, *lines()[at:]])
    with pytest.raises(MeshkitError) as error:
        prepare([str(path)], tmp_path / "out", held_out=0.2)
    assert f"{path}: line {at + 1}: {BAD[line]}" in str(error.value)
    assert list(tmp_path.iterdir()) == [path]


def test_bad_lines_are_skipped_if_asked(tmp_path: Path, capsys: Any) -> None:
    path = write(tmp_path / "a.jsonl", [*lines()[:3], *BAD, *lines()[3:]])
    assert main(["data", "prepare", str(path), "--out", str(tmp_path / "out"), "--skip-bad"]) == 0
    assert documents(tmp_path / "out") == TEXTS
    said = capsys.readouterr().err
    assert [f"line {number}: " in said for number in range(3, 10)] == [False, *[True] * 5, False]


def test_a_line_that_cannot_be_cut_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines(["x" * 100_000]))
    with pytest.raises(MeshkitError, match="its first line is too long"):
        prepare([str(path)], tmp_path / "out")
