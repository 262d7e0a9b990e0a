"""Laws of the loader: batches are a function of (seed, step) alone, on any mesh, and no row is read twice."""

import itertools
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import mesh as meshes
from meshkit.config import MeshShape
from meshkit.data.loader import DTYPES, Batch, Loader, TokenSource
from meshkit.data.tokens import SPLITS, TokenFile
from meshkit.data.writer import TokenWriter
from meshkit.errors import MeshkitError

SHAPES = [(8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2), (4, 2, 1), (2, 1, 4), (1, 2, 4)]


class Recording:
    """`length` samples of `sequence` tokens, all equal to the sample's number; keeps the numbers asked for."""

    def __init__(self, length: int, sequence: int = 4) -> None:
        self.length, self.sequence = length, sequence
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int, /) -> dict[str, np.ndarray]:
        self.asked.append(index)
        ids = np.full(self.sequence, index)
        return {"tokens": ids, "targets": ids + 1, "weights": np.ones(self.sequence)}


def mesh_of(shape: tuple[int, int, int]) -> jax.sharding.Mesh:
    """The (data, tensor, pipe) mesh over all devices."""
    return meshes.build(MeshShape(data=shape[0], tensor=shape[1], pipe=shape[2]))


def order(batch: Batch) -> list[int]:
    """The sample numbers of a `Recording`'s batch, in the order of the global batch."""
    return [int(i) for i in np.asarray(batch["tokens"])[..., 0].ravel()]


def assert_equal(a: Batch, b: Batch) -> None:
    for key in DTYPES:
        np.testing.assert_array_equal(np.asarray(a[key]), np.asarray(b[key]))


