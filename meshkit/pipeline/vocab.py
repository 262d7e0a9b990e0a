"""Embedding and cross-entropy with the vocabulary cut over pipe × tensor.

Every device holds v rows of a [vocabulary, width] table and takes its part of each microbatch's
look-up and logits, so that no stage waits for a head on the last one. Collectives and backward passes
are written out here: automatic differentiation never crosses a manual collective.

Shapes: B microbatch size, S sequence, s sequence / tensor, H width, V vocabulary, v rows on a device.
Functions run inside a region that is manual over (data, pipe); activations enter and leave with the
sequence cut over `tensor`, x_BsH, when a sequence can be cut at all.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from meshkit.mesh import PIPE, TENSOR
from meshkit.pipeline.collectives import (
    all_gather,
    axis_index,
    axis_size,
    over_tensor,
    pmax,
    psum,
    psum_scatter,
    widened,
)

TokenLoss = Callable[[jax.Array, jax.Array], jax.Array]
"""A user's loss: (logits [B, S, V] float32, targets [B, S]) -> loss of each token [B, S]."""

CUT = P(None, TENSOR, None)  # activations between layers: sequence cut over tensor
ROWS = P(TENSOR, None)  # the tensor part of a table's cut; its pipe part is manual already


class VocabTable(nnx.Module):
    """A table [vocabulary, width]: the embedding, or the (untied) head. Padded rows are zero for ever.

    `vocab`: true rows. `multiple`: the table is padded to a multiple of it (pipe × tensor devices);
    the drawn values do not depend on it. `cap`: as a head, logits x become cap · tanh(x / cap).
    """

    def __init__(
        self, vocab: int, width: int, multiple: int, rngs: nnx.Rngs, std: float = 0.02, cap: float | None = None
    ):
        self.vocab, self.cap = vocab, cap
        rows = jax.random.normal(rngs.params(), (vocab, width)) * std
        padding = -vocab % multiple
        self.table = nnx.Param(jnp.pad(rows, ((0, padding), (0, 0))), out_sharding=P((PIPE, TENSOR), None))

    def lookup(self, tokens_BS: jax.Array) -> jax.Array:
        """Rows of the whole table on one device, x [B, S, H]."""
        return self.table.get_value()[tokens_BS]

    def logits(self, h_BSH: jax.Array) -> jax.Array:
        """Scores of the true vocabulary on one device, [B, S, V] in at least float32."""
        return _logits(h_BSH, self.table.get_value()[: self.vocab], self.cap)


def lookup(table_vH: jax.Array, tokens_BS: jax.Array) -> jax.Array:
    """Rows of the cut table: each device adds those it holds, x_BsH on every stage."""

    @over_tensor([ROWS, P()], CUT)
    def f(table_vH: jax.Array, tokens_BS: jax.Array) -> jax.Array:
        row_BS, mine_BS = _own_rows(tokens_BS, table_vH.shape[0])
        x_BSH = jnp.where(mine_BS[..., None], table_vH[row_BS], 0)
        return psum(psum_scatter(x_BSH, TENSOR, dim=1), PIPE)

    return f(table_vH, tokens_BS)


def lookup_grad(grad_vH: jax.Array, tokens_BS: jax.Array, dx_BsH: jax.Array) -> jax.Array:
    """`grad_vH` plus the gradient of `lookup`: each device adds dx to the rows it holds."""

    @over_tensor([ROWS, P(), CUT], ROWS)
    def f(grad_vH: jax.Array, tokens_BS: jax.Array, dx_BsH: jax.Array) -> jax.Array:
        row_BS, mine_BS = _own_rows(tokens_BS, grad_vH.shape[0])
        dx_BSH = all_gather(dx_BsH, TENSOR, dim=1)
        return grad_vH.at[row_BS].add(jnp.where(mine_BS[..., None], dx_BSH, 0).astype(grad_vH.dtype))

    return f(grad_vH, tokens_BS, dx_BsH)


class Head(NamedTuple):
    """What `head` returns: the loss (a sum of weighted token losses) and its two gradients."""

    loss: jax.Array
    dh_BsH: jax.Array
    grad_vH: jax.Array | None


