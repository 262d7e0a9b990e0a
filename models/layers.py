"""Linears, norms, rotary positions and attention, each with its cut over `tensor` at the parameter.

A product whose *columns* are cut (ColumnLinear) leaves features cut; the product whose *rows* are
cut (RowLinear) takes them so and its partial sums are added over the tensor peers, by the compiler,
from the PartitionSpecs below (Megatron-LM, arXiv 1909.08053).

Shapes: B samples, S positions, H width, N heads, K key/value heads, D head_dim, F features out.
"""

import importlib.util
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from meshkit.config import RopeScaling
from meshkit.mesh import TENSOR
from meshkit.pipeline.collectives import over_tensor
from meshkit.pipeline.stage import PRODUCT

HEADS = P(None, None, TENSOR, None)

CUDA = any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))
"""Whether a program for CUDA can be made here at all; without, not even tracing cuDNN's call works."""

FLASH_HEADS = range(8, 129, 8)
"""Features of a head that cuDNN's kernel takes."""


class ColumnLinear(nnx.Module):
    """x [B, S, H] -> [B, S, F], the F columns cut over tensor."""

    def __init__(self, width: int, features: int, rngs: nnx.Rngs, std: float, bias: bool = False):
        self.kernel = nnx.Param(_normal(rngs, width, features, std), out_sharding=P(None, TENSOR))
        self.bias = nnx.Param(jnp.zeros(features), out_sharding=P(TENSOR)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = checkpoint_name(x @ self.kernel.get_value(), PRODUCT)
        return y if self.bias is None else y + self.bias.get_value()


class RowLinear(nnx.Module):
    """x [B, S, F] with F cut over tensor -> [B, S, H]: partial products, summed over tensor."""

    def __init__(self, features: int, width: int, rngs: nnx.Rngs, std: float, bias: bool = False):
        self.kernel = nnx.Param(_normal(rngs, features, width, std), out_sharding=P(TENSOR, None))
        self.bias = nnx.Param(jnp.zeros(width), out_sharding=P(None)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = checkpoint_name(x @ self.kernel.get_value(), PRODUCT)
        return y if self.bias is None else y + self.bias.get_value()


class RMSNorm(nnx.Module):
    """x / rms(x) · scale, computed in at least float32 (arXiv 1910.07467)."""

    def __init__(self, width: int, epsilon: float):
        self.epsilon = epsilon
        self.scale = nnx.Param(jnp.ones(width), out_sharding=P(None))

    def __call__(self, x_BSH: jax.Array) -> jax.Array:
        x = x_BSH.astype(jnp.promote_types(x_BSH.dtype, jnp.float32))
        x = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + self.epsilon)
        return x.astype(x_BSH.dtype) * self.scale.get_value()


class LayerNorm(nnx.Module):
    """(x − mean) / std · scale + bias, computed in at least float32 (arXiv 1607.06450)."""

    def __init__(self, width: int, epsilon: float):
        self.epsilon = epsilon
        self.scale = nnx.Param(jnp.ones(width), out_sharding=P(None))
        self.bias = nnx.Param(jnp.zeros(width), out_sharding=P(None))

    def __call__(self, x_BSH: jax.Array) -> jax.Array:
        x = x_BSH.astype(jnp.promote_types(x_BSH.dtype, jnp.float32))
        x = x - jnp.mean(x, -1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + self.epsilon)
        return x.astype(x_BSH.dtype) * self.scale.get_value() + self.bias.get_value()


def rope_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> np.ndarray:
    """Radians a position for each pair of features, float64 [D/2] (arXiv 2104.09864).

    With `scaling`, as Llama 3.1 does it: long wavelengths divided by `factor`, short ones kept,
    those between interpolated (arXiv 2407.21783).
    """
    frequency = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    if scaling is None:
        return frequency
    wavelength = 2 * np.pi / frequency
    kept = (scaling.original / wavelength - scaling.low) / (scaling.high - scaling.low)
    kept = np.clip(kept, 0, 1)
    return kept * frequency + (1 - kept) * frequency / scaling.factor


def rotate(x_BSND: jax.Array, frequency: Sequence[float]) -> jax.Array:
    """Rotary positions: feature pairs (i, i + D/2) turned by position × frequency."""
    angle = np.arange(x_BSND.shape[1])[:, None] * np.asarray(frequency)
    wide = jnp.promote_types(x_BSND.dtype, jnp.float32)
    cos, sin = (jnp.asarray(f(angle), wide)[None, :, None] for f in (np.cos, np.sin))
    first, second = jnp.split(x_BSND.astype(wide), 2, -1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.astype(x_BSND.dtype)


def attention(q_BSND: jax.Array, k_BSKD: jax.Array, v_BSKD: jax.Array) -> jax.Array:
    """Causal attention, heads cut over tensor; cuDNN's flash kernel on GPU, XLA elsewhere.

    The kernel takes half precision, and heads of a multiple of 8 features, at most 128; others are XLA's everywhere.
    Its inside is never kept for the backward pass: a flash kernel keeps nothing, and on XLA the
    probabilities (N·S² values a sample) are computed again.
    """

    @over_tensor([HEADS] * 3, HEADS)
    def heads(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        if q.dtype == jnp.float64:
            return _float64(q, k, v)
        if CUDA and q.dtype in (jnp.bfloat16, jnp.float16) and q.shape[-1] in FLASH_HEADS:
            return jax.lax.platform_dependent(q, k, v, cuda=_cudnn, default=_xla)
        return _xla(q, k, v)

    return heads(q_BSND, k_BSKD, v_BSKD)


def _cudnn(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")


@jax.checkpoint
def _xla(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="xla")


@jax.checkpoint
def _float64(q_BSND: jax.Array, k_BSKD: jax.Array, v_BSKD: jax.Array) -> jax.Array:
    """The same in float64, where `jax.nn.dot_product_attention` would take its softmax in float32."""
    B, S, N, D = q_BSND.shape
    q_BSKGD = q_BSND.reshape(B, S, k_BSKD.shape[2], -1, D)
    scores_BKGST = jnp.einsum("bskgd,btkd->bkgst", q_BSKGD, k_BSKD) / np.sqrt(D)
    scores_BKGST = jnp.where(jnp.tri(S, dtype=bool), scores_BKGST, -jnp.inf)
    return jnp.einsum("bkgst,btkd->bskgd", jax.nn.softmax(scores_BKGST), v_BSKD).reshape(B, S, N, D)


def _normal(rngs: nnx.Rngs, rows: int, columns: int, std: float) -> Any:
    return jax.random.normal(rngs.params(), (rows, columns)) * std
