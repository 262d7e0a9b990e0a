"""Parquet files and folders of `datasets`: every row a document; what is corrupt named by file and group."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from meshkit.data import documents, pieces
from meshkit.data.prepare import prepare
from meshkit.data.tables import groups
from meshkit.data.text import tokenizer_of
from meshkit.data.tokens import SPLITS, TokenFile
from meshkit.errors import MeshkitError

TEXTS = [f"Row {n}: käse\n" * (n % 7 + 1) for n in range(100)]


def read(folder: Path, *splits: str) -> list[str]:
    found = []
    for split in splits or SPLITS:
        file = TokenFile.open(folder, split)
        ends = [*file.documents[1:], len(file.tokens)]
        found += [tokenizer_of(folder).decode(file.tokens[a:b]) for a, b in zip(file.documents, ends, strict=True)]
    return found


def table(texts: list[Any] = TEXTS, kind: Any = None) -> pa.Table:
    return pa.table({"id": list(range(len(texts))), "text": pa.array(texts, kind)})


def as_parquet(path: Path, texts: list[Any] = TEXTS, kind: Any = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table(texts, kind), path, row_group_size=30, write_page_checksum=True, compression="none")
    return path


def as_arrow(path: Path, texts: list[Any] = TEXTS, kind: Any = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = table(texts, kind)
    with path.open("wb") as file, pa.ipc.new_stream(file, made.schema) as stream:
        stream.write_table(made, max_chunksize=30)
    return path


def saved(folder: Path, *parts: list[str]) -> Path:
    """What `save_to_disk` writes of one split."""
    names = [f"data-{n:05}-of-{len(parts):05}.arrow" for n in range(len(parts))]
    for name, texts in zip(names, parts, strict=True):
        as_arrow(folder / name, texts)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    (folder / "cache-0123.arrow").write_bytes(b"none of the data")
    return folder


KINDS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
FORMATS = {"a.parquet": as_parquet, "a.arrow": as_arrow}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_every_row_is_a_document(name: str, kind: Any, share: float, tmp_path: Path) -> None:
    """The one file is cut between rows, inside a group too."""
    if kind == pa.string_view() and name == "a.parquet":
        kind = pa.string()
    path = FORMATS[name](tmp_path / name, TEXTS, kind)
    summary = prepare([str(path)], tmp_path / "out", held_out=share)
    assert read(tmp_path / "out") == TEXTS
    assert TokenFile.open(tmp_path / "out", "held_out").documents.size == round(100 * share)
    assert summary.bytes == path.stat().st_size


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", [1, 500, 10_000])
def test_wherever_it_is_cut_every_row_is_read_once(
    name: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces.cut, "__defaults__", (size,))
    path, seen = FORMATS[name](tmp_path / name), list[tuple[int, int]]()
    prepare([str(path)], tmp_path / "out", held_out=0.45, report=lambda *at: seen.append(at))
    assert read(tmp_path / "out") == TEXTS
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)


def test_the_smallest_of_a_few_files_is_cut(tmp_path: Path) -> None:
    for number, texts in enumerate((TEXTS[:40], TEXTS[40:70], TEXTS[70:])):
        as_parquet(tmp_path / f"in/{number}.parquet", texts)
    prepare([str(tmp_path / "in")], tmp_path / "out", held_out=0.1)
    assert sorted(read(tmp_path / "out")) == sorted(TEXTS)
    assert 8 <= len(read(tmp_path / "out", "held_out")) <= 12


def test_a_file_of_one_row_is_held_out_whole(tmp_path: Path) -> None:
    as_parquet(tmp_path / "in/one.parquet", ["one " * 100])
    as_parquet(tmp_path / "in/two.parquet", TEXTS)
    prepare([str(tmp_path / "in")], tmp_path / "out", held_out=0.01)
    assert read(tmp_path / "out") == [*TEXTS, "one " * 100]


def test_many_files_are_split_whole(tmp_path: Path) -> None:
    for number in range(10):
        as_parquet(tmp_path / f"in/{number}.parquet", TEXTS[10 * number : 10 * number + 10])
    prepare([str(tmp_path / "in")], tmp_path / "out", held_out=0.2)
    assert sorted(read(tmp_path / "out")) == sorted(TEXTS)
    assert len(read(tmp_path / "out", "held_out")) == 20


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("texts", "column", "rule"),
    [
        (TEXTS, "txt", r"has no column 'txt' \(--column\); did you mean 'text'"),
        (TEXTS, "id", r"column 'id' holds int64, not strings"),
        ([[text] for text in TEXTS], "text", r"column 'text' holds list<.*>, not strings"),
    ],
)
def test_a_wrong_column_is_told_at_once(name: str, texts: list[Any], column: str, rule: str, tmp_path: Path) -> None:
    path = FORMATS[name](tmp_path / name, texts)
    with pytest.raises(MeshkitError, match=rule):
        prepare([str(path)], tmp_path / "out", column=column, skip_corrupt=True)


def damage_group(path: Path) -> None:
    data = path.read_bytes()
    at = data.index(TEXTS[35].encode())
    path.write_bytes(data[:at] + b"\xff" + data[at + 1 :])


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_between(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


DAMAGES: dict[str, tuple[Callable[[Path], None], str, Callable[[Path], Path], int]] = {
    "row group": (damage_group, "row group 1: .+", as_parquet, 70),
    "no footer": (cut_off, ".+", as_parquet, 0),
    "half a file": (cut_in_half, ".+", as_parquet, 0),
    "batch": (damage_group, "batch 1: .+", as_arrow, 70),
    "half a stream": (cut_in_half, "batch [12]: .+", as_arrow, -1),
    "a stream without its end": (cut_between, "batch 4: truncated: the end of the stream is missing", as_arrow, 100),
    "no parquet": (lambda p: p.write_bytes(b"") and None, "truncated: 0 bytes", as_parquet, 0),
    "no stream": (lambda p: p.write_bytes(b"no stream at all") and None, ".+", as_arrow, 0),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_corrupt_is_named_and_skipped_if_asked(damage: str, tmp_path: Path) -> None:
    spoil, rule, write, left = DAMAGES[damage]
    path = write(tmp_path / ("a.parquet" if write is as_parquet else "a.arrow"))
    spoil(path)
    (tmp_path / "b.txt").write_text("held")
    (tmp_path / "c.txt").write_text("more")
    every = [str(path), f"{tmp_path}/*.txt"]
    with pytest.raises(MeshkitError, match=rf"{path}: {rule}.*--skip-corrupt"):
        prepare(every, tmp_path / "out")
    summary = prepare(every, tmp_path / "out", skip_corrupt=True, held_out=0.001)
    assert len(summary.skipped) == 1
    assert str(path) in summary.skipped[0]
    kept = [text for text in read(tmp_path / "out") if text not in ("held", "more")]
    assert kept == [text for text in TEXTS if text in kept]
    assert len(kept) == left or (left < 0 and len(kept) in (30, 60))


@pytest.mark.parametrize("name", FORMATS)
def test_rows_without_a_text_are_corrupt(name: str, tmp_path: Path) -> None:
    path = FORMATS[name](tmp_path / name, [*TEXTS[:40], None, *TEXTS[40:]])
    group = "row group" if name == "a.parquet" else "batch"
    with pytest.raises(MeshkitError, match=rf"{name}: {group} 1: row 40: its text is null"):
        prepare([str(path)], tmp_path / "out")
    prepare([str(path)], tmp_path / "out", skip_corrupt=True)
    assert read(tmp_path / "out") == TEXTS


def test_one_row_and_none_cannot_be_split(tmp_path: Path) -> None:
    for texts, rule in ((["one"], "1 row: too few to hold some out"), ([], "too few to hold some out")):
        path = as_parquet(tmp_path / "a.parquet", texts, pa.string())
        with pytest.raises(MeshkitError, match=rule):
            prepare([str(path)], tmp_path / "out")


# --- folders of `datasets` ------------------------------------------------------------------------


def test_a_saved_folder_is_its_arrow_files(tmp_path: Path) -> None:
    folder = saved(tmp_path / "in/corpus", TEXTS[:60], TEXTS[60:])
    (tmp_path / "in/beside.txt").write_text("beside")
    prepare([str(tmp_path / "in")], tmp_path / "out")
    assert sorted(read(tmp_path / "out")) == sorted([*TEXTS, "beside"])
    assert groups(folder / "data-00000-of-00002.arrow", "text") == ([0, 30, 60], None)


def splits(folder: Path, **parts: list[str]) -> Path:
    for name, texts in parts.items():
        saved(folder / name, texts)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(parts)}))
    return folder


@pytest.mark.parametrize("held", ["validation", "test"])
def test_a_dict_keeps_its_splits(held: str, tmp_path: Path) -> None:
    others = {"test": ["never read"]} if held == "validation" else {"other": ["never read"]}
    folder = splits(tmp_path / "in", train=TEXTS[:60], **{held: TEXTS[60:]}, **others)
    prepare([str(folder)], tmp_path / "out", held_out=0.5)
    assert read(tmp_path / "out", "train") == TEXTS[:60]
    assert read(tmp_path / "out", "held_out") == TEXTS[60:]


def test_a_dict_of_train_alone_is_cut(tmp_path: Path) -> None:
    prepare([str(splits(tmp_path / "in", train=TEXTS))], tmp_path / "out", held_out=0.25)
    assert read(tmp_path / "out", "held_out") == TEXTS[75:]


def test_a_dict_whose_held_out_split_is_empty_is_told(tmp_path: Path) -> None:
    folder = splits(tmp_path / "in", train=TEXTS)
    saved(folder / "test", [])
    as_arrow(folder / "test/data-00000-of-00001.arrow", [], pa.string())
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(MeshkitError, match="nothing is in the held_out split"):
        prepare([str(folder)], tmp_path / "out")


MISTAKES: dict[str, tuple[str, str, str]] = {
    "no train": ("dataset_dict.json", '{"splits": ["validation"]}', r"none is called 'train'"),
    "no list": ("dataset_dict.json", '{"splits": 3}', r"dataset_dict\.json: splits is 3, not a list"),
    "no JSON": ("train/state.json", "{", r"state\.json: cannot be read as JSON"),
    "no object": ("train/state.json", "[]", r"state\.json: _data_files is None, not a list"),
    "no file": ("train/state.json", '{"_data_files": [{"filename": "gone"}]}', r"_data_files: 'gone' is no file"),
    "no name": ("train/state.json", '{"_data_files": [3]}', r"_data_files: None is no file"),
    "indices": (
        "train/state.json",
        '{"_data_files": [], "_indices_data_files": [{"filename": "i.arrow"}]}',
        r"_indices_data_files: its rows are chosen by an index",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_malformed_saved_folder_is_told(mistake: str, tmp_path: Path) -> None:
    name, content, rule = MISTAKES[mistake]
    folder = splits(tmp_path / "in", train=TEXTS)
    (folder / name).write_text(content)
    with pytest.raises(MeshkitError, match=rule):
        documents.find([str(folder)])


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_parquet(tmp_path / "a.parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MeshkitError, match=r"meshkit\[arrow\]"):
        prepare([str(path)], tmp_path / "out")
