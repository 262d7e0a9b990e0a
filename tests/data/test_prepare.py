"""Laws of preparation: nothing of the text is lost, documents and splits are stable, folders whole or absent."""

import json
import multiprocessing
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshkit.data import documents
from meshkit.data.prepare import prepare, prepare_cached
from meshkit.data.text import ByteTokenizer, FileTokenizer, tokenizer_of
from meshkit.data.tokens import SPLITS, TokenFile
from meshkit.data.writer import TokenWriter
from meshkit.errors import MeshkitError


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Forty files of different sizes in two levels of folders, one empty, one that is not UTF-8."""
    root = tmp_path / "corpus"
    for i in range(38):
        path = root / f"part{i % 3}" / f"{i:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"document {i} — ünïcode\n" * (i + 1), encoding="utf-8")
    (root / "empty.txt").write_bytes(b"")
    (root / "binary.bin").write_bytes(bytes(range(256)))
    return root


def texts(folder: Path, split: str) -> list[bytes]:
    """The documents of a split of byte tokens."""
    file = TokenFile.open(folder, split)
    ends = [*file.documents[1:], file.tokens.size]
    pieces = [file.tokens[start:end] for start, end in zip(file.documents, ends, strict=True)]
    assert all(piece[-1] == file.end and not (piece[:-1] == file.end).any() for piece in pieces)
    return [piece[:-1].astype(np.uint8).tobytes() for piece in pieces]


def test_every_document_comes_back_byte_for_byte_in_exactly_one_split(corpus: Path, tmp_path: Path) -> None:
    summary = prepare([str(corpus)], tmp_path / "out")
    found = sorted(text for split in SPLITS for text in texts(tmp_path / "out", split))
    assert found == sorted(p.read_bytes() for p in corpus.rglob("*") if p.is_file() and p.stat().st_size)
    assert (summary.files, summary.empty) == (40, 1)
    assert "40 files" in str(summary)
    assert "1 of them empty" in str(summary)


def test_documents_larger_than_a_read_come_back(tmp_path: Path) -> None:
    big = np.random.default_rng(0).integers(0, 256, (3 << 20) + 5, dtype=np.uint8).tobytes()
    (tmp_path / "big").write_bytes(big)
    (tmp_path / "small").write_bytes(b"small")
    prepare([str(tmp_path / "big"), str(tmp_path / "small")], tmp_path / "out")
    assert texts(tmp_path / "out", "train") == [big]


def test_the_folder_is_a_function_of_the_files_alone(corpus: Path, tmp_path: Path) -> None:
    prepare([str(corpus)], tmp_path / "a")
    moved = corpus.rename(tmp_path / "elsewhere")
    for path in moved.rglob("*"):
        os.utime(path, (1, 1))
    prepare([str(moved)], tmp_path / "b")
    for name in ("header.json", *(f"{s}{end}" for s in SPLITS for end in (".bin", ".documents.npy"))):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_the_order_and_repetition_of_entries_do_not_matter(corpus: Path) -> None:
    entries = [str(corpus / "part0"), str(corpus / "part1"), str(corpus / "part2" / "*.txt")]
    once = documents.find(entries)
    assert documents.find([*reversed(entries), *entries]) == once
    assert [d.name for d in once] == sorted(d.name for d in once)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3, 0.5, 0.9, 0.99])
def test_the_held_out_share_is_near_what_was_asked(corpus: Path, share: float) -> None:
    found = documents.find([str(corpus)])
    train, held = documents.split(found, share)
    assert train
    assert held
    assert sorted(train + held) == [d for d in found if d.size]
    largest, total = max(d.size for d in found), sum(d.size for d in found)
    assert abs(sum(d.size for d in held) - share * total) <= largest


def test_the_held_out_are_spread_over_all_names(tmp_path: Path) -> None:
    for i in range(200):
        (tmp_path / f"{i:03}").write_bytes(b"equal")
    held = [int(d.name) for d in documents.split(documents.find([str(tmp_path)]), 0.2)[1]]
    assert len(held) == 40
    assert min(np.bincount(np.array(held) // 50, minlength=4)) >= 4


def test_new_files_move_few_old_ones(corpus: Path) -> None:
    before = {d.name for d in documents.split(documents.find([str(corpus)]), 0.3)[1]}
    (corpus / "new.txt").write_text("new")
    after = {d.name for d in documents.split(documents.find([str(corpus)]), 0.3)[1]}
    assert len(before ^ after) <= 3


def test_two_files_of_any_sizes_give_one_to_each_split(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10_000)
    (tmp_path / "b").write_bytes(b"y")
    for share in (0.001, 0.5, 0.9):
        train, held = documents.split(documents.find([str(tmp_path)]), share)
        assert ([d.name for d in train], [d.name for d in held]) in ((["a"], ["b"]), (["b"], ["a"]))


def test_a_single_file_is_cut_at_a_line_end(tmp_path: Path) -> None:
    text = b"".join(b"line %d\n" % i for i in range(1000))
    (tmp_path / "one.txt").write_bytes(text)
    prepare([str(tmp_path / "one.txt")], tmp_path / "out", held_out=0.1)
    (train,), (held,) = (texts(tmp_path / "out", split) for split in SPLITS)
    assert train + held == text
    assert train.endswith(b"\n")
    assert 0.1 * len(text) <= len(held) <= 0.1 * len(text) + 10


def test_two_bytes_are_enough_and_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "tiny").write_bytes(b"ab")
    prepare([str(tmp_path / "tiny")], tmp_path / "out")
    assert [texts(tmp_path / "out", split) for split in SPLITS] == [[b"a"], [b"b"]]
    (tmp_path / "tiny").write_bytes(b"a")
    with pytest.raises(MeshkitError, match=r"1 files hold 1 bytes"):
        prepare([str(tmp_path / "tiny")], tmp_path / "again")


def test_stdlib_names_pythons_sources() -> None:
    names = {d.name for d in documents.find(["{stdlib}/*.py"])}
    assert names == {p.name for p in Path(sysconfig.get_paths()["stdlib"]).glob("*.py")}


def test_globs_descend(corpus: Path) -> None:
    assert len(documents.find([f"{corpus}/**/*.txt"])) == 39
    assert documents.find([f"{corpus}/**"]) == documents.find([str(corpus)])


@pytest.mark.parametrize("entry", ["nothing-here.txt", "nothing-*.txt", "no/folder/**/*.py"])
def test_an_entry_that_matches_nothing_is_named(entry: str) -> None:
    with pytest.raises(MeshkitError, match="matches no file") as caught:
        documents.find(["{stdlib}/os.py", entry])
    assert repr(entry) in str(caught.value)


def test_no_entry_at_all_is_an_error() -> None:
    with pytest.raises(MeshkitError, match=r"data\.text names nothing"):
        documents.find([])


def test_links_to_nowhere_and_pipes_are_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(MeshkitError, match=r"gone: cannot be read: No such file"):
        documents.find([str(tmp_path)])
    (tmp_path / "link").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MeshkitError, match=r"pipe: not a regular file"):
        documents.find([str(tmp_path)])


def test_progress_ends_at_the_whole(corpus: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    prepare([str(corpus)], tmp_path / "out", report=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == sum(p.stat().st_size for p in corpus.rglob("*") if p.is_file())


def test_prepare_keeps_its_hands_off_what_is_there(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.md").write_text("mine")
    with pytest.raises(MeshkitError, match=r"out: already there"):
        prepare([str(corpus)], out)
    assert [p.name for p in out.iterdir()] == ["notes.md"]


def test_a_prepare_interrupted_before_anything_is_sure_leaves_nothing(corpus: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    place = tmp_path / "place"
    with pytest.raises(KeyboardInterrupt):
        prepare([str(corpus)], place / "out", report=interrupt)
    assert list(place.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(MeshkitError, match=r"file/out: cannot be written"):
        prepare([str(corpus)], tmp_path / "file" / "out")


def test_the_cache_is_used_again_and_follows_the_files(corpus: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = prepare_cached([str(corpus)], cache)
    made = (first / "header.json").stat().st_mtime_ns
    assert prepare_cached([str(corpus)], cache) == first
    assert (first / "header.json").stat().st_mtime_ns == made
    assert prepare_cached([str(corpus)], cache, held_out=0.2) != first
    (corpus / "part0" / "00.txt").write_text("changed")
    assert prepare_cached([str(corpus)], cache) != first


def test_a_damaged_cache_is_made_again(corpus: Path, tmp_path: Path) -> None:
    folder = prepare_cached([str(corpus)], tmp_path / "cache")
    whole = (folder / "train.bin").read_bytes()
    (folder / "train.bin").write_bytes(whole[:-2])
    assert prepare_cached([str(corpus)], tmp_path / "cache") == folder
    assert (folder / "train.bin").read_bytes() == whole
    assert list((tmp_path / "cache").iterdir()) == [folder]


def _prepare_at_once(barrier: Any, corpus: Path, cache: Path, results: Any) -> None:
    barrier.wait()
    folder = prepare_cached([str(corpus)], cache)
    results.put((folder, TokenFile.open(folder, "train").tokens.size))


def test_processes_that_prepare_the_same_text_at_once_agree(corpus: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(4), context.Queue()
    arguments = (barrier, corpus, tmp_path / "cache", results)
    processes = [context.Process(target=_prepare_at_once, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    seen = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(60)
    assert [p.exitcode for p in processes] == [0] * 4
    ((folder, _),) = seen
    assert list((tmp_path / "cache").iterdir()) == [folder]


def test_of_two_writers_the_second_takes_the_first_ones_folder_only_if_equal(tmp_path: Path) -> None:
    def write(text: bytes, out: Path) -> TokenWriter:
        writer = TokenWriter(out, 257, 256)
        with writer:
            for split in SPLITS:
                writer.add(split, [np.frombuffer(text, np.uint8)])
            writer.finish()
        return writer

    write(b"same", tmp_path / "out")
    write(b"same", tmp_path / "out")
    with pytest.raises(MeshkitError, match=r"out: cannot take the place"):
        write(b"else", tmp_path / "out")
    assert texts(tmp_path / "out", "train") == [b"same"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_ids_beyond_16_bits_are_kept(tmp_path: Path) -> None:
    ids = np.array([0, 65_535, 65_536, 99_998])
    with TokenWriter(tmp_path / "out", 100_000, 99_999) as writer:
        for split in SPLITS:
            writer.add(split, [ids[:2], ids[2:]])
        writer.finish()
    file = TokenFile.open(tmp_path / "out", "train")
    assert file.tokens.dtype == np.uint32
    assert file.tokens.tolist() == [*ids, 99_999]


def test_bytes_decode_to_their_text_and_never_fail() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode("ünïcode – ✓")) == "ünïcode – ✓"
    assert tokenizer.decode([0x68, 0x69, 256, 0xFF]) == "hi\ufffd"


@pytest.fixture
def tokenizer_json(tmp_path: Path) -> Path:
    """A byte-level BPE with an <|endoftext|>, that asks for texts to be cut after 4 tokens."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False
    )
    tokenizer.train_from_iterator(["document one, document two"] * 4, trainer)
    tokenizer.enable_truncation(4)
    tokenizer.save(str(tmp_path / "my.json"))
    return tmp_path / "my.json"


