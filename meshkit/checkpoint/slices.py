"""The arrays of a checkpoint, slice by slice: written and read without ever holding one whole.

Orbax lays the frame (names, metadata); the arrays are zarr in an OCDBT store, which TensorStore reads and writes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath

from meshkit.checkpoint.layout import Name, Tree, leaves_of, tree_of
from meshkit.checkpoint.record import Record
from meshkit.checkpoint.store import Checkpoints
from meshkit.config import CheckpointConfig
from meshkit.errors import MeshkitError

Array = Any
"""A TensorStore: array.shape, array[index].read().result(), array[index].write(values).result() …"""

Write = Callable[[Name, Array], None]
"""Called with the name of each array and the array, to fill it."""


class Streamed(Checkpoints):
    """A checkpoint whose arrays come slice by slice.

    shapes: name -> (shape, dtype, chunk) of every array; a chunk is what is read and written at once.
    """

    def __init__(
        self, folder: epath.Path, shapes: Mapping[Name, tuple[tuple[int, ...], str, tuple[int, ...]]], write: Write
    ) -> None:
        self._said: list[str] = []
        super().__init__(folder, CheckpointConfig(), self._said.append)
        self._shapes, self._write = shapes, write

    def write(self, record: Record) -> epath.Path:
        """Write it and return its folder; MeshkitError, and nothing left, when that fails."""
        self.save(self._frame(), record, [])
        self.wait()
        if self.whole is None:
            raise MeshkitError(self._said[-1].removeprefix("error: "))
        return self.folder / str(record.step)

    def _frame(self) -> Tree:
        """The tree with arrays of one value, which stand for those that `_seal` puts in their places."""
        return tree_of(
            {
                name: jnp.zeros((1,) * len(shape), jax.dtypes.canonicalize_dtype(dtype))
                for name, (shape, dtype, _) in self._shapes.items()
            }
        )

    def _seal(self) -> None:
        (folder,) = self._unfinished()
        for name, (shape, dtype, chunk) in self._shapes.items():
            metadata = {"shape": list(shape), "chunks": list(chunk), "compressor": {"id": "zstd", "level": 1}}
            spec = _spec(folder / "state", name) | {"metadata": metadata, "dtype": dtype}
            self._write(name, ts.open(spec, create=True, delete_existing=True).result())
        super()._seal()


class Saved:
    """The parameters in a checkpoint, read as those in a published folder are (`meshkit.hf.weights.Weights`)."""

    def __init__(self, folder: epath.Path) -> None:
        self._arrays = {
            ".".join(name[1:]): open_array(folder, name) for name in arrays_of(folder) if name[0] == "params"
        }
        self.where = str(folder)
        self.shapes = {name: tuple(array.shape) for name, array in self._arrays.items()}

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A slice of a parameter that does not belong to blocks."""
        return self._arrays[name][index].read().result()

    def read_layers(self, name: str, layers: Sequence[int], index: tuple[slice, ...]) -> np.ndarray:
        """Slices `index` of some layers of a parameter of blocks, stacked."""
        array = self._arrays[name]
        if isinstance(layers, range):
            return array[(slice(layers.start, layers.stop), *index)].read().result()
        reads = [array[(layer, *index)].read() for layer in layers]
        return np.stack([read.result() for read in reads])

    def layers_at_once(self, name: str) -> int:
        """Layers that a chunk holds, which are read as fast as one."""
        return max(1, self._arrays[name].chunk_layout.read_chunk.shape[0])

    def dtype(self, name: str) -> str:
        """The dtype of a parameter."""
        return self._arrays[name].dtype.numpy_dtype.name


def open_array(folder: epath.Path, name: Name) -> Array:
    """An array of the checkpoint `folder`, for reading."""
    return ts.open(_spec(folder / "state", name), open=True, read=True).result()


def _spec(state: epath.Path, name: Name) -> dict[str, Any]:
    where = str(state)
    base = f"{where}/" if "://" in where else f"file://{where}/"
    return {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": ".".join(name) + "/"}}


def arrays_of(folder: epath.Path) -> dict[Name, Any]:
    """Name -> shape and dtype of every array of a checkpoint, none read. MeshkitError for one too damaged to tell."""
    metadata = ocp.StandardCheckpointer().metadata(folder / "state").item_metadata
    if metadata is None:
        raise MeshkitError(
            f"{folder} is damaged: what its arrays are cannot be read; `meshkit checkpoint verify {folder}` names the "
            "files"
        )
    return dict(leaves_of(metadata.tree))
