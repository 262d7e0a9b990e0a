"""Collectives that can be seen: named, skipped over axes of size 1, summed in at least float32.

For use inside `jax.shard_map`. Two facts make these wrappers more than sugar: a psum over an axis of
size 1 aborts XLA's partitioner in a partly manual region, and a bfloat16 reduction at the border of
such a region aborts XLA:CPU.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from meshkit.mesh import TENSOR

F = TypeVar("F", bound=Callable[..., Any])


def axis_size(axis: str) -> int:
    """Devices along a mesh axis in the mesh being traced for; 1 outside any mesh."""
    return dict(jax.sharding.get_abstract_mesh().shape).get(axis, 1)


def axis_index(axis: str) -> jax.Array | int:
    """This device's coordinate on a manual axis."""
    return lax.axis_index(axis) if axis_size(axis) > 1 else 0


def psum(x: jax.Array, *axes: str) -> jax.Array:
    """Sum over the devices of `axes`, in at least float32, returned in x's dtype."""
    if all(axis_size(axis) == 1 for axis in axes):
        return x
    wide = widened(x)
    for axis in axes:
        if axis_size(axis) > 1:
            wide = lax.psum(wide, axis)
    return wide.astype(x.dtype)


def pmax(x: jax.Array, *axes: str) -> jax.Array:
    """Maximum over the devices of `axes`."""
    for axis in axes:
        if axis_size(axis) > 1:
            x = lax.pmax(x, axis)
    return x


def shift(x: jax.Array, axis: str, by: int) -> jax.Array:
    """Hand x to the neighbour `by` places on along the ring `axis`."""
    size = axis_size(axis)
    return lax.ppermute(x, axis, [(i, (i + by) % size) for i in range(size)]) if size > 1 else x


def all_gather(x: jax.Array, axis: str, dim: int) -> jax.Array:
    """Put the slices that the devices of `axis` hold together along `dim`."""
    return lax.all_gather(x, axis, axis=dim, tiled=True) if axis_size(axis) > 1 else x


def psum_scatter(x: jax.Array, axis: str, dim: int) -> jax.Array:
    """Sum over `axis`, each device keeping its slice along `dim`; in at least float32, back in x's dtype."""
    if axis_size(axis) == 1:
        return x
    return lax.psum_scatter(widened(x), axis, scatter_dimension=dim, tiled=True).astype(x.dtype)


def after(x: jax.Array, arrays: Any, specs: Any) -> jax.Array:
    """x, which XLA:CPU cannot have before `arrays`, a tree of them cut over tensor as the tree `specs` says.

    XLA:CPU begins an exchange when its operands are there and the exchanges written before it have begun. One in a
    loop may then still run, and of two exchanges of a kind between the same devices each takes parts of the other:
    wrong numbers, or an abort. Only memory that one writes and the other reads keeps them apart, so where nothing else
    does, this makes some: x plus a 0 that is computed from one number of each array. Elsewhere it is x.
    """

    def tied(x: jax.Array, arrays: list[jax.Array]) -> jax.Array:
        @over_tensor(cuts, P())
        def never(*arrays: jax.Array) -> jax.Array:
            firsts = [a[(0,) * a.ndim] for a in arrays]
            return functools.reduce(jnp.logical_or, [(a == a) & (a != a) for a in firsts])  # nan too is not both

        return x + never(*arrays).astype(x.dtype)

    there = [(a, cut) for a, cut in zip(jax.tree.leaves(arrays), jax.tree.leaves(specs), strict=True) if a.size]
    cuts = [cut for _, cut in there]
    return lax.platform_dependent(x, [a for a, _ in there], cpu=tied, default=lambda x, _: x) if there else x


def over_tensor(in_specs: Sequence[P], out_specs: Any) -> Callable[[F], F]:
    """Decorator: make the tensor axis manual too, for a function called inside a (data, pipe) region.

    Also with tensor = 1: cuDNN's kernel cannot be partitioned while an axis is the compiler's. Outside
    any mesh the function is left as it is.
    """

    def decorate(function: F) -> F:
        if TENSOR not in jax.sharding.get_abstract_mesh().shape:
            return function
        return jax.shard_map(
            function, in_specs=tuple(in_specs), out_specs=out_specs, axis_names={TENSOR}, check_vma=False
        )

    return decorate


def widened(x: jax.Array) -> jax.Array:
    """x in the dtype that sums are made in: float32, or its own if wider."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32)) if jnp.issubdtype(x.dtype, jnp.floating) else x
