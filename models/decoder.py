"""Llama (arXiv 2302.13971, 2407.21783) and its descendants: RMSNorm, rotary positions, grouped-query attention,
gated MLPs. What a family does otherwise is said by its `Style` (families.py).

Shapes: B samples, S positions, H width, N heads, K key/value heads, D head_dim, F mlp_width.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from meshkit.models.experts import Experts
from meshkit.models.layers import (
    ColumnLinear,
    RMSNorm,
    RowLinear,
    Scores,
    attention,
    attention_to,
    rope_frequencies,
    rotate,
)
from meshkit.models.presets import Sizes
from meshkit.pipeline.context import Context, Memory, dropout
from meshkit.pipeline.stage import apply_stack, stack, whole_sequence
from meshkit.pipeline.vocab import VocabTable

STD = 0.02
ACTIVATIONS = {"silu": jax.nn.silu, "gelu": lambda x: jax.nn.gelu(x, approximate=True)}
EVERYTHING = 2**30
"""A window that no sequence fills."""


def norm(sizes: Sizes, width: int | None = None) -> RMSNorm:
    """An RMSNorm of the family, of the residual stream if no width is given."""
    return RMSNorm(width or sizes.width, sizes.norm_eps, float(sizes.style.unit_offset))


class Attention(nnx.Module):
    """Grouped-query attention: query, key and value columns cut over tensor by heads, output by rows."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        style = sizes.style
        self.head_dim, self.window, self.global_every = sizes.head_dim, style.window, style.global_every
        scale = None if style.query_scale is None else style.query_scale**-0.5
        self.scores = Scores(scale, style.attention_cap)
        self.frequency = tuple(rope_frequencies(sizes.head_dim, sizes.rope_theta, sizes.rope_scaling))
        self.local_frequency = None
        if style.local_theta is not None:
            self.local_frequency = tuple(rope_frequencies(sizes.head_dim, style.local_theta, None))
        linear = lambda heads: ColumnLinear(sizes.width, heads * sizes.head_dim, rngs, STD, bias=style.qkv_bias)
        self.query, self.key, self.value = (linear(heads) for heads in (sizes.heads, sizes.kv_heads, sizes.kv_heads))
        self.query_norm = norm(sizes, sizes.head_dim) if style.qk_norm else None
        self.key_norm = norm(sizes, sizes.head_dim) if style.qk_norm else None
        self.out = RowLinear(sizes.heads * sizes.head_dim, sizes.width, rngs, STD / math.sqrt(2 * sizes.layers))

    def __call__(
        self, h_BSH: jax.Array, context: Context, memory: Memory | None = None
    ) -> tuple[jax.Array, Memory | None]:
        """Attention's output, and the memory with these tokens in it, if there is one."""
        B, S, _ = h_BSH.shape
        q_BSND, k_BSKD, v_BSKD = (
            linear(h_BSH).reshape(B, S, -1, self.head_dim) for linear in (self.query, self.key, self.value)
        )
        if self.query_norm is not None and self.key_norm is not None:
            q_BSND, k_BSKD = self.query_norm(q_BSND), self.key_norm(k_BSKD)
        window, frequency = self._seen(context.layer)
        q_BSND, k_BSKD = (rotate(x, frequency, context) for x in (q_BSND, k_BSKD))
        if memory is None or context.first is None:
            h_BSND = attention(q_BSND, k_BSKD, v_BSKD, self.scores, window, context.segments_BS)
            return self.out(h_BSND.reshape(B, S, -1)), None
        memory = memory.read_on(k_BSKD, v_BSKD, context.first)
        return self.out(attention_to(memory, q_BSND, context.first, self.scores, window).reshape(B, S, -1)), memory

    def _seen(self, layer: jax.Array | int) -> tuple[int | jax.Array | None, tuple[float, ...] | jax.Array]:
        """How far a layer sees, and its rotary frequencies."""
        if self.window is None or not self.global_every:
            return self.window, self.frequency
        everywhere = (layer + 1) % self.global_every == 0
        window = jnp.where(everywhere, EVERYTHING, self.window)
        if self.local_frequency is None:
            return window, self.frequency
        return window, jnp.where(everywhere, jnp.array(self.frequency), jnp.array(self.local_frequency))


class GatedMLP(nnx.Module):
    """activation(x·gate) ⊙ (x·up), then down (arXiv 2002.05202)."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        self.activation = ACTIVATIONS[sizes.style.activation]
        self.gate = ColumnLinear(sizes.width, sizes.mlp_width, rngs, STD)
        self.up = ColumnLinear(sizes.width, sizes.mlp_width, rngs, STD)
        self.down = RowLinear(sizes.mlp_width, sizes.width, rngs, STD / math.sqrt(2 * sizes.layers))

    def __call__(self, h_BSH: jax.Array, context: Context) -> jax.Array:
        return self.down(self.activation(self.gate(h_BSH)) * self.up(h_BSH))


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); with post norms, what is added is normed."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        style = sizes.style
        self.dropout = sizes.dropout
        self.attention_norm = norm(sizes)
        self.attention = Attention(sizes, rngs)
        self.attention_post_norm = norm(sizes) if style.post_norms else None
        self.mlp_norm = norm(sizes)
        self.mlp = Experts(sizes, rngs, STD) if style.experts else GatedMLP(sizes, rngs)
        self.mlp_post_norm = norm(sizes) if style.post_norms else None

    def __call__(self, x_BSH: jax.Array, context: Context, memory: Memory | None = None) -> Any:
        """x; with a memory of the tokens before, (x, the memory of these too)."""
        h_BSH, memory = self.attention(whole_sequence(self.attention_norm(x_BSH)), context, memory)
        h_BSH = self.attention_post_norm(h_BSH) if self.attention_post_norm is not None else h_BSH
        x_BSH = x_BSH + dropout(h_BSH, self.dropout, context, site=0)
        h_BSH = self.mlp(whole_sequence(self.mlp_norm(x_BSH)), context)
        h_BSH = self.mlp_post_norm(h_BSH) if self.mlp_post_norm is not None else h_BSH
        x_BSH = x_BSH + dropout(h_BSH, self.dropout, context, site=1)
        return x_BSH if memory is None else (x_BSH, memory)


class Decoder(nnx.Module):
    """The whole model; `vocab_multiple` (pipe × tensor) is what the vocabulary's rows are padded to."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs, vocab_multiple: int = 1):
        table = lambda: VocabTable(sizes.vocab, sizes.width, vocab_multiple, rngs, cap=sizes.style.logit_cap)
        self.multiplier = math.sqrt(sizes.width) if sizes.style.embedding_scale else None
        self.embed = table()
        self.blocks = stack(sizes.layers, lambda rngs: Block(sizes, rngs), rngs)
        self.norm = norm(sizes)
        self.head = None if sizes.tied else table()

    def enter(self, x_BSH: jax.Array, context: Context) -> jax.Array:
        # The factor is rounded to the dtype of the step, as it was when the published weights were trained.
        return x_BSH if self.multiplier is None else x_BSH * jnp.asarray(self.multiplier, x_BSH.dtype)

    def leave(self, x_BSH: jax.Array) -> jax.Array:
        return self.norm(x_BSH)

    def __call__(self, tokens_BS: jax.Array, context: Context) -> jax.Array:
        x_BSH = self.enter(self.embed.lookup(tokens_BS), context)
        x_BSH = self.leave(apply_stack(self.blocks, x_BSH, context))
        return (self.head or self.embed).logits(x_BSH)
