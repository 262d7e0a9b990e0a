"""How each parameter is cut over the mesh: shapes and PartitionSpecs, from the model itself. Needs JAX, no device."""

import dataclasses
import functools
import math
from typing import Any

from meshkit.mesh import PIPE, TENSOR
from meshkit.models.presets import Sizes
from meshkit.pipeline.costs import BYTES, FLOAT32
from meshkit.pipeline.placement import Placement
from meshkit.view.setting import Case


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of the model and its cut.

    shape: as stored, blocks stacked along a first dim of rows (P·v chunks of the longest's layers). axes: for each
    dim the mesh axes that cut it in the compute dtype, between uses, outermost first: block k of a dim goes to the
    devices whose coordinates on these axes, read as one number, are k. master_axes: likewise of float32 weights and
    moments. spec, master_spec: the PartitionSpecs, as JAX prints them. local_shape, local_bytes: what a device holds
    in the compute dtype; master_local_shape, master_local_bytes: in float32.
    cut: columns, rows, vocabulary or whole: what of the matrix `tensor` cuts.
    """

    path: str
    shape: list[int]
    spec: str
    axes: list[list[str]]
    local_shape: list[int]
    local_bytes: int
    master_spec: str
    master_axes: list[list[str]]
    master_local_shape: list[int]
    master_local_bytes: int
    cut: str


@dataclasses.dataclass(frozen=True)
class Weights:
    """All parameters, in the model's order; those whose path starts with "blocks." are stacked layers."""

    parameters: list[Parameter]
    rows_per_stage: int


def weights(case: Case) -> Weights:
    """The part of the page that shows weights. Raises MeshkitError when the model cannot be imported."""
    sizes, ways, data = case.job.sizes, case.setting.tensor * case.setting.pipe, case.setting.data
    of = {"data": data, "tensor": case.setting.tensor, "pipe": case.setting.pipe}
    found = []
    trees = _trees(_Key(sizes), ways, case.placement, data if case.setting.zero else 1)
    for path, shape, spec, master in trees:
        axes, master_axes = _axes(spec, len(shape)), _axes(master, len(shape))
        local, kept = _local(shape, axes, of), _local(shape, master_axes, of)
        cut = _cut(axes)
        # With ZeRO 3 a replica holds its slice of the blocks alone, until a layer is used.
        if case.setting.zero == 3 and path.startswith("blocks."):
            spec, axes, local = master, master_axes, kept
        found.append(
            Parameter(
                path,
                list(shape),
                _spell(spec),
                axes,
                local,
                math.prod(local) * BYTES[case.job.precision],
                _spell(master),
                master_axes,
                kept,
                math.prod(kept) * FLOAT32,
                cut,
            )
        )
    return Weights(found, case.placement.longest * case.setting.virtual)


class _Key:
    """Sizes as a key of a cache: by value, options among them."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def __hash__(self) -> int:
        return hash(repr(self.sizes))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and repr(self.sizes) == repr(other.sizes)


@functools.lru_cache(maxsize=64)
def _trees(key: _Key, ways: int, placement: Placement, data: int) -> list[tuple[str, tuple[int, ...], Any, Any]]:
    """(path, shape, working spec, master spec) of each parameter; abstract, nothing is allocated."""
    import jax

    from meshkit.models.build import builder
    from meshkit.pipeline.stage import functional
    from meshkit.sharding import is_spec, master_specs, zero_dims

    stages = functional(builder(key.sizes, ways), placement)
    masters = stages.specs
    if data > 1:
        masters = master_specs(stages.specs, zero_dims(stages.shapes, stages.specs, data))
    shapes = jax.tree_util.tree_leaves_with_path(stages.shapes)
    specs, kept = (jax.tree.leaves(tree, is_leaf=is_spec) for tree in (stages.specs, masters))
    spell = lambda path: jax.tree_util.keystr(path, simple=True, separator=".")
    return [(spell(path), s.shape, spec, m) for (path, s), spec, m in zip(shapes, specs, kept, strict=True)]


def _axes(spec: Any, dims: int) -> list[list[str]]:
    entries = [*spec, *[None] * (dims - len(spec))]
    return [list(e) if isinstance(e, tuple) else [e] if e else [] for e in entries]


def _local(shape: tuple[int, ...], axes: list[list[str]], of: dict[str, int]) -> list[int]:
    return [size // math.prod(of[axis] for axis in names) for size, names in zip(shape, axes, strict=True)]


def _spell(spec: Any) -> str:
    entries = [f"({', '.join(map(repr, e))})" if isinstance(e, tuple) else repr(e) for e in spec]
    return f"P({', '.join(entries)})"


def _cut(axes: list[list[str]]) -> str:
    if [PIPE, TENSOR] in axes:
        return "vocabulary"
    cut = [dim for dim, names in enumerate(axes) if TENSOR in names]
    return "whole" if not cut else "columns" if cut[0] == len(axes) - 1 else "rows"


def block(parameter: Parameter, coordinates: dict[str, int], of: dict[str, int]) -> list[tuple[int, int]]:
    """[start, end) in each dim of what the device at `coordinates` works with; `of`: sizes of the axes."""
    ranges = []
    for names, local in zip(parameter.axes, parameter.local_shape, strict=True):
        k = 0
        for name in names:
            k = k * of[name] + coordinates[name]
        ranges.append((k * local, (k + 1) * local))
    return ranges