def test_a_tokenizer_reads_documents_whole_and_travels_with_them(tokenizer_json: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("document one, document <|endoftext|> ünïcode")
    (tmp_path / "b.txt").write_text("x")
    prepare([f"{tmp_path}/*.txt"], tmp_path / "out", tokenizer=str(tokenizer_json))
    tokenizer_json.unlink()
    file, tokenizer = TokenFile.open(tmp_path / "out", "train"), tokenizer_of(tmp_path / "out")
    assert file.tokenizer == "tokenizer.json"
    assert (file.vocab, file.end) == (tokenizer.vocab, tokenizer.end)
    assert file.tokens.max() < file.vocab
    assert (file.tokens == file.end).sum() == 1, "text that spells the end token does not end the document"
    assert tokenizer.decode(file.tokens) == "document one, document <|endoftext|> ünïcode"


def test_a_tokenizer_without_an_end_token_gets_one_more_id(tokenizer_json: Path) -> None:
    values = json.loads(tokenizer_json.read_text().replace("<|endoftext|>", "<|other|>"))
    tokenizer_json.write_text(json.dumps(values))
    tokenizer = FileTokenizer(tokenizer_json)
    ids = tokenizer.encode("document one")
    assert tokenizer.end == tokenizer.vocab - 1
    assert tokenizer.end not in ids
    assert tokenizer.decode([*ids, tokenizer.end]) == "document one"


def test_a_tokenizer_names_the_byte_that_is_not_utf8(tokenizer_json: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine so far \xff")
    (tmp_path / "b.txt").write_bytes(b"x")
    with pytest.raises(MeshkitError, match=r"a\.txt: byte 12 \(0xff\) is not UTF-8"):
        prepare([f"{tmp_path}/*.txt"], tmp_path / "out", tokenizer=str(tokenizer_json))
    assert not (tmp_path / "out").exists()


def test_tokenizer_files_that_are_missing_or_something_else_are_named(tmp_path: Path) -> None:
    with pytest.raises(MeshkitError, match=r"no-such\.json: no such tokenizer file"):
        FileTokenizer(tmp_path / "no-such.json")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(MeshkitError, match=r"other\.json: not a tokenizer\.json"):
        FileTokenizer(tmp_path / "other.json")


def test_without_the_tokenizers_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MeshkitError, match=r"meshkit\[hf\]"):
        FileTokenizer("tokenizer.json")
