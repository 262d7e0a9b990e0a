"""The layers that one action works on: how to go through them, and how to reach them in a stage's stacks.

A layer loop is a scan over the rows of a chunk (`placement.py`), or, unrolled, the layers one after
another in the program: faster on CPU, slower to compile.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from meshkit.mesh import PIPE
from meshkit.pipeline.buffers import STAGE_GATE, gate, get, put
from meshkit.pipeline.collectives import axis_index
from meshkit.pipeline.context import Context
from meshkit.pipeline.placement import ROW, Placement
from meshkit.pipeline.schedule import IDLE
from meshkit.pipeline.stage import Params

C = TypeVar("C")


class LayerMoves(Protocol):
    """How replicas share layers (`zero.Zero`): both take one layer's tree."""

    def fetch(self, layer: Params) -> tuple[Params, Params]:
        """A layer's working weights, whole, from what this replica holds of them: those trained, and those frozen."""

    def deposit(self, gradient: Params) -> Params:
        """A layer's gradient as it is added up: whole, or this replica's part of the sum over all."""


@dataclasses.dataclass(frozen=True)
class Chunk:
    """The layers that one action works on, and how to reach them in the stage's stacks.

    rows: rows of a chunk in the stacks; sure: how many of them hold a layer in every chunk of every stage;
    count: how many do in this one (sure ≤ count ≤ rows).
    fetch: (stacks, k) -> working parameters of the chunk's k-th layer, trained and frozen. deposit: (gradients, k,
    gradient of that layer's trained ones) -> gradients with it added. context: k -> the layer's Context.
    """

    rows: int
    sure: int
    count: jax.Array | int
    fetch: Callable[[Params, Any], tuple[Params, Params]]
    deposit: Callable[[Params, Any, Params], Params]
    context: Callable[[Any], Context]
    unroll: int

    @property
    def unrolled(self) -> bool:
        """Whether the layers follow each other in the program, with nothing repeated and every k an int."""
        return self.unroll >= self.rows

    def each(self, one: Callable[[C, Any, Any], C], carry: C, reads: Any = (), backward: bool = False) -> C:
        """`one(carry, k, reads)` for the layers k of the chunk, in order or backward.

        Without empty rows, or up to them, that is a loop; rows that some chunks leave empty stand behind gates.
        reads: buffers that `one` reads and does not change. They go through the gates with the carry: what is made
        of them alone would be the same in every trip, and be moved in front of the gate (see `buffers.gate`).
        Scopes tell a profile which layer an instruction is for (`measured.py`).
        """

        def some(carry: C) -> C:
            spare = range(self.sure, self.rows)
            for k in reversed(spare) if backward else spare:
                index = jnp.where(k < self.count, k, IDLE)
                with jax.named_scope(f"{ROW}_{k}"):
                    carry, _ = gate(STAGE_GATE, "some", index, functools.partial(_beside, one, k), (carry, reads))
            return carry

        def all_(carry: C) -> C:
            if self.unrolled:
                for k in reversed(range(self.sure)) if backward else range(self.sure):
                    with jax.named_scope(f"{ROW}_{k}"):
                        carry = one(carry, k, reads)
                return carry
            ks = jnp.arange(self.sure, dtype=jnp.int32)
            step = lambda c, k: (one(c, k, reads), None)
            with jax.named_scope("layers_back" if backward else "layers"):
                return lax.scan(step, carry, ks, reverse=backward, unroll=min(self.unroll, self.sure))[0]

        return all_(some(carry)) if backward else some(all_(carry))


def chunk_of(
    placement: Placement, unroll: int, zero: LayerMoves, chunk: Any, context: Callable[[jax.Array], Context]
) -> Chunk:
    """Chunk number `chunk` of this stage. context: number of a layer in the model -> its Context."""
    rows = placement.longest
    group = chunk * placement.stages + axis_index(PIPE)
    first_layer = jnp.asarray(placement.starts)[group]
    first_row = chunk * rows if placement.chunks > 1 else 0

    def fetch(stacks: Params, k: Any) -> tuple[Params, Params]:
        return zero.fetch(jax.tree.map(lambda a: get(a, first_row + k), stacks))

    def deposit(gradients: Any, k: Any, gradient: Params) -> Any:
        gradient = zero.deposit(gradient)
        if isinstance(gradients, tuple):
            return (*gradients[:k], _add(gradients[k], gradient, chunk), *gradients[k + 1 :])
        return _add(gradients, gradient, first_row + k)

    count = rows if placement.even else jnp.asarray(placement.counts)[group]
    return Chunk(rows, placement.shortest, count, fetch, deposit, lambda k: context(first_layer + k), unroll)


def parted(placement: Placement, unroll: int, stacks: Params) -> Any:
    """Gradients of blocks as the layer loop wants them: stacks, or unrolled a tuple of the rows of a chunk.

    Unrolled layers have arrays of their own, [chunk, …]: added to at a place in a stack that the compiler
    knows, the whole stack would be copied.
    """
    rows, chunks = placement.longest, placement.chunks
    if unroll < rows:
        return stacks
    row = lambda k: jax.tree.map(lambda a: a.reshape(chunks, rows, *a.shape[1:])[:, k], stacks)
    return tuple(row(k) for k in range(rows))


def whole(gradients: Any) -> Params:
    """The inverse of `parted`."""
    if not isinstance(gradients, tuple):
        return gradients
    return jax.tree.map(lambda *a: jnp.stack(a, axis=1).reshape(-1, *a[0].shape[1:]), *gradients)


def _add(into: Params, gradient: Params, index: Any) -> Params:
    return jax.tree.map(lambda a, g: put(a, get(a, index) + g.astype(a.dtype), index), into, gradient)


def _beside(one: Callable[[C, Any, Any], C], k: int, through: tuple[C, Any]) -> tuple[C, Any]:
    carry, reads = through
    return one(carry, k, reads), reads
