"""Which layers sit on which stage, and in which order a stage's stack holds them. NumPy only.

The model's layers are cut into P·v consecutive groups; group c·P + s is chunk c of stage s. A stage's
stack holds its chunks one after the other, each filled up to the longest group with empty layers that
are never run, so that all stages have arrays of one shape. Checkpoints know nothing of this: they hold
layers in the model's own order.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from meshkit.errors import MeshkitError

EMPTY_LAYER = -1

ROW = "row"
"""What is for row k of a chunk alone, such as the gate around a row that some chunks leave empty, is named
`row_k` in the compiled program."""


@dataclasses.dataclass(frozen=True)
class Placement:
    """stages P, chunks v a stage, and the layers of each of the P·v groups."""

    stages: int
    chunks: int
    counts: tuple[int, ...]

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return sum(self.counts)

    @property
    def longest(self) -> int:
        """Layers of the longest group: rows of a chunk."""
        return max(self.counts)

    @property
    def shortest(self) -> int:
        """Layers that every group has."""
        return min(self.counts)

    @property
    def shares(self) -> list[float]:
        """Layers of each group, over those that a stage has at the mean."""
        return [count * self.stages / self.layers for count in self.counts]

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """First layer of each group, int32 [group]."""
        return np.cumsum((0, *self.counts[:-1])).astype(np.int32)

    @functools.cached_property
    def order(self) -> np.ndarray:
        """For each row of the stacks, stage by stage, the layer it holds or EMPTY_LAYER; int32 [row]."""
        rows = np.full((self.stages, self.chunks, self.longest), EMPTY_LAYER, np.int32)
        for group, (start, count) in enumerate(zip(self.starts, self.counts, strict=True)):
            chunk, stage = divmod(group, self.stages)
            rows[stage, chunk, :count] = np.arange(start, start + count)
        return rows.reshape(-1)

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """For each layer the row that holds it: the inverse of `order`; int32 [layer]."""
        where = np.empty(self.layers, np.int32)
        held = np.flatnonzero(self.order != EMPTY_LAYER)
        where[self.order[held]] = held
        return where

    @property
    def even(self) -> bool:
        """Whether all groups have as many layers."""
        return self.shortest == self.longest

    @property
    def in_order(self) -> bool:
        """Whether the rows are the layers themselves, in order."""
        return bool((self.order == np.arange(len(self.order))).all())


def place(layers: int, stages: int, chunks: int = 1, per_stage: Sequence[int] | None = None) -> Placement:
    """Layers on stages: `per_stage` [P·v] if given, else as even as can be, the last groups one longer.

    Even in number is even in cost: blocks are stacks of one module, whose layers do the same products (a window only
    masks scores, experts are in all layers or in none), and embedding and head are cut over all stages.
    The first stages hold the most microbatches in flight, so the longer groups go to the end.
    Raises MeshkitError, with what would fit, for too few layers or numbers that do not add up.
    """
    groups = stages * chunks
    if per_stage is None:
        if layers < groups:
            most = layers // stages  # chunks that a stage can have
            fewer = f"{most}{' or less' * (most > 2)}" if most > 1 else "1 and pipeline.schedule to '1f1b'"
            stages_at_most = layers // chunks
            raise MeshkitError(
                f"model.layers = {layers} are too few for mesh.pipe = {stages}"
                + (f" stages × pipeline.virtual = {chunks} chunks" if chunks > 1 else " stages")
                + ": set "
                + (f"mesh.pipe to {stages_at_most}{' or less' * (stages_at_most > 1)}, or " if stages_at_most else "")
                + (f"pipeline.virtual to {fewer}, or " if chunks > 1 and most else "")
                + f"model.layers to {groups} or more"
            )
        short, longer = divmod(layers, groups)
        return Placement(stages, chunks, (short,) * (groups - longer) + (short + 1,) * longer)
    even = place(layers, stages, chunks).counts
    if len(per_stage) != groups or sum(per_stage) != layers or min(per_stage) < 1:
        raise MeshkitError(
            f"pipeline.layers_per_stage = {list(per_stage)}: it takes {groups} numbers (mesh.pipe = {stages}"
            + (f" × pipeline.virtual = {chunks}" if chunks > 1 else "")
            + f"), each at least 1, that add up to model.layers = {layers}; for example {list(even)}"
        )
    return Placement(stages, chunks, tuple(per_stage))