def head(
    table_vH: jax.Array,
    grad_vH: jax.Array | None,
    h_BsH: jax.Array,
    targets_BS: jax.Array,
    weights_BS: jax.Array,
    vocab: int,
    loss: TokenLoss | None = None,
    cap: float | None = None,
) -> Head:
    """Loss of one microbatch, the gradient of h, and `grad_vH` plus the gradient of the table (None: it is frozen).

    `weights_BS` scale each token's loss (mask ÷ target tokens of the global batch). `loss=None` is the
    cross-entropy on slices of the vocabulary; a user's TokenLoss gets the gathered logits, B·S·V
    float32 values on every device. The columns of padded rows get no probability and no gradient.
    `cap`: that of the table (see VocabTable).
    """

    @over_tensor([ROWS, ROWS, CUT, P(), P()], (P(), CUT, ROWS))
    def f(
        table_vH: jax.Array, grad_vH: jax.Array | None, h_BsH: jax.Array, targets_BS: jax.Array, weights_BS: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        h_BSH = all_gather(h_BsH, TENSOR, dim=1)
        logits_BSv = _logits(h_BSH, table_vH, cap)
        total, dlogits_BSv = _loss_and_dlogits(logits_BSv, targets_BS, weights_BS, vocab, loss)
        if cap is not None:
            dlogits_BSv *= 1 - (logits_BSv / cap) ** 2
        wide = dlogits_BSv.dtype
        dlogits_BSv = dlogits_BSv.astype(h_BsH.dtype)
        dh_BSH = jnp.einsum("bsv,vh->bsh", dlogits_BSv, table_vH, preferred_element_type=wide)
        dh_BsH = psum(psum_scatter(dh_BSH, TENSOR, dim=1), PIPE).astype(h_BsH.dtype)
        if grad_vH is None:
            return total, dh_BsH, None
        dtable_vH = jnp.einsum("bsv,bsh->vh", dlogits_BSv, h_BSH, preferred_element_type=wide)
        return total, dh_BsH, grad_vH + dtable_vH.astype(grad_vH.dtype)

    return Head(*f(table_vH, grad_vH, h_BsH, targets_BS, weights_BS))


def head_loss(
    table_vH: jax.Array,
    h_BsH: jax.Array,
    targets_BS: jax.Array,
    weights_BS: jax.Array,
    vocab: int,
    loss: TokenLoss | None = None,
    cap: float | None = None,
) -> jax.Array:
    """The loss alone, for evaluation: arguments as in `head`."""

    @over_tensor([ROWS, CUT, P(), P()], P())
    def f(table_vH: jax.Array, h_BsH: jax.Array, targets_BS: jax.Array, weights_BS: jax.Array) -> jax.Array:
        h_BSH = all_gather(h_BsH, TENSOR, dim=1)
        return _loss_and_dlogits(_logits(h_BSH, table_vH, cap), targets_BS, weights_BS, vocab, loss)[0]

    return f(table_vH, h_BsH, targets_BS, weights_BS)


def _logits(h_BSH: jax.Array, table_vH: jax.Array, cap: float | None) -> jax.Array:
    logits_BSv = jnp.einsum("bsh,vh->bsv", h_BSH, table_vH, preferred_element_type=widened(h_BSH).dtype)
    return logits_BSv if cap is None else cap * jnp.tanh(logits_BSv / cap)


def _loss_and_dlogits(
    logits_BSv: jax.Array, targets_BS: jax.Array, weights_BS: jax.Array, vocab: int, loss: TokenLoss | None
) -> tuple[jax.Array, jax.Array]:
    """Sum of weighted token losses over the whole vocabulary, and its gradient by this slice of logits."""
    weights_BS = weights_BS.astype(logits_BSv.dtype)
    if loss is not None:
        return _gathered_loss(loss, logits_BSv, targets_BS, weights_BS, vocab)
    rows = logits_BSv.shape[-1]
    row_BS, mine_BS = _own_rows(targets_BS, rows)
    logits_BSv = jnp.where(_first_row(rows) + jnp.arange(rows) < vocab, logits_BSv, -jnp.inf)
    top_BS = pmax(logits_BSv.max(-1), TENSOR, PIPE)
    exp_BSv = jnp.exp(logits_BSv - top_BS[..., None])
    sum_BS = psum(exp_BSv.sum(-1), TENSOR, PIPE)
    hit_BSv = mine_BS[..., None] & (row_BS[..., None] == jnp.arange(rows))
    target_BS = psum(jnp.where(hit_BSv, logits_BSv, 0).sum(-1), TENSOR, PIPE)
    total = jnp.sum((jnp.log(sum_BS) + top_BS - target_BS) * weights_BS)
    return total, (exp_BSv / sum_BS[..., None] - hit_BSv) * weights_BS[..., None]


def _gathered_loss(
    loss: TokenLoss, logits_BSv: jax.Array, targets_BS: jax.Array, weights_BS: jax.Array, vocab: int
) -> tuple[jax.Array, jax.Array]:
    rows = logits_BSv.shape[-1]
    logits_BSV = all_gather(all_gather(logits_BSv, TENSOR, dim=2), PIPE, dim=2)

    def total(logits_BSV: jax.Array) -> jax.Array:
        return jnp.sum(loss(logits_BSV[..., :vocab], targets_BS) * weights_BS)

    value, dlogits_BSV = jax.value_and_grad(total)(logits_BSV)
    return value, jax.lax.dynamic_slice_in_dim(dlogits_BSV, _first_row(rows), rows, axis=2)


def _first_row(rows: int) -> jax.Array | int:
    return (axis_index(PIPE) * axis_size(TENSOR) + axis_index(TENSOR)) * rows


def _own_rows(tokens: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
    """For each token its row in this device's slice (clipped), and whether it is there at all."""
    local = tokens - _first_row(rows)
    return jnp.clip(local, 0, rows - 1), (local >= 0) & (local < rows)
