"""Batches on the mesh: an order that is a function of (seed, position) alone, and every process reads its own rows.

Letters of shapes: B samples of the global batch, m microbatches, S tokens of a sample. Sample i of a
batch stands in microbatch i // (B / m), row i % (B / m); rows are cut over the mesh axis `data`.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import grain
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from meshkit.data.tokens import TokenFile
from meshkit.errors import MeshkitError
from meshkit.mesh import DATA

DTYPES = {"tokens": np.int32, "targets": np.int32, "weights": np.float32}
KINDS = {"tokens": "iu", "targets": "iu", "weights": "fiub", "segments": "iu"}  # NumPy's dtype.kind of a sample's
SEGMENTS = {"segments": np.int32}
"""What a sample has besides, if its documents are kept apart."""

Batch = dict[str, jax.Array]


class Source(Protocol):
    """A data set: samples by number, in any order. `TokenSource` is the built-in one; a user's plugs in here."""

    def __len__(self) -> int:
        """Samples of one epoch."""

    def __getitem__(self, index: int, /) -> Mapping[str, np.ndarray]:
        """tokens int [S], targets int [S] (what follows each token), weights float [S] (0: not a target).

        Optional: segments int [S], the number of each token's document, if attention shall stay inside documents.
        """


class Samples(Protocol):
    """The samples of a run by their position in it, from 0 on without end."""

    def __getitem__(self, position: int, /) -> Mapping[str, np.ndarray]:
        """A sample as `Source` has them."""


@runtime_checkable
class Ordered(Source, Protocol):
    """A source made of others, with an order of its own."""

    sources: Sequence[Source]  # that its samples are from

    def ordered(self, seed: int) -> Samples:
        """What a run with `seed` reads."""


def shuffled(source: Source, seed: int) -> Samples:
    """Epochs of `source` one after the other, each in a random order that (seed, epoch) gives."""
    # Grain's shuffle is a keyed permutation computed index by index: random access, no table of indices.
    return grain.MapDataset.source(source).seed(seed).shuffle().repeat()


class TokenSource:
    """Samples of `sequence` tokens, one after the other along a token file; each target is the next token.

    apart: samples have segments, and the first token of a document is no target. targets: bool [tokens of the file],
    which tokens are; None: all.
    """

    def __init__(self, file: TokenFile, sequence: int, apart: bool = False, targets: np.ndarray | None = None) -> None:
        self._file, self._sequence, self._apart, self._targets = file, sequence, apart, targets

    def __len__(self) -> int:
        return max(self._file.tokens.size - 1, 0) // self._sequence

    def __getitem__(self, index: int, /) -> dict[str, np.ndarray]:
        start = index * self._sequence
        ids = self._file.tokens[start : start + self._sequence + 1].astype(np.int32)
        weights = np.ones(self._sequence, np.float32)
        if self._targets is not None:
            weights *= self._targets[start + 1 : start + self._sequence + 1]
        sample = {"tokens": ids[:-1], "targets": ids[1:], "weights": weights}
        if not self._apart:
            return sample
        document = np.searchsorted(self._file.documents, np.arange(start, start + self._sequence + 1), side="right")
        weights *= document[1:] == document[:-1]
        return sample | {"segments": (document - document[0])[:-1].astype(np.int32)}

    def __repr__(self) -> str:
        return f"the {self._file.split} split of {self._file.folder}"


