"""Llama (arXiv 2302.13971, 2407.21783): RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Shapes: B samples, S positions, H width, N heads, K key/value heads, D head_dim, F mlp_width.
"""

import math

import jax
from flax import nnx

from meshkit.models.layers import ColumnLinear, RMSNorm, RowLinear, attention, rope_frequencies, rotate
from meshkit.models.presets import Sizes
from meshkit.pipeline.stage import Context, apply_stack, dropout, stack, whole_sequence
from meshkit.pipeline.vocab import VocabTable

STD = 0.02


class Attention(nnx.Module):
    """Grouped-query attention: query, key and value columns cut over tensor by heads, output by rows."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        self.head_dim = sizes.head_dim
        self.frequency = tuple(rope_frequencies(sizes.head_dim, sizes.rope_theta, sizes.rope_scaling))
        self.query = ColumnLinear(sizes.width, sizes.heads * sizes.head_dim, rngs, STD)
        self.key = ColumnLinear(sizes.width, sizes.kv_heads * sizes.head_dim, rngs, STD)
        self.value = ColumnLinear(sizes.width, sizes.kv_heads * sizes.head_dim, rngs, STD)
        self.out = RowLinear(sizes.heads * sizes.head_dim, sizes.width, rngs, STD / math.sqrt(2 * sizes.layers))

    def __call__(self, h_BSH: jax.Array) -> jax.Array:
        B, S, _ = h_BSH.shape
        q_BSND = rotate(self.query(h_BSH).reshape(B, S, -1, self.head_dim), self.frequency)
        k_BSKD = rotate(self.key(h_BSH).reshape(B, S, -1, self.head_dim), self.frequency)
        v_BSKD = self.value(h_BSH).reshape(B, S, -1, self.head_dim)
        return self.out(attention(q_BSND, k_BSKD, v_BSKD).reshape(B, S, -1))


class SwiGLU(nnx.Module):
    """silu(x·gate) ⊙ (x·up), then down (arXiv 2002.05202)."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        self.gate = ColumnLinear(sizes.width, sizes.mlp_width, rngs, STD)
        self.up = ColumnLinear(sizes.width, sizes.mlp_width, rngs, STD)
        self.down = RowLinear(sizes.mlp_width, sizes.width, rngs, STD / math.sqrt(2 * sizes.layers))

    def __call__(self, h_BSH: jax.Array) -> jax.Array:
        return self.down(jax.nn.silu(self.gate(h_BSH)) * self.up(h_BSH))


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        self.dropout = sizes.dropout
        self.attention_norm = RMSNorm(sizes.width, sizes.norm_eps)
        self.attention = Attention(sizes, rngs)
        self.mlp_norm = RMSNorm(sizes.width, sizes.norm_eps)
        self.mlp = SwiGLU(sizes, rngs)

    def __call__(self, x_BSH: jax.Array, context: Context) -> jax.Array:
        h_BSH = whole_sequence(self.attention_norm(x_BSH))
        x_BSH = x_BSH + dropout(self.attention(h_BSH), self.dropout, context, site=0)
        h_BSH = whole_sequence(self.mlp_norm(x_BSH))
        return x_BSH + dropout(self.mlp(h_BSH), self.dropout, context, site=1)


class Llama(nnx.Module):
    """The whole model; `vocab_multiple` (pipe × tensor) is what the vocabulary's rows are padded to."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs, vocab_multiple: int = 1):
        self.embed = VocabTable(sizes.vocab, sizes.width, vocab_multiple, rngs)
        self.blocks = stack(sizes.layers, lambda rngs: Block(sizes, rngs), rngs)
        self.norm = RMSNorm(sizes.width, sizes.norm_eps)
        self.head = None if sizes.tied else VocabTable(sizes.vocab, sizes.width, vocab_multiple, rngs)

    def enter(self, x_BSH: jax.Array, context: Context) -> jax.Array:
        return x_BSH

    def leave(self, x_BSH: jax.Array) -> jax.Array:
        return self.norm(x_BSH)

    def __call__(self, tokens_BS: jax.Array, context: Context) -> jax.Array:
        x_BSH = self.enter(self.embed.lookup(tokens_BS), context)
        x_BSH = self.leave(apply_stack(self.blocks, x_BSH, context))
        return (self.head or self.embed).logits(x_BSH)
