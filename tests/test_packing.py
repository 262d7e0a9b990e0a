"""Documents kept apart in one sample train as they would one by one: attention, positions, loss; float64."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from law import BOUND, cut_gradient, error, make_batch, make_config, whole_gradient

from meshkit import assemble, mesh
from meshkit.config import load
from meshkit.data.loader import Loader, TokenSource
from meshkit.data.tokens import TokenFile
from meshkit.data.writer import TokenWriter
from meshkit.equality import verify
from meshkit.equality.one_device import Batch
from meshkit.errors import MeshkitError

CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {"pipeline.schedule": "gpipe", "recompute": "none"},
    "mistral": {"model.options": {"window": 3}, "pipeline.schedule": "zero-bubble", "recompute": "selective"},
    "gemma3": {
        "model.options": {"window": 3, "global_every": 2, "local_theta": 100.0},
        "pipeline.schedule": "interleaved",
        "pipeline.virtual": 2,
        "model.layers": 4,
        "pipeline.microbatches": 2,
        "data.batch": 8,
        "zero": 3,
    },
}


def packed(config: Any) -> Batch:
    """A batch whose samples hold one document to several, some of a single token."""
    batch = make_batch(config)
    starts = np.random.default_rng(1).random(batch["tokens"].shape) < np.linspace(0, 0.6, config.data.sequence)
    segments = starts.cumsum(-1, dtype=np.int32)
    following = np.append(segments[..., 1:], segments[..., -1:], -1)
    return batch | {"segments": segments, "weights": batch["weights"] * (following == segments)}


def one_by_one(batch: Batch) -> Batch:
    """Every document as a sample of its own, from its first token on; what follows it counts for nothing."""
    tokens, targets, weights, segments = (
        batch[name].reshape(-1, batch["tokens"].shape[-1]) for name in ("tokens", "targets", "weights", "segments")
    )
    rows = []
    for sample in range(len(tokens)):
        for document in np.unique(segments[sample]):
            inside = segments[sample] == document
            filled = [np.zeros_like(array[sample]) for array in (tokens, targets, weights)]
            for row, array in zip(filled, (tokens, targets, weights), strict=True):
                row[: inside.sum()] = array[sample, inside]
            rows.append(filled)
    return {
        name: np.stack(a)[None]
        for name, a in zip(("tokens", "targets", "weights"), zip(*rows, strict=True), strict=True)
    }


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("family", "shape"),
    [("llama", (1, 1, 1)), *((family, (2, 2, 2)) for family in CASES)],
)
def test_packed_is_one_by_one(family: str, shape: tuple[int, int, int]) -> None:
    preset = "gpt2" if family == "gpt2" else "llama"
    config = make_config(shape, preset, **{"model.layers": 2, "model.family": family} | CASES[family])
    batch = packed(config)
    got, want = cut_gradient(config, batch), whole_gradient(config, one_by_one(batch))
    assert got[0] == pytest.approx(want[0], rel=BOUND, abs=0)
    assert error(got[1], want[1])[0] <= BOUND, error(got[1], want[1])
    if shape == (1, 1, 1):
        joined = cut_gradient(config, {name: array for name, array in batch.items() if name != "segments"})
        assert error(joined[1], want[1])[0] > 1e-2


def test_verify_has_documents_too() -> None:
    config = make_config(**{"data.documents": "apart"})
    assert all(batch["segments"].max() > 0 for batch in verify.random_batches(config, 53))


def write_tokens(folder: Path) -> TokenFile:
    """Documents of 3, 1, 9 and 2 tokens, their ends included."""
    with TokenWriter(folder, 257, 256) as writer:
        for length in (2, 0, 8, 1):
            writer.add("train", [np.arange(10, 10 + length)])
        writer.add("held_out", [np.arange(4)])
        writer.finish()
    return TokenFile.open(folder, "train")


def test_samples_of_a_token_file_know_their_documents(tmp_path: Path) -> None:
    source = TokenSource(write_tokens(tmp_path / "tokens"), 7, apart=True)
    assert [source[k]["segments"].tolist() for k in range(2)] == [[0, 0, 0, 1, 2, 2, 2], [0, 0, 0, 0, 0, 0, 1]]
    # The end of a document is a target, its successor's first token is not.
    assert [source[k]["weights"].tolist() for k in range(2)] == [[1, 1, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 0, 1]]
    with Loader(source, batch=2, seed=0) as loader:
        batch = next(loader)
    assert batch["segments"].dtype == np.int32
    assert sorted(np.asarray(batch["segments"])[0, :, 3].tolist()) == [0, 1]


class Falling:
    """A data set whose documents are numbered backward."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        ids = np.arange(4)
        return {"tokens": ids, "targets": ids, "weights": np.ones(4), "segments": ids[::-1]}


def test_segments_that_fall_are_refused() -> None:
    with pytest.raises(MeshkitError, match="sample 0: segments must begin at 0 or above and never fall"):
        Loader(Falling(), batch=2, seed=0)


def test_a_model_that_does_not_heed_documents_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshkit.models.decoder.Block.__call__", lambda self, x_BSH, context: x_BSH)
    config = load({"data": {"documents": "apart"}, "mesh": {"data": 1}})
    with pytest.raises(MeshkitError, match=r"does not read context\.segments_BS.*set data\.documents = 'joined'"):
        assemble.train_step(config, mesh.build(config.mesh, jax.devices()[:1]))
