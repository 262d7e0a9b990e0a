"""The parameters of a published model, slice by slice: what each device or chunk needs, and nothing else.

Shapes: L layers, E experts; a parameter of blocks is [L, …], one of experts [L, E, …].
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from meshkit.errors import MeshkitError
from meshkit.hf.folder import DTYPES, Folder, Index
from meshkit.models import names
from meshkit.models.build import builder
from meshkit.models.config_json import CONFIG
from meshkit.models.names import Tensor
from meshkit.models.presets import Sizes
from meshkit.pipeline.stage import functional

BLOCKS = "blocks."
ROWS = 1024
"""Rows of a table that are in memory at once while two are compared."""

Shape = tuple[int, ...]


def shapes_of(sizes: Sizes) -> dict[str, Shape]:
    """Dotted name -> shape of every parameter, layers in the model's order, tables without padding."""
    leaves = jax.tree_util.tree_leaves_with_path(functional(builder(sizes, 1)).shapes)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape for path, leaf in leaves}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where one of our matrices is: their tensor's name, no longer open, and how it lies there."""

    name: str
    tensor: Tensor
    shape: Shape  # ours

    @property
    def theirs(self) -> Shape:
        """The shape of their tensor."""
        shape = (*self.shape[:-1], self.shape[-1] * self.tensor.parts)
        return shape[::-1] if self.tensor.transposed else shape

    def index(self, ours: Index) -> Index:
        """A slice of ours, in their tensor."""
        start, stop, _ = ours[-1].indices(self.shape[-1])
        first = self.tensor.part * self.shape[-1]
        theirs = (*ours[:-1], slice(first + start, first + stop))
        return theirs[::-1] if self.tensor.transposed else theirs


class Weights:
    """The parameters in a `Folder`.

    Raises MeshkitError for a tensor that is missing, of another shape or dtype, or that no parameter takes.
    """

    def __init__(self, folder: Folder, shapes: dict[str, Shape] | None = None) -> None:
        self.folder, self._tensors = folder, names.tensors(folder.sizes)
        self.shapes = shapes or shapes_of(folder.sizes)
        self._prefix = self._left_out()
        places = [place for name in self.shapes for place in self.places(name)]
        for place in places:
            self._check(place)
        unread = folder.tensors.keys() - {place.name for place in places}
        unread = {name for name in unread if not name.endswith(names.BUFFERS)}
        if folder.sizes.tied:
            unread -= self._doubled()
        if unread:
            raise MeshkitError(f"{folder.path}: a {folder.sizes.family} has no place for the tensor {min(unread)}")

    def _doubled(self) -> set[str]:
        """The tied head's tensor where a file holds the embedding twice; MeshkitError if that is a head of its own."""
        embedding, head = (self._place(self._tensors[name], ()).name for name in ("embed.table", "head.table"))
        if head not in self.folder.tensors:
            return set()
        first, second = self.folder.tensors[embedding], self.folder.tensors[head]
        rows = [slice(k, min(k + ROWS, first.shape[0])) for k in range(0, first.shape[0], ROWS)]
        alike = lambda of: np.array_equal(self.folder.read(embedding, (of,)), self.folder.read(head, (of,)))
        if first.shape != second.shape or not all(map(alike, rows)):
            raise MeshkitError(
                f"{second.file}: {head} differs from {embedding}, and {self.folder.path / CONFIG} says "
                "tie_word_embeddings = True: set it to false if the head is its own, or remove the tensor"
            )
        return {head}

    def dtype(self, name: str) -> str:
        """The dtype in which a parameter is read whole."""
        return self.folder.dtype([place.name for place in self.places(name)])

    def places(self, name: str) -> list[Place]:
        """Of every matrix of a parameter, layer by layer, expert by expert."""
        shape, tensor = self.shapes[name], self._tensors[name]
        if not name.startswith(BLOCKS):
            return [self._place(tensor, shape)]
        layers, *inner = shape
        if "{expert}" not in tensor.name:
            return [self._place(tensor, tuple(inner), layer=layer) for layer in range(layers)]
        experts, *matrix = inner
        numbers = [(layer, expert) for layer in range(layers) for expert in range(experts)]
        return [self._place(tensor, tuple(matrix), layer=layer, expert=expert) for layer, expert in numbers]

    def read(self, name: str, index: Index) -> np.ndarray:
        """A slice of a parameter that does not belong to blocks."""
        return self._read(self._place(self._tensors[name], self.shapes[name]), index)

    def read_layers(self, name: str, layers: Sequence[int], index: Index) -> np.ndarray:
        """Slices `index` of some layers of a parameter of blocks, stacked."""
        _, *inner = self.shapes[name]
        tensor = self._tensors[name]
        if "{expert}" not in tensor.name:
            return np.stack([self._read(self._place(tensor, tuple(inner), layer=layer), index) for layer in layers])
        (experts, *matrix), (of, *rest) = inner, index
        read = lambda layer, expert: self._read(
            self._place(tensor, tuple(matrix), layer=layer, expert=expert), tuple(rest)
        )
        return np.stack([np.stack([read(layer, expert) for expert in range(experts)[of]]) for layer in layers])

    def layers_at_once(self, name: str) -> int:
        """Layers lie each by itself."""
        return 1

    def _read(self, place: Place, index: Index) -> np.ndarray:
        values = self.folder.read(place.name, place.index(index))
        return values.T if place.tensor.transposed else values

    def _place(self, tensor: Tensor, shape: Shape, **numbers: int) -> Place:
        return Place(tensor.name.format(**numbers).removeprefix(self._prefix), tensor, shape)

    def _left_out(self) -> str:
        """What this folder leaves out at the beginning of names: some are of the model without its head."""
        name = self._tensors["embed.table"].name
        fitting = [prefix for prefix in names.PREFIXES if name.removeprefix(prefix) in self.folder.tensors]
        return fitting[0] if fitting else ""

    def _check(self, place: Place) -> None:
        found = self.folder.tensors.get(place.name)
        if found is None:
            raise MeshkitError(f"{self.folder.path}: the tensor {place.name} is missing")
        if found.shape != place.theirs:
            raise MeshkitError(
                f"{found.file}: {place.name} has the shape {list(found.shape)}, and the model's sizes say "
                f"{list(place.theirs)}"
            )
        if found.dtype not in DTYPES.values():
            raise MeshkitError(
                f"{found.file}: {place.name} is {found.dtype}: meshkit reads {', '.join(DTYPES)}; weights that are "
                "quantised must be made whole again first"
            )


def joint(sizes: Sizes, shapes: dict[str, Shape]) -> dict[str, list[str]]:
    """Their tensor, numbers left open -> those of our parameters that are parts of it, in order."""
    found: dict[str, list[tuple[int, str]]] = {}
    for ours in shapes:
        tensor = names.tensors(sizes)[ours]
        found.setdefault(tensor.name, []).append((tensor.part, ours))
    return {theirs: [ours for _, ours in sorted(parts)] for theirs, parts in found.items()}


def dotted(path: Any) -> str:
    """JAX's path of a parameter as a dotted name."""
    return jax.tree_util.keystr(path, simple=True, separator=".")
