"""GPT-2 and GPT-3: LayerNorm, biases, learned positions, GELU, dropout, head tied to the embedding.

Dropout acts on the embedding and on what attention and MLP add to the residual stream, not inside
attention, where flash kernels have none.

Shapes: B samples, S positions, H width, N heads, D head_dim.
"""

import math
from typing import Any

import jax
from flax import nnx
from jax.sharding import PartitionSpec as P

from meshkit.models.layers import ColumnLinear, LayerNorm, RowLinear, at_positions, attention, attention_to
from meshkit.models.presets import Sizes
from meshkit.pipeline.context import Context, Memory, dropout
from meshkit.pipeline.stage import apply_stack, stack, whole_sequence
from meshkit.pipeline.vocab import VocabTable

STD = 0.02


class Attention(nnx.Module):
    """Multi-head attention; query, key and value are separate column cuts, so that heads stay whole."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        self.head_dim = sizes.head_dim
        features = sizes.heads * sizes.head_dim
        self.query = ColumnLinear(sizes.width, features, rngs, STD, bias=True)
        self.key = ColumnLinear(sizes.width, features, rngs, STD, bias=True)
        self.value = ColumnLinear(sizes.width, features, rngs, STD, bias=True)
        self.out = RowLinear(features, sizes.width, rngs, STD / math.sqrt(2 * sizes.layers), bias=True)

    def __call__(
        self, h_BSH: jax.Array, context: Context, memory: Memory | None = None
    ) -> tuple[jax.Array, Memory | None]:
        """Attention's output, and the memory with these tokens in it, if there is one."""
        B, S, _ = h_BSH.shape
        q_BSND, k_BSND, v_BSND = (
            linear(h_BSH).reshape(B, S, -1, self.head_dim) for linear in (self.query, self.key, self.value)
        )
        if memory is None or context.first is None:
            h_BSND = attention(q_BSND, k_BSND, v_BSND, segments_BS=context.segments_BS)
            return self.out(h_BSND.reshape(B, S, -1)), None
        memory = memory.read_on(k_BSND, v_BSND, context.first)
        return self.out(attention_to(memory, q_BSND, context.first).reshape(B, S, -1)), memory


class MLP(nnx.Module):
    """gelu(x·up) · down, GELU in its tanh form as GPT-2 has it (arXiv 1606.08415)."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        self.up = ColumnLinear(sizes.width, sizes.mlp_width, rngs, STD, bias=True)
        self.down = RowLinear(sizes.mlp_width, sizes.width, rngs, STD / math.sqrt(2 * sizes.layers), bias=True)

    def __call__(self, h_BSH: jax.Array) -> jax.Array:
        return self.down(jax.nn.gelu(self.up(h_BSH), approximate=True))


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs):
        self.dropout = sizes.dropout
        self.attention_norm = LayerNorm(sizes.width, sizes.norm_eps)
        self.attention = Attention(sizes, rngs)
        self.mlp_norm = LayerNorm(sizes.width, sizes.norm_eps)
        self.mlp = MLP(sizes, rngs)

    def __call__(self, x_BSH: jax.Array, context: Context, memory: Memory | None = None) -> Any:
        """x; with a memory of the tokens before, (x, the memory of these too)."""
        h_BSH, memory = self.attention(whole_sequence(self.attention_norm(x_BSH)), context, memory)
        x_BSH = x_BSH + dropout(h_BSH, self.dropout, context, site=0)
        h_BSH = whole_sequence(self.mlp_norm(x_BSH))
        x_BSH = x_BSH + dropout(self.mlp(h_BSH), self.dropout, context, site=1)
        return x_BSH if memory is None else (x_BSH, memory)


class GPT2(nnx.Module):
    """The whole model; `vocab_multiple` (pipe × tensor) is what the vocabulary's rows are padded to."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs, vocab_multiple: int = 1):
        self.dropout = sizes.dropout
        self.embed = VocabTable(sizes.vocab, sizes.width, vocab_multiple, rngs)
        self.positions = nnx.Param(
            jax.random.normal(rngs.params(), (sizes.context, sizes.width)) * STD / 2, out_sharding=P(None, None)
        )
        self.blocks = stack(sizes.layers, lambda rngs: Block(sizes, rngs), rngs)
        self.norm = LayerNorm(sizes.width, sizes.norm_eps)
        self.head = None if sizes.tied else VocabTable(sizes.vocab, sizes.width, vocab_multiple, rngs)

    def enter(self, x_BSH: jax.Array, context: Context) -> jax.Array:
        first = 0 if context.first is None else context.first
        position_SH = jax.lax.dynamic_slice_in_dim(self.positions.get_value(), first, x_BSH.shape[1])
        x_BSH = x_BSH + at_positions(context, position_SH)
        return dropout(x_BSH, self.dropout, context, site=0)

    def leave(self, x_BSH: jax.Array) -> jax.Array:
        return self.norm(x_BSH)

    def __call__(self, tokens_BS: jax.Array, context: Context) -> jax.Array:
        x_BSH = self.enter(self.embed.lookup(tokens_BS), context)
        x_BSH = self.leave(apply_stack(self.blocks, x_BSH, context))
        return (self.head or self.embed).logits(x_BSH)
