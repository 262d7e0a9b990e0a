"""The largest mesh that is left when devices are gone, by the config's own rules. No JAX."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from meshkit.config import MeshShape, RunConfig
from meshkit.errors import MeshkitError
from meshkit.models.presets import check_cut, sizes
from meshkit.pipeline import builders
from meshkit.pipeline.placement import place


def fit(config: RunConfig, counts: Iterable[int]) -> RunConfig | None:
    """`config` on the largest mesh that takes one of `counts` devices; None: none is legal.

    config: with no axis of -1. The data axis shrinks first: the other two say what a device holds, so they stay as
    long as there are devices for one replica. Then a smaller pipe, then a smaller tensor, on as many devices as that
    allows. The global batch stays, in more microbatches, none larger than before.
    """
    descending = sorted(counts, reverse=True)
    for shape in (*_with_fewer_replicas(config.mesh, descending), *_with_smaller_replicas(config.mesh, descending)):
        for microbatches in _microbatches(config, shape):
            changed = _with(config, shape, microbatches)
            if _is_legal(changed):
                return changed
    return None


def changes(config: RunConfig) -> dict[str, Any]:
    """What `fit` may have changed, as overrides."""
    mesh = {f"mesh.{axis}": size for axis, size in config.mesh.sizes.items()}
    return mesh | {"pipeline.microbatches": config.pipeline.microbatches}


def _with_fewer_replicas(old: MeshShape, counts: list[int]) -> Iterator[MeshShape]:
    replica = old.tensor * old.pipe
    for count in counts:
        if count % replica == 0:
            yield old.model_copy(update={"data": count // replica})


def _with_smaller_replicas(old: MeshShape, counts: list[int]) -> Iterator[MeshShape]:
    """The largest first; of as many devices, those with more tensor peers, then more stages."""
    for count in counts:
        for tensor, pipe in itertools.product(range(old.tensor, 0, -1), range(old.pipe, 0, -1)):
            if count % (tensor * pipe) == 0:
                yield MeshShape(data=count // (tensor * pipe), tensor=tensor, pipe=pipe)


def _microbatches(config: RunConfig, shape: MeshShape) -> Iterator[int]:
    """Numbers of microbatches, ascending, that split the batch into samples of the old size or smaller."""
    size = config.microbatch_size(config.mesh.data)
    for m in range(config.pipeline.microbatches, config.data.batch + 1):
        if config.data.batch % (shape.data * m) == 0 and config.data.batch // (shape.data * m) <= size:
            yield m


def _with(config: RunConfig, shape: MeshShape, microbatches: int) -> RunConfig:
    pipeline = config.pipeline.model_copy(update={"microbatches": microbatches})
    return config.model_copy(update={"mesh": shape, "pipeline": pipeline})


def _is_legal(config: RunConfig) -> bool:
    """What `assemble` would refuse is refused here."""
    shape, pipeline = config.mesh, config.pipeline
    try:
        model = sizes(config.model, config.model.vocab)
        check_cut(model, shape, config.data.sequence)
        place(model.layers, shape.pipe, pipeline.virtual, pipeline.layers_per_stage)
        builders.from_config(pipeline, shape.pipe)
    except MeshkitError:
        return False
    return True