class Loader(Iterator[Batch]):
    """An endless iterator of batches, read ahead in a background thread.

    A batch is {tokens, targets: int32 [m, B/m, S]; weights: float32 [m, B/m, S]}, and segments: int32 [m, B/m, S]
    if the source has them; global arrays cut over `data`; without a mesh, whole on this process's first device. Row i
    of batch k is at position g = `start` + k · B + i of the run, whatever batches went before: g is in epoch
    g // len(source), and inside an epoch samples come in a random order that (seed, epoch) gives; of a mixture, see
    mixture.py.

    `samples` is the length of an epoch. Close it, or use it as a context manager. What the source raises
    is raised again by `next`.
    """

    def __init__(
        self,
        source: Source,
        *,
        batch: int,
        seed: int,
        microbatches: int = 1,
        mesh: Mesh | None = None,
        start: int = 0,
        prefetch: int = 2,
        sequence: int | None = None,
        vocab: int | None = None,
    ) -> None:
        """`start`: samples read before. `sequence`, `vocab`: what every sample must have and stay below.

        Raises MeshkitError for too few samples, a malformed sample, or a batch that does not split.
        """
        replicas = mesh.shape[DATA] if mesh is not None else 1
        if batch % (microbatches * replicas):
            raise MeshkitError(
                f"data.batch = {batch} does not split into {microbatches} microbatches × mesh.data = {replicas} "
                f"replicas: set data.batch to a multiple of {microbatches * replicas}"
            )
        if len(source) < batch:
            if not len(source):
                raise MeshkitError(
                    f"{_name(source)} has no sample: give more text, lower data.sequence, or, if it is the held-out "
                    "split, raise data.held_out"
                )
            raise MeshkitError(
                f"{_name(source)} has {len(source)} samples and a batch takes {batch}: lower data.batch to at most "
                f"{len(source)}, lower data.sequence for more and shorter samples, or give more text"
            )
        first = source[0]
        self.sequence = _length(first) if sequence is None else sequence
        self.samples = len(source)
        self._source_name, self._vocab = _name(source), vocab
        self._dtypes = DTYPES | (SEGMENTS if isinstance(first, Mapping) and "segments" in first else {})
        self._check(first, "sample 0")
        for part in source.sources if isinstance(source, Ordered) else ():
            if len(part):
                self._check(part[0], "sample 0")
        self._start, self._shape = start, (microbatches, batch // microbatches, self.sequence)
        self._sharding: Sharding = SingleDeviceSharding(jax.local_devices()[0])
        if mesh is not None:
            self._sharding = NamedSharding(mesh, PartitionSpec(None, DATA))
        self._samples = source.ordered(seed) if isinstance(source, Ordered) else shuffled(source, seed)
        self._ahead = iter(
            grain.MapDataset.range(sys.maxsize)
            .map(self.at)
            .to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=prefetch))
        )

    def at(self, number: int) -> Batch:
        """Batch `number`, counted from `start`, whatever was read before."""
        blocks: dict[range, dict[str, np.ndarray]] = {}

        def block(key: str, index: tuple[slice, ...]) -> np.ndarray:
            # JAX asks for the rows of this process's devices only; pipe and tensor peers share them.
            rows = range(self._shape[1])[index[1]]
            if rows not in blocks:
                blocks[rows] = self.read(number, rows)
            return blocks[rows][key]

        return {
            key: jax.make_array_from_callback(self._shape, self._sharding, partial(block, key), dtype=dtype)
            for key, dtype in self._dtypes.items()
        }

    def read(self, number: int, rows: range) -> dict[str, np.ndarray]:
        """Rows `rows` of every microbatch of batch `number`, on the host: arrays [m, rows, S]."""
        m, width, sequence = self._shape
        arrays = {key: np.empty((m, len(rows), sequence), dtype) for key, dtype in self._dtypes.items()}
        for microbatch in range(m):
            for place, row in enumerate(rows):
                position = self._start + (number * m + microbatch) * width + row
                sample = self._samples[position]
                self._check(sample, f"the sample at position {position} of the run")
                for key, array in arrays.items():
                    array[microbatch, place] = sample[key]
        return arrays

    def __next__(self) -> Batch:
        return next(self._ahead)

    def close(self) -> None:
        """Ends the reading ahead; a batch that is being read is finished and dropped."""
        self._ahead.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _check(self, sample: Any, where: str) -> None:
        """MeshkitError saying what of a sample is not as `Source` promises."""
        source = f"{self._source_name}: {where}"
        if not isinstance(sample, Mapping) or set(sample) != set(self._dtypes):
            has = ", ".join(map(str, sample)) if isinstance(sample, Mapping) else type(sample).__name__
            raise MeshkitError(f"{source} must be a dict of {', '.join(self._dtypes)}, and has {has}")
        for key in self._dtypes:
            value = np.asarray(sample[key])
            if value.shape != (self.sequence,):
                shape, wanted = list(value.shape), f"[{self.sequence}] (data.sequence)"
                raise MeshkitError(f"{source}: {key} has the shape {shape}, not {wanted}")
            if value.dtype.kind not in KINDS[key]:
                wanted = "whole numbers" if KINDS[key] == "iu" else "real numbers"
                raise MeshkitError(f"{source}: {key} are {value.dtype}, and must be {wanted}")
            _check_range(value, key, source, self._vocab)


def _check_range(value: np.ndarray, key: str, where: str, vocab: int | None) -> None:
    if key == "weights":
        if not (np.isfinite(value).all() and value.min() >= 0):
            found = f"go from {value.min()} to {value.max()}"
            raise MeshkitError(f"{where}: weights must be finite and at least 0, and {found}")
    elif key == "segments":
        if value.min() < 0 or (np.diff(value) < 0).any():
            raise MeshkitError(f"{where}: segments must begin at 0 or above and never fall: they number documents")
    elif value.min() < 0 or (vocab is not None and value.max() >= vocab):
        limit = f"0 … {vocab - 1} (model.vocab = {vocab})" if vocab is not None else "at least 0"
        raise MeshkitError(f"{where}: {key} must be {limit}, and go from {value.min()} to {value.max()}")


def _name(source: Source) -> str:
    kind = type(source)
    return (
        repr(source)
        if isinstance(source, TokenSource | Ordered)
        else f"the data set {kind.__module__}.{kind.__qualname__}"
    )


def _length(sample: Any) -> int:
    """Tokens of a sample; 0 for what is no sample, as its check will say."""
    return np.size(sample["tokens"]) if isinstance(sample, Mapping) and "tokens" in sample else 0
