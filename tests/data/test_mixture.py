"""Laws of mixtures: never a whole sample off, every sample once an epoch of its source, any position alone."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import mesh as meshes
from meshkit.config import DataConfig, MeshShape, load
from meshkit.data.interleave import interleaved, whole_shares
from meshkit.data.loader import Loader
from meshkit.data.mixture import Joined, Mixture
from meshkit.data.sources import Sources, open_sources
from meshkit.data.tokens import SPLITS
from meshkit.data.writer import TokenWriter
from meshkit.errors import MeshkitError
from tests.data.test_megatron import mapped


class Numbers:
    """`length` samples; number i of source `name` is the id 1000 · name + i."""

    def __init__(self, name: int, length: int) -> None:
        self.name, self.length = name, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int, /) -> dict[str, np.ndarray]:
        ids = np.full(2, 1000 * self.name + index)
        return {"tokens": ids, "targets": ids, "weights": np.ones(2)}


def numbers(samples: Any, positions: range) -> list[tuple[int, int]]:
    """(source, number) at each position."""
    ids = [int(samples[position]["tokens"][0]) for position in positions]
    return [divmod(i, 1000) for i in ids]


SHARES = st.lists(st.integers(1, 60), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(shares=SHARES)
def test_no_source_is_ever_a_whole_sample_off(shares: list[int]) -> None:
    source, before = interleaved(shares)
    total = sum(shares)
    assert len(source) == total
    for k, share in enumerate(shares):
        drawn = np.cumsum(source == k)
        # In whole numbers: |drawn − share / total · n| < 1.
        assert (np.abs(drawn * total - share * np.arange(1, total + 1)) < total).all()
        assert before[source == k].tolist() == list(range(share))


@settings(max_examples=15, deadline=None)
@given(shares=st.lists(st.integers(1, 9), min_size=1, max_size=4), data=st.data(), seed=st.integers(0, 2**31))
def test_each_epoch_of_each_source_has_each_sample_once(shares: list[int], data: st.DataObject, seed: int) -> None:
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=len(shares), max_size=len(shares)))
    mixture = Mixture([Numbers(k, n) for k, n in enumerate(lengths)], shares)
    found = numbers(mixture.ordered(seed), range(60))
    for k, length in enumerate(lengths):
        own = [number for source, number in found if source == k]
        for start in range(0, len(own) - length + 1, length):
            assert sorted(own[start : start + length]) == list(range(length))
    again = mixture.ordered(seed)
    assert numbers(again, range(59, -1, -1)) == found[::-1], "a position needs none before it"
    beginning = Counter(found[: len(mixture)])
    assert max(beginning.values(), default=1) == 1, "its length ends before any second epoch"
    assert max(Counter(found[: len(mixture) + 1]).values()) == 2 or len(mixture) >= 60


def test_sources_have_orders_of_their_own_and_seeds_too() -> None:
    mixture = Mixture([Numbers(0, 50), Numbers(1, 50)], [1, 1])
    orders = []
    for seed in (1, 2):
        found = numbers(mixture.ordered(seed), range(100))
        orders += [[n for source, n in found if source == k] for k in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


@pytest.mark.parametrize(("batch", "microbatches"), [(8, 1), (12, 3), (24, 2)])
def test_a_loader_goes_on_anywhere_with_any_batch(batch: int, microbatches: int) -> None:
    source = Mixture([Numbers(0, 70), Numbers(1, 40), Numbers(2, 90)], [5, 2, 3])
    whole = [1000 * a + b for a, b in numbers(source.ordered(7), range(240))]
    for start in (0, 1, 33, 100):
        with Loader(source, batch=batch, seed=7, microbatches=microbatches, start=start) as loader:
            read = [int(i) for i in np.asarray(loader.at(2)["tokens"])[..., 0].ravel()]
        assert read == whole[start + 2 * batch : start + 3 * batch]


@pytest.mark.parametrize("shape", [(8, 1, 1), (2, 2, 2), (1, 1, 8)])
def test_the_order_is_the_same_on_every_mesh(shape: tuple[int, int, int]) -> None:
    source = Mixture([Numbers(0, 70), Numbers(1, 40)], [2, 1])
    mesh = meshes.build(MeshShape(data=shape[0], tensor=shape[1], pipe=shape[2]))
    with Loader(source, batch=24, seed=7, microbatches=3, mesh=mesh) as loader:
        read = [int(i) for i in np.asarray(loader.at(2)["tokens"])[..., 0].ravel()]
    assert read == [1000 * a + b for a, b in numbers(source.ordered(7), range(48, 72))]


def test_joined_sources_are_one() -> None:
    joined = Joined([Numbers(0, 3), Numbers(1, 0), Numbers(2, 4)])
    assert numbers(joined, range(len(joined))) == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2), (2, 3)]


def test_a_later_source_is_looked_at_before_the_first_step() -> None:
    wrong = Numbers(1, 20)
    with pytest.raises(MeshkitError, match=r"sample 0: tokens must be 0 … 499"):
        Loader(Mixture([Numbers(0, 20), wrong], [1, 1]), batch=4, seed=0, vocab=500)


@pytest.mark.parametrize(
    ("weights", "shares"),
    [([0.7, 0.3], [7, 3]), ([1, 1, 1], [1, 1, 1]), ([0.1, 0.2], [1, 2]), ([2.5, 5e-1], [5, 1]), ([3], [1])],
)
def test_weights_are_taken_as_they_are_written(weights: list[float], shares: list[int]) -> None:
    assert whole_shares(weights) == shares


def test_weights_that_need_too_long_a_period_are_told() -> None:
    with pytest.raises(MeshkitError, match=r"weights 0\.3333333, 0\.6666667 are 3333333:6666667 .* round them"):
        whole_shares([0.3333333, 0.6666667])


# --- data.tokens ---------------------------------------------------------------------------------


def prepared(folder: Path, value: int, vocab: int = 257) -> Path:
    with TokenWriter(folder, vocab, vocab - 1) as writer:
        for split in SPLITS:
            for _ in range(10):
                writer.add(split, [np.full(19, value)])
        writer.finish()
    return folder


def opened(tokens: Any, **more: Any) -> Sources:
    return open_sources(DataConfig(tokens=tokens, sequence=4, **more))


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    return [str(prepared(tmp_path / f"v1.{value}", value)) for value in (1, 2)]


def test_a_list_is_read_as_one_and_a_table_as_a_mixture(folders: list[str]) -> None:
    one, both, mixed = opened(folders[0]), opened(folders), opened({folders[0]: 3, folders[1]: 1})
    assert len(both.train) == 2 * len(one.train) == 98
    assert isinstance(mixed.train, Mixture)
    assert isinstance(mixed.held_out, Mixture)
    assert mixed.train.shares == (3, 1)
    assert mixed.vocab == 257
    names = {one.identity, both.identity, mixed.identity, opened({folders[0]: 1, folders[1]: 1}).identity}
    assert len(names) == 4, "another proportion is another order"
    assert opened({folders[0]: 30, folders[1]: 10}).identity == mixed.identity


def test_megatrons_files_mix_with_prepared_ones(folders: list[str], tmp_path: Path) -> None:
    mapped(tmp_path / "their_text")
    sources = opened({folders[0]: 0.5, str(tmp_path / "their_text"): 0.5}, held_out=0.5)
    assert sources.vocab == 257
    assert np.concatenate([sources.train[i]["tokens"] for i in (1, 3)]).size == 8
    assert opened(str(tmp_path / "their_text.idx")).vocab is None


def test_folders_of_other_tokenizers_do_not_mix(folders: list[str], tmp_path: Path) -> None:
    tokenizer = tmp_path / "t.json"
    tokenizer.write_text("{}")
    with TokenWriter(tmp_path / "other", 300, 299, tokenizer) as writer:
        for split in SPLITS:
            writer.add(split, [np.arange(20)])
        writer.finish()
    with pytest.raises(MeshkitError, match="was made with another tokenizer"):
        opened([folders[0], str(tmp_path / "other")])


@pytest.mark.parametrize(
    ("tokens", "rule"),
    [
        (3, "3 is not a path, a list of paths or a table"),
        ([], r"\[\] is not a path"),
        ({}, "{} is not a path"),
        ([1], r"\[1\] is not a path"),
        (["a", "a"], "names a path twice"),
        ({"a": 0}, "'a' has the weight 0: a weight is a number above 0"),
        ({"a": -1.5}, "'a' has the weight -1.5"),
        ({"a": float("nan")}, "'a' has the weight nan"),
        ({"a": "much"}, "'a' has the weight 'much'"),
        ({"a": True}, "'a' has the weight True"),
    ],
)
def test_what_names_no_sources_is_told_with_its_key(tokens: Any, rule: str) -> None:
    with pytest.raises(MeshkitError, match=rf"data\.tokens: .*{rule}"):
        load({"data": {"tokens": tokens}})


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(MeshkitError, match=r"gone: no such folder of tokens; .* nor are there gone\.idx"):
        opened(str(tmp_path / "gone"))


def test_too_short_a_source_is_named(folders: list[str], tmp_path: Path) -> None:
    mapped(tmp_path / "short")
    with pytest.raises(MeshkitError, match=r"held_out split of .*short has no sample"):
        opened({folders[0]: 1, str(tmp_path / "short"): 1}, held_out=0.05)
