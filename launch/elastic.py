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

    config: with no axis of -1. The data axis changes first: the other two say what a device holds. Then pipe, then
    tensor. The global batch stays, in more microbatches, none larger than before.
    """
    for count in sorted(counts, reverse=True):
        for shape in _shapes(config.mesh, count):
            for microbatches in _microbatches(config, shape):
                changed = _with(config, shape, microbatches)
                if _is_legal(changed):
                    return changed
    return None


def changes(config: RunConfig) -> dict[str, Any]:
    """What `fit` may have changed, as overrides."""
    mesh = {f"mesh.{axis}": size for axis, size in config.mesh.sizes.items()}
    return mesh | {"pipeline.microbatches": config.pipeline.microbatches}


def _shapes(old: MeshShape, count: int) -> Iterator[MeshShape]:
    """Meshes of `count` devices, those that change less of pipe and tensor first."""
    divisors = [k for k in range(1, count + 1) if count % k == 0]
    cuts = [(t, p) for t, p in itertools.product(divisors, divisors) if count % (t * p) == 0]
    # A smaller axis gives each device more to hold, and a larger one splits what may not split: both only if need be.
    rank = lambda cut: (_factor(cut[0], old.tensor), _factor(cut[1], old.pipe), cut)
    for t, p in sorted(cuts, key=rank):
        yield MeshShape(data=count // (t * p), tensor=t, pipe=p)


def _factor(new: int, old: int) -> float:
    return max(new / old, old / new)


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
