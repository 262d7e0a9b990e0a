"""From the PartitionSpec at a parameter to where its bytes lie.

Three layouts of the same tree of parameters:
  working   what a forward and backward use: cut over pipe and tensor, as the model annotates them;
  master    float32 weights and moments: with ZeRO also cut over data (arXiv 1910.02054);
  manual    the part of a layout that `jax.shard_map` over (data, pipe) must be told.
"""

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshkit.mesh import DATA, PIPE
from meshkit.pipeline.stage import Params

UNCUT = -1


def is_spec(x: Any) -> bool:
    """For `jax.tree.map` over trees of PartitionSpec."""
    return isinstance(x, P)


def zero_dims(shapes: Params, specs: Params, data: int) -> Params:
    """For each parameter the dim that ZeRO cuts over `data` replicas; UNCUT when none divides.

    The largest dim that neither pipe nor tensor cuts: gathering it needs no transposition of theirs.
    """

    def choose(shape: jax.ShapeDtypeStruct, spec: P) -> int:
        entries = list(spec) + [None] * (len(shape.shape) - len(spec))
        free = [d for d, size in enumerate(shape.shape) if entries[d] is None and size % data == 0]
        return max(free, key=lambda d: (shape.shape[d], d), default=UNCUT)

    return jax.tree.map(choose, shapes, specs)


def master_specs(specs: Params, dims: Params) -> Params:
    """The working specs with `data` added at the ZeRO dims."""

    def add(spec: P, dim: int) -> P:
        if dim == UNCUT:
            return spec
        entries = list(spec) + [None] * (dim + 1 - len(spec))
        entries[dim] = DATA
        return P(*entries)

    return jax.tree.map(add, specs, dims, is_leaf=is_spec)


def manual(specs: Params) -> Params:
    """The specs with every axis but data and pipe left out (tensor is the compiler's)."""

    def keep(entry: Any) -> Any:
        names = entry if isinstance(entry, tuple) else (entry,)
        kept = tuple(name for name in names if name in (DATA, PIPE))
        return kept[0] if len(kept) == 1 else kept or None

    return jax.tree.map(lambda spec: P(*map(keep, spec)), specs, is_leaf=is_spec)


def automatic(specs: Params) -> Params:
    """The rest of `manual`: the specs with data and pipe left out, for constraints inside the region."""

    def keep(entry: Any) -> Any:
        names = entry if isinstance(entry, tuple) else (entry,)
        kept = tuple(name for name in names if name not in (DATA, PIPE, None))
        return kept[0] if len(kept) == 1 else kept or None

    return jax.tree.map(lambda spec: P(*map(keep, spec)), specs, is_leaf=is_spec)


def named(mesh: Mesh, specs: Any) -> Any:
    """The same tree with `NamedSharding`s on `mesh`."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=is_spec)
