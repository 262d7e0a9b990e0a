"""A mixture of experts: each token goes through a few of many gated MLPs (arXiv 2006.16668, 2401.04088).

Experts are cut over `tensor`: a device holds whole experts, sees all tokens of its replica's microbatch, and puts
those that chose one of its experts through it; the peers' sums are added as those of a row-cut product are. So a
layer exchanges what a dense one does, and no token is ever dropped: rows are sorted by expert and multiplied group by
group (`grouped.py`), so that a device works on the rows that chose its experts and no others.

Shapes: B samples, S positions, H width, E experts, e experts of a device, k chosen, F mlp_width, N rows: B·S·k, and
those that the last block may reach into.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from meshkit.mesh import TENSOR
from meshkit.models.grouped import grouped_product, rows_of_a_block
from meshkit.models.presets import Sizes
from meshkit.pipeline.collectives import axis_index, axis_size, over_tensor
from meshkit.pipeline.context import Context
from meshkit.pipeline.stage import PRODUCT

PARTS = P(TENSOR, None, None, None)


class Experts(nnx.Module):
    """Σ weight · MLP of the `chosen` experts with the highest router scores, [B, S, H] -> [B, S, H].

    Weights are softmax over all experts' scores, in at least float32; with weigh = "chosen" divided by their sum.
    """

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs, std: float):
        style = sizes.style
        self.chosen, self.weigh, self.balance = style.chosen, style.weigh, style.balance
        E, H, F = style.experts, sizes.width, sizes.mlp_width
        drawn = lambda *shape, std=std: jax.random.normal(rngs.params(), shape) * std
        self.router = nnx.Param(drawn(H, E), out_sharding=P(None, None))
        self.gate = nnx.Param(drawn(E, H, F), out_sharding=P(TENSOR, None, None))
        self.up = nnx.Param(drawn(E, H, F), out_sharding=P(TENSOR, None, None))
        self.down = nnx.Param(drawn(E, F, H, std=std / math.sqrt(2 * sizes.layers)), out_sharding=P(TENSOR, None, None))

    def __call__(self, h_BSH: jax.Array, context: Context) -> jax.Array:
        wide = jnp.promote_types(h_BSH.dtype, jnp.float32)
        scores_BSE = checkpoint_name(h_BSH @ self.router.get_value(), PRODUCT).astype(wide)
        p_BSE = jax.nn.softmax(scores_BSE)
        weight_BSk, expert_BSk = jax.lax.top_k(p_BSE, self.chosen)
        if self.weigh == "chosen":
            weight_BSk = weight_BSk / weight_BSk.sum(-1, keepdims=True)
        if self.balance:
            loss = balance_loss(p_BSE, expert_BSk) * self.balance * context.share
            h_BSH = with_loss(h_BSH, loss.astype(wide))
        # Each peer's own sum, side by side: adding them up is the compiler's, as for a row-cut product.
        peers = axis_size(TENSOR)
        h_TBSH = jnp.broadcast_to(h_BSH, (peers, *h_BSH.shape))
        gate_EHF, up_EHF, down_EFH = (parameter.get_value() for parameter in (self.gate, self.up, self.down))
        routed = over_tensor([PARTS, *[P(TENSOR, None, None)] * 3, P(), PARTS], PARTS)(_through_own_experts)
        weight_TBSk = jnp.broadcast_to(weight_BSk.astype(h_BSH.dtype), (peers, *weight_BSk.shape))
        return routed(h_TBSH, gate_EHF, up_EHF, down_EFH, expert_BSk, weight_TBSk).sum(0)


def _through_own_experts(
    h_1BSH: jax.Array,
    gate_eHF: jax.Array,
    up_eHF: jax.Array,
    down_eFH: jax.Array,
    expert_BSk: jax.Array,
    weight_1BSk: jax.Array,
) -> jax.Array:
    """The part of the sum that this device's experts give, [1, B, S, H]."""
    e, H, _ = gate_eHF.shape
    k = expert_BSk.shape[-1]
    own_N = expert_BSk.reshape(-1) - axis_index(TENSOR) * e
    group_N = jnp.where((own_N >= 0) & (own_N < e), own_N, e)  # the last group is that of the others' experts
    R = rows_of_a_block(len(group_N), e * axis_size(TENSOR))
    order_N = jnp.pad(jnp.argsort(group_N), (0, R))
    lengths_e = jnp.bincount(group_N, length=e + 1)[:e].astype(jnp.int32)
    product = lambda x_NI, w_eIO: grouped_product(x_NI, w_eIO, lengths_e, R)
    h_NH = h_1BSH.reshape(-1, H)[order_N // k]
    y_NH = product(jax.nn.silu(product(h_NH, gate_eHF)) * product(h_NH, up_eHF), down_eFH)
    y_NH = y_NH * weight_1BSk.reshape(-1)[order_N][:, None]  # 0 for rows of others' experts
    return jnp.zeros((h_1BSH.size // H, H), y_NH.dtype).at[order_N // k].add(y_NH).reshape(h_1BSH.shape)


def balance_loss(p_BSE: jax.Array, expert_BSk: jax.Array) -> jax.Array:
    """Σ over samples of E · Σ_E (share of the sample's choices) · (mean router probability): 1 a sample if even.

    By sample, as in arXiv 2412.19437, not by batch: so no cut of the batch into replicas and microbatches changes it.
    """
    E = p_BSE.shape[-1]
    share_BE = jax.nn.one_hot(expert_BSk, E, dtype=p_BSE.dtype).mean((1, 2))
    return (share_BE * p_BSE.mean(1)).sum() * E


@jax.custom_vjp
def with_loss(x: jax.Array, loss: jax.Array) -> jax.Array:
    """x as it is; backward, `loss` (a scalar) counts as a further term of the objective. A block returns x alone."""
    return x


def _forward(x: jax.Array, loss: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x, jnp.ones_like(loss)


def _backward(one: jax.Array, dx: jax.Array) -> tuple[Any, Any]:
    return dx, one


with_loss.defvjp(_forward, _backward)
