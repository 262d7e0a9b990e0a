"""A preparation gives the same folder for any number of processes, and after any interruption."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from meshkit.data import documents, pieces, workers
from meshkit.data import prepare as preparation
from meshkit.data.pieces import Encoded
from meshkit.data.prepare import prepare
from meshkit.data.tokens import SPLITS
from meshkit.errors import MeshkitError


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of text and of lines, with two bad ones; pieces of 4 KB, some 20 of them."""
    monkeypatch.setattr(pieces.cut, "__defaults__", (4 << 10,))
    root = tmp_path / "corpus"
    root.mkdir()
    for i in range(30):
        (root / f"{i:02}.txt").write_text(f"text {i} — ünïcode\n" * (5 * i), encoding="utf-8")
    lines = [json.dumps({"text": f"line {i}: käse " * (i % 40)}) for i in range(200)]
    lines[50], lines[150] = "{", '{"text": null}'
    (root / "lines.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return root


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        ["text line unicode"] * 4,
        tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False),
    )
    made.save(str(tmp_path / "my.json"))
    return tmp_path / "my.json"


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int, corpus: Path, out: Path, **settings: Any) -> None:
    """A preparation that ends, as if killed, when it has written `after` pieces."""

    def some(*arguments: Any) -> Any:
        yield from itertools.islice(workers.encoded(*arguments), after)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "encoded", some)
        with pytest.raises(KeyboardInterrupt):
            prepare([str(corpus)], out, skip_corrupt=True, **settings)


@pytest.mark.parametrize("of", ["bytes", "tokenizer"])
def test_any_number_of_workers_gives_the_same_folder(of: str, corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = dict(tokenizer=str(tokenizer) if of == "tokenizer" else None, skip_corrupt=True)
    alone = prepare([str(corpus)], tmp_path / "alone", **settings)
    shared = prepare([str(corpus)], tmp_path / "shared", workers=2, **settings)
    assert content(tmp_path / "alone") == content(tmp_path / "shared")
    assert alone.text_bytes == shared.text_bytes > 0
    assert shared.megabytes_a_second > 0
    assert len(alone.skipped) == len(shared.skipped) == 2


@pytest.mark.parametrize("after", [1, 5, 12])
def test_an_interrupted_preparation_goes_on_to_the_same_folder(
    after: int, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare([str(corpus)], tmp_path / "whole", skip_corrupt=True)
    seen: list[int] = []
    interrupt(monkeypatch, after, corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for path in (tmp_path / ".out.partial").glob("*.bin"):
        path.write_bytes(path.read_bytes() + b"what was written after the journal")
    prepare([str(corpus)], tmp_path / "out", skip_corrupt=True, report=lambda done, total: seen.append(done))
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert seen[0] > 0
    assert not (tmp_path / ".out.partial").exists()


def test_what_changed_is_prepared_anew(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file after those that are done may change, as one that was mended; one that is done may not."""
    first = documents.split(documents.find([str(corpus)]), 0.05)[0][0].name
    for changed, goes_on in (("lines.jsonl", True), (first, False)):
        out, seen = tmp_path / f"out-{changed}", list[int]()
        interrupt(monkeypatch, 3, corpus, out)
        path = corpus / changed
        path.write_bytes(path.read_bytes().replace(b"x", b"y"))
        os.utime(path, (1, 1))
        prepare([str(corpus)], out, skip_corrupt=True, report=lambda done, total, seen=seen: seen.append(done))
        prepare([str(corpus)], tmp_path / f"fresh-{changed}", skip_corrupt=True)
        assert content(out) == content(tmp_path / f"fresh-{changed}")
        assert (seen[0] > 0) == goes_on


def test_nothing_of_another_preparation_stays(
    corpus: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, 3, corpus, tmp_path / "out", tokenizer=str(tokenizer))
    assert (tmp_path / ".out.partial/tokenizer.json").exists()
    prepare([str(corpus)], tmp_path / "out", skip_corrupt=True)
    prepare([str(corpus)], tmp_path / "fresh", skip_corrupt=True)
    assert content(tmp_path / "out") == content(tmp_path / "fresh")
    names = [f"{split}{end}" for split in SPLITS for end in (".bin", ".documents.npy")]
    assert sorted(content(tmp_path / "out")) == sorted([*names, "header.json", "skipped.txt"])


def test_what_was_skipped_is_looked_at_again_by_one_who_skips_nothing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, 18, corpus, tmp_path / "out")
    assert (tmp_path / ".out.partial/skipped.txt").stat().st_size
    with pytest.raises(MeshkitError, match=r"lines\.jsonl: line 51: not JSON.*--skip-corrupt"):
        prepare([str(corpus)], tmp_path / "out")


@pytest.mark.parametrize("count", [None, 2])
def test_the_first_corrupt_part_in_order_is_told(count: int | None, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(MeshkitError, match=r"lines\.jsonl: line 51: not JSON.*--skip-corrupt"):
        prepare([str(corpus)], tmp_path / "out", workers=count)
    assert not (tmp_path / "out").exists()


def test_a_file_that_changes_meanwhile_is_told(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = lambda done, total: os.utime(corpus / "29.txt", (1, 1))
    with pytest.raises(MeshkitError, match=r"29\.txt: changed while it was being prepared"):
        prepare([str(corpus)], tmp_path / "out", skip_corrupt=True, report=changes)


def test_two_at_once_do_not_write_one_folder(corpus: Path, tmp_path: Path) -> None:
    def second(done: int, total: int) -> None:
        with pytest.raises(MeshkitError, match=r"\.out\.partial: another process is writing there"):
            prepare([str(corpus)], tmp_path / "out", skip_corrupt=True)

    prepare([str(corpus)], tmp_path / "out", skip_corrupt=True, report=second)


PROGRAM = """
import sys
from meshkit.data import pieces
from meshkit.data.prepare import prepare

if __name__ == "__main__":
    pieces.cut.__defaults__ = (1 << 14,)
    text, out, tokenizer = sys.argv[1:]
    said = lambda done, total: print(done, flush=True)
    prepare([text], out, tokenizer, workers=2, report=said)
"""


def test_a_killed_preparation_ends_its_workers_and_goes_on(tokenizer: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "text.jsonl", tmp_path / "out"
    text.write_text("\n".join(json.dumps({"text": f"a line of text {i} " * 20}) for i in range(5_000)))
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), str(text), str(out), str(tokenizer)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) > 50_000:
                break
        child.send_signal(signal.SIGKILL)
    assert not out.exists()
    until = time.monotonic() + 30
    while _alive(child.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert not _alive(child.pid), "a worker outlived its parent"
    again = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert int(again.stdout.split()[0]) > 50_000
    prepare([str(text)], tmp_path / "whole", str(tokenizer))
    assert content(out) == content(tmp_path / "whole")


def _alive(group: int) -> bool:
    """Whether a process of the group is left that is not dead."""
    found = subprocess.run(["ps", "-o", "stat=", "-g", str(group)], capture_output=True, text=True, check=False)
    return any(not state.startswith("Z") for state in found.stdout.split())


def test_a_worker_that_ends_by_itself_is_told(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshkit.data.workers._encode", _end)
    with pytest.raises(MeshkitError, match=r"a process ended by itself, at .* fewer --workers"):
        prepare([str(corpus)], tmp_path / "out", workers=2, skip_corrupt=True)


def _end(piece: pieces.Piece) -> Encoded:
    os._exit(9)
