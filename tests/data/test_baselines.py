"""n-gram losses equal their definitions, token by token."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from meshkit.data import baselines
from meshkit.data.baselines import ngram_losses
from meshkit.data.tokens import TokenFile
from meshkit.data.writer import TokenWriter
from meshkit.errors import MeshkitError


def files(folder: Path, vocab: int, train: np.ndarray, held_out: np.ndarray) -> tuple[TokenFile, TokenFile]:
    """Both splits, each of one document; the end token is the last id."""
    with TokenWriter(folder, vocab, vocab - 1) as writer:
        writer.add("train", [train])
        writer.add("held_out", [held_out])
        writer.finish()
    return TokenFile.open(folder, "train"), TokenFile.open(folder, "held_out")


def test_losses_equal_the_definition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "CHUNK", 7)  # so that pairs across chunks count too
    rng = np.random.default_rng(0)
    train, held_out = files(tmp_path / "t", 6, rng.integers(0, 5, 100), rng.integers(0, 5, 40))
    a, b = train.tokens.tolist(), held_out.tokens.tolist()
    unigram = [-math.log((a[1:].count(y) + 1) / (len(a) - 1 + 6)) for y in b[1:]]
    pairs = list(pairwise(a))
    bigram = [-math.log((pairs.count((x, y)) + 1) / (a[:-1].count(x) + 6)) for x, y in pairwise(b)]
    losses = ngram_losses(train, held_out)
    assert list(losses) == ["uniform", "unigram", "bigram"]
    assert losses["uniform"] == pytest.approx(math.log(6), abs=1e-12)
    assert losses["unigram"] == pytest.approx(sum(unigram) / len(unigram), abs=1e-12)
    assert losses["bigram"] == pytest.approx(sum(bigram) / len(bigram), abs=1e-12)


def test_a_large_vocabulary_has_no_bigram(tmp_path: Path) -> None:
    train, held_out = files(tmp_path / "t", 70_000, np.arange(100), np.arange(100))
    assert list(ngram_losses(train, held_out)) == ["uniform", "unigram"]


def test_splits_that_cannot_be_judged_are_named(tmp_path: Path) -> None:
    train, held_out = files(tmp_path / "t", 6, np.arange(5), np.arange(0))
    with pytest.raises(MeshkitError, match="held_out has 1 token"):
        ngram_losses(train, held_out)
    other, _ = files(tmp_path / "u", 7, np.arange(5), np.arange(5))
    with pytest.raises(MeshkitError, match=r"vocabulary of 6, .* one of 7"):
        ngram_losses(other, held_out)
