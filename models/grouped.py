"""Products of rows with the matrix of their group, in work that grows with the rows and not with the groups.

Rows of a group lie next to each other. They are taken block by block, each block of one group, in a loop of as many
trips as the groups' lengths ask for: nothing but the last block of a group is filled up. (`jax.lax.ragged_dot` says the
same; XLA of jax 0.10 and 0.12 makes of it a dense product of every row with every group's matrix, on CPU and GPU.)

Shapes: N rows, R rows of a block, e groups, I and O features in and out.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

MOST_ROWS = 512
"""Of a block: enough for a GPU's matrix units, of which one block at a time takes all."""

LEAST_ROWS = 8


class Block(NamedTuple):
    """A block of rows: the first one's number, the group, and which of the rows are the group's."""

    start: jax.Array
    group: jax.Array
    own_R1: jax.Array


def rows_of_a_block(rows: int, groups: int) -> int:
    """R, a power of two: at most what an even share of the rows fills, so that little is filled up."""
    share = max(1, rows // groups)
    return min(MOST_ROWS, max(LEAST_ROWS, 1 << (share.bit_length() - 1)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def grouped_product(x_NI: jax.Array, w_eIO: jax.Array, lengths_e: jax.Array, R: int) -> jax.Array:
    """y[n] = x[n] @ w[group of n], [N, O]; 0 for rows behind the last group.

    lengths_e: int32, how many rows each group has, in order. The last R rows of x are nobody's: a block may reach
    into them.
    """
    return _product(x_NI, w_eIO, lengths_e, R)


def _forward(
    x_NI: jax.Array, w_eIO: jax.Array, lengths_e: jax.Array, R: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    return _product(x_NI, w_eIO, lengths_e, R), (x_NI, w_eIO, lengths_e)


def _backward(
    R: int, saved: tuple[jax.Array, jax.Array, jax.Array], dy_NO: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    # Two loops: the weights' can wait for zero-bubble's W.
    x_NI, w_eIO, lengths_e = saved
    dx_NI = _product(dy_NO, w_eIO.swapaxes(1, 2), lengths_e, R)

    def add(block: Block, dw_eIO: jax.Array) -> jax.Array:
        x_RI, dy_RO = _rows(x_NI, block), _rows(dy_NO, block)
        part_IO = jnp.matmul(x_RI.T, dy_RO, preferred_element_type=dw_eIO.dtype)
        return dw_eIO.at[block.group].add(part_IO)

    wide = jnp.promote_types(w_eIO.dtype, jnp.float32)
    dw_eIO = _each_block(lengths_e, R, add, jnp.zeros(w_eIO.shape, wide))
    return dx_NI, dw_eIO.astype(w_eIO.dtype), None


grouped_product.defvjp(_forward, _backward)


def _product(x_NI: jax.Array, w_eIO: jax.Array, lengths_e: jax.Array, R: int) -> jax.Array:
    def write(block: Block, y_NO: jax.Array) -> jax.Array:
        # Rows of the next group, written as zeros, are its own block's to write.
        return lax.dynamic_update_slice_in_dim(y_NO, _rows(x_NI, block) @ w_eIO[block.group], block.start, 0)

    return _each_block(lengths_e, R, write, jnp.zeros((len(x_NI), w_eIO.shape[2]), x_NI.dtype))


def _each_block(
    lengths_e: jax.Array, R: int, act: Callable[[Block, jax.Array], jax.Array], carry: jax.Array
) -> jax.Array:
    """`act` on every block, in order of the rows."""
    blocks_e = -(-lengths_e // R)
    last_e, end_e = jnp.cumsum(blocks_e), jnp.cumsum(lengths_e)

    def trip(b: jax.Array, carry: jax.Array) -> jax.Array:
        group = jnp.searchsorted(last_e, b, side="right")
        start = end_e[group] - lengths_e[group] + (b - last_e[group] + blocks_e[group]) * R
        return act(Block(start, group, (start + jnp.arange(R) < end_e[group])[:, None]), carry)

    return lax.fori_loop(0, last_e[-1], trip, carry)


def _rows(x_NI: jax.Array, block: Block) -> jax.Array:
    return jnp.where(block.own_R1, lax.dynamic_slice_in_dim(x_NI, block.start, len(block.own_R1)), 0)