@settings(max_examples=40, deadline=None)
@given(length=st.integers(8, 60), batch=st.sampled_from([1, 2, 4, 8]), seed=st.integers(0, 2**40))
def test_every_sample_comes_once_an_epoch(length: int, batch: int, seed: int) -> None:
    with Loader(Recording(length), batch=batch, seed=seed) as loader:
        run = [i for step in range(-(-3 * length // batch)) for i in order(loader.at(step))]
    epochs = [run[k * length : (k + 1) * length] for k in range(3)]
    assert all(sorted(epoch) == list(range(length)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3, "each epoch has its own order"


def test_seeds_give_different_orders_and_equal_seeds_equal_ones() -> None:
    orders = []
    for seed in (0, 1, 2, 0):
        with Loader(Recording(64), batch=64, seed=seed) as loader:
            orders += [order(loader.at(step)) for step in range(3)]
    assert orders[:3] == orders[-3:]
    assert len({tuple(o) for o in orders[:9]}) == 9, "nor is one seed's epoch another seed's"


@pytest.mark.parametrize("start", [0, 1, 5, 1000])
def test_starting_after_some_samples_continues_the_run(start: int) -> None:
    source = Recording(50)
    with Loader(source, batch=8, seed=3, start=8 * start) as resumed, Loader(source, batch=8, seed=3) as any_step:
        for step in range(start, start + 8):
            assert_equal(next(resumed), any_step.at(step))


def test_another_batch_size_repeats_and_skips_no_sample() -> None:
    source = Recording(50)
    with Loader(source, batch=6, seed=3) as once:
        whole = [i for k in range(20) for i in order(once.at(k))]
    with Loader(source, batch=8, seed=3) as first, Loader(source, batch=12, seed=3, start=3 * 8) as then:
        pieces = [i for k in range(3) for i in order(first.at(k))] + [i for k in range(8) for i in order(then.at(k))]
    assert pieces == whole


def test_running_from_zero_passes_through_every_step_in_order() -> None:
    with Loader(Recording(50), batch=8, seed=3) as loader:
        for step in range(20):
            assert_equal(next(loader), loader.at(step))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("microbatches", [1, 3])
def test_the_batch_is_the_same_on_every_mesh(shape: tuple[int, int, int], microbatches: int) -> None:
    mesh = mesh_of(shape)
    with (
        Loader(Recording(100), batch=24, seed=1, microbatches=microbatches, mesh=mesh) as cut,
        Loader(Recording(100), batch=24, seed=1) as whole,
    ):
        for _ in range(6):
            a, b = next(cut), next(whole)
            assert order(a) == order(b)
            for key, dtype in DTYPES.items():
                assert a[key].shape == (microbatches, 24 // microbatches, 4)
                assert a[key].dtype == dtype
                assert a[key].sharding.is_equivalent_to(
                    jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "data")), 3
                )
                np.testing.assert_array_equal(np.asarray(a[key]).reshape(24, 4), np.asarray(b[key])[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_read_once_and_shared_by_tensor_and_pipe_peers(shape: tuple[int, int, int]) -> None:
    source = Recording(100)
    with Loader(source, batch=16, seed=0, microbatches=2, mesh=mesh_of(shape)) as loader:
        source.asked.clear()
        batch = loader.at(2)
    assert sorted(source.asked) == sorted(order(batch))


@pytest.mark.parametrize("shape", SHAPES)
def test_each_device_holds_the_rows_of_its_replica(shape: tuple[int, int, int]) -> None:
    mesh = mesh_of(shape)
    with Loader(Recording(100), batch=16, seed=0, microbatches=2, mesh=mesh) as loader:
        batch = loader.at(0)["tokens"]
        replica_of = {device: where[0] for where, device in np.ndenumerate(mesh.devices)}
        width = 8 // shape[0]
        for shard in batch.addressable_shards:
            replica = replica_of[shard.device]
            rows = range(replica * width, (replica + 1) * width)
            np.testing.assert_array_equal(shard.data, loader.read(0, rows)["tokens"])


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_that_read_their_own_rows_read_the_batch_once_in_all(processes: int) -> None:
    """What `at` asks `read` for on the devices of pretend processes, whose tensor and pipe peers are their own."""
    source, mesh = Recording(100), mesh_of((4, 2, 1))
    with Loader(source, batch=16, seed=0, microbatches=2, mesh=mesh) as loader:
        whole = loader.at(5)
        asked = Counter[int]()
        for own in np.array_split(sorted(jax.devices(), key=lambda d: d.id), processes):
            indices = whole["tokens"].sharding.devices_indices_map(whole["tokens"].shape)
            rows = {range(8)[indices[device][1]] for device in own}
            source.asked.clear()
            for block in rows:
                loader.read(5, block)
            assert len(source.asked) == 16 // processes
            asked.update(source.asked)
    assert asked == Counter(order(whole))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, TokenFile]:
    """Both splits with 1000 and more random tokens."""
    rng = np.random.default_rng(0)
    with TokenWriter(tmp_path / "tokens", 257, 256) as writer:
        for split in SPLITS:
            for _ in range(10):
                writer.add(split, [rng.integers(0, 256, 100)])
        writer.finish()
    return {split: TokenFile.open(tmp_path / "tokens", split) for split in SPLITS}


@pytest.mark.parametrize("sequence", [1, 7, 100, 1009])
def test_samples_tile_the_token_stream_and_targets_follow(files: dict[str, TokenFile], sequence: int) -> None:
    source, stream = TokenSource(files["train"], sequence), np.asarray(files["train"].tokens)
    samples = [source[i] for i in range(len(source))]
    used = len(source) * sequence
    np.testing.assert_array_equal(np.concatenate([s["tokens"] for s in samples]), stream[:used])
    np.testing.assert_array_equal(np.concatenate([s["targets"] for s in samples]), stream[1 : used + 1])
    assert all((s["weights"] == 1).all() for s in samples)
    assert stream.size - 1 - used < sequence


def test_a_token_file_feeds_the_mesh(files: dict[str, TokenFile]) -> None:
    source = TokenSource(files["train"], 16)
    with Loader(source, batch=8, seed=0, microbatches=2, mesh=mesh_of((2, 2, 2)), sequence=16, vocab=257) as loader:
        batch = next(loader)
    np.testing.assert_array_equal(batch["tokens"][..., 1:], batch["targets"][..., :-1])
    assert float(batch["weights"].sum()) == 8 * 16


def test_too_few_samples_carry_the_numbers_and_the_way_out(files: dict[str, TokenFile]) -> None:
    with pytest.raises(MeshkitError, match=r"held_out split of .* has 10 samples and a batch takes 16") as caught:
        Loader(TokenSource(files["held_out"], 100), batch=16, seed=0)
    assert "data.batch to at most 10" in str(caught.value)
    assert "data.sequence" in str(caught.value)


def test_a_batch_that_does_not_split_names_the_multiple() -> None:
    with pytest.raises(MeshkitError, match=r"data\.batch = 12 .* 2 microbatches × mesh\.data = 4 .* multiple of 8"):
        Loader(Recording(100), batch=12, seed=0, microbatches=2, mesh=mesh_of((4, 2, 1)))


class Changed(Recording):
    """A `Recording` whose samples from number `since` on have `change` in them."""

    def __init__(self, change: dict[str, Any], since: int = 0) -> None:
        super().__init__(20)
        self.change, self.since = change, since

    def __getitem__(self, index: int, /) -> dict[str, np.ndarray]:
        sample = super().__getitem__(index)
        return sample | self.change if index >= self.since else sample


MISTAKES = [
    ({"mask": np.ones(4)}, "must be a dict of tokens, targets, weights, and has tokens, targets, weights, mask"),
    ({"tokens": np.ones(4)}, "tokens are float64, and must be whole numbers"),
    ({"targets": np.array(["a"] * 4)}, "targets are <U1, and must be whole numbers"),
    ({"weights": np.ones(4, complex)}, "weights are complex128, and must be real numbers"),
    ({"targets": np.ones(3, int)}, r"targets has the shape \[3\], not \[4\]"),
    ({"weights": np.ones(1)}, r"weights has the shape \[1\], not \[4\]"),
    ({"tokens": np.array([0, 1, 2, 50])}, r"tokens must be 0 … 49 \(model.vocab = 50\), and go from 0 to 50"),
    ({"targets": np.array([0, 1, -1, 2])}, "targets must be 0 … 49 .*, and go from -1 to 2"),
    ({"weights": np.array([1, 1, np.nan, 1])}, "weights must be finite and at least 0"),
    ({"weights": np.array([1, 1, -1, 1])}, "weights must be finite and at least 0, and go from -1 to 1"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES)
def test_a_malformed_first_sample_is_told_at_once(change: dict[str, Any], message: str) -> None:
    with pytest.raises(MeshkitError, match=message) as caught:
        Loader(Changed(change), batch=4, seed=0, sequence=4, vocab=50)
    assert f"{__name__}.Changed: sample 0" in str(caught.value)


@pytest.mark.parametrize(("change", "message"), MISTAKES)
def test_a_malformed_later_sample_is_told_where_it_stands(change: dict[str, Any], message: str) -> None:
    with Loader(Changed(change, since=1), batch=4, seed=0, vocab=50) as loader:
        with pytest.raises(MeshkitError, match=message) as caught:
            next(loader)
        assert "the sample at position 0 of the run" in str(caught.value)


@pytest.mark.parametrize("sample", [None, [1, 2], {}, {"tokens": 3}])
def test_samples_that_are_no_samples_are_told(sample: Any) -> None:
    class Odd(Recording):
        def __getitem__(self, index: int, /) -> dict[str, np.ndarray]:
            return sample

    with pytest.raises(MeshkitError, match="must be a dict of tokens, targets, weights"):
        Loader(Odd(20), batch=4, seed=0)


def test_a_sequence_that_is_not_the_configs_is_told() -> None:
    with pytest.raises(MeshkitError, match=r"tokens has the shape \[4\], not \[8\] \(data\.sequence\)"):
        Loader(Recording(20), batch=4, seed=0, sequence=8)


def test_what_the_source_raises_reaches_the_consumer() -> None:
    class Failing(Recording):
        def __getitem__(self, index: int, /) -> dict[str, np.ndarray]:
            if index == 13:
                raise RuntimeError("disk on fire")
            return super().__getitem__(index)

    with Loader(Failing(20), batch=4, seed=0) as loader, pytest.raises(RuntimeError) as caught:
        list(itertools.islice(loader, 5))  # one epoch
    assert str(caught.value) == "disk on fire"


def test_reading_goes_ahead_as_far_as_told_and_ends_with_close() -> None:
    class Gated(Recording):
        reads = threading.Semaphore(0)

        def __getitem__(self, index: int, /) -> dict[str, np.ndarray]:
            self.reads.release()
            return super().__getitem__(index)

    source = Gated(400)
    before = set(threading.enumerate())
    with Loader(source, batch=4, seed=0, prefetch=3) as loader:
        next(loader)
        for _ in range(1 + 4 * (1 + 3)):  # the first sample's check, the batch in hand, three ahead
            assert source.reads.acquire(timeout=30)
        assert not source.reads.acquire(timeout=0.1)
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=30)
        assert not thread.is_alive()
