"""Linears, norms, rotary positions and attention, each with its cut over `tensor` at the parameter.

A product whose *columns* are cut (ColumnLinear) leaves features cut; the product whose *rows* are
cut (RowLinear) takes them so and its partial sums are added over the tensor peers, by the compiler,
from the PartitionSpecs below (Megatron-LM, arXiv 1909.08053).

Shapes: B samples, S positions, H width, N heads, K key/value heads, D head_dim, F features out.
"""

import dataclasses
import functools
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
from meshkit.pipeline.context import Context, Memory
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
        self.lora: Any = nnx.data(None)  # an adapter beside the kernel (lora.py)

    def __call__(self, x: jax.Array) -> jax.Array:
        return _affine(self, x)


class RowLinear(nnx.Module):
    """x [B, S, F] with F cut over tensor -> [B, S, H]: partial products, summed over tensor."""

    def __init__(self, features: int, width: int, rngs: nnx.Rngs, std: float, bias: bool = False):
        self.kernel = nnx.Param(_normal(rngs, features, width, std), out_sharding=P(TENSOR, None))
        self.bias = nnx.Param(jnp.zeros(width), out_sharding=P(None)) if bias else None
        self.lora: Any = nnx.data(None)  # an adapter beside the kernel (lora.py)

    def __call__(self, x: jax.Array) -> jax.Array:
        return _affine(self, x)


def _affine(linear: ColumnLinear | RowLinear, x: jax.Array) -> jax.Array:
    y = x @ linear.kernel.get_value()
    y = checkpoint_name(y if linear.lora is None else y + linear.lora(x), PRODUCT)
    return y if linear.bias is None else y + linear.bias.get_value()


class RMSNorm(nnx.Module):
    """x / rms(x) · scale over the last dim, computed in at least float32 (arXiv 1910.07467).

    offset: added to the scale, which is drawn as 1 − offset.
    """

    def __init__(self, width: int, epsilon: float, offset: float = 0.0):
        self.epsilon, self.offset = epsilon, offset
        self.scale = nnx.Param(jnp.full(width, 1 - offset, float), out_sharding=P(None))

    def __call__(self, x_BSH: jax.Array) -> jax.Array:
        x = x_BSH.astype(jnp.promote_types(x_BSH.dtype, jnp.float32))
        x = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + self.epsilon)
        scale = self.scale.get_value()
        return x.astype(x_BSH.dtype) * (scale + self.offset if self.offset else scale)


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


def rotate(x_BSND: jax.Array, frequency: Sequence[float] | jax.Array, context: Context) -> jax.Array:
    """Rotary positions: feature pairs (i, i + D/2) turned by position × frequency.

    Angles are made in float64 on the host; those that only the layer or generation tells, on the device.
    """
    xp: Any = jnp if context.first is not None or isinstance(frequency, jax.Array) else np
    wide = jnp.promote_types(x_BSND.dtype, jnp.float32)
    position_S = xp.arange(x_BSND.shape[1]) + (0 if context.first is None else context.first)
    angle = position_S[:, None] * xp.asarray(frequency)
    cos, sin = (at_positions(context, jnp.asarray(f(angle), wide))[:, :, None] for f in (xp.cos, xp.sin))
    first, second = jnp.split(x_BSND.astype(wide), 2, -1)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.astype(x_BSND.dtype)


def at_positions(context: Context, table_SD: jax.Array) -> jax.Array:
    """The rows, for x's tokens, of what depends on the position: [B or 1, S, D]. Position 0 begins each document."""
    return table_SD[None] if context.segments_BS is None else table_SD[context.positions_BS]


@dataclasses.dataclass(frozen=True)
class Scores:
    """How attention weighs what it sees, where that is not softmax(q·k / √D).

    scale: of q·k; None: 1 / √D. cap: scores x become cap · tanh(x / cap) (arXiv 2408.00118).
    """

    scale: float | None = None
    cap: float | None = None


def attention_to(
    memory: Memory,
    q_BSND: jax.Array,
    first: jax.Array,
    scores: Scores = Scores(),
    window: int | jax.Array | None = None,
) -> jax.Array:
    """Causal attention to what is remembered, of queries whose first stands at `first`, on one device."""
    return _plain(q_BSND, memory.k_BTKD, memory.v_BTKD, scores, window, first=first)


def attention(
    q_BSND: jax.Array,
    k_BSKD: jax.Array,
    v_BSKD: jax.Array,
    scores: Scores = Scores(),
    window: int | jax.Array | None = None,
    segments_BS: jax.Array | None = None,
) -> jax.Array:
    """Causal attention, heads cut over tensor; cuDNN's flash kernel on GPU, XLA elsewhere.

    window: latest tokens that are seen, a query's own included; None: all. It may be an int32 scalar of the layer.
    segments_BS: number of each token's document, which alone it sees; None: a sample is one.
    The kernel takes half precision, heads of a multiple of 8 features, at most 128, and no cap; the rest is XLA's
    everywhere, with S² scores a head. Documents, and windows that differ between layers, reach the kernel as a mask:
    S² values a sample, and as many in the backward pass, whatever the number of heads. (cuDNN has packed documents
    without a mask, from Hopper on; no public function of jax 0.12 leads there.)
    Its inside is never kept for the backward pass: a flash kernel keeps nothing, and on XLA the
    probabilities (N·S² values a sample) are computed again.
    """
    if isinstance(window, int) and window >= q_BSND.shape[1]:
        window = None
    given = {} if window is None else {"window": jnp.asarray(window, jnp.int32)}
    given |= {} if segments_BS is None else {"segments_BS": segments_BS}

    @over_tensor([HEADS] * 3 + [P()], HEADS)
    def heads(q: jax.Array, k: jax.Array, v: jax.Array, given: dict[str, jax.Array]) -> jax.Array:
        def plain(q: jax.Array, k: jax.Array, v: jax.Array, given: dict[str, jax.Array]) -> jax.Array:
            if q.dtype == jnp.float64 or scores.cap is not None or given:
                return _plain(q, k, v, scores, **given)
            return _xla(q, k, v, scores.scale)

        def kernel(q: jax.Array, k: jax.Array, v: jax.Array, given: dict[str, jax.Array]) -> jax.Array:
            if segments_BS is None and not isinstance(window, jax.Array):
                return _cudnn(q, k, v, scores.scale, window=window)
            return _cudnn(q, k, v, scores.scale, mask=_seen(q.shape[1], k.shape[1], **given)[:, None])

        fits = CUDA and q.dtype in (jnp.bfloat16, jnp.float16) and q.shape[-1] in FLASH_HEADS
        if fits and scores.cap is None:
            return jax.lax.platform_dependent(q, k, v, given, cuda=kernel, default=plain)
        return plain(q, k, v, given)

    return heads(q_BSND, k_BSKD, v_BSKD, given)


def _seen(
    S: int,
    T: int,
    window: int | jax.Array | None = None,
    segments_BS: jax.Array | None = None,
    first: int | jax.Array = 0,
) -> jax.Array:
    """Which of T tokens each of S queries, the first at position `first`, attends to: bool [B or 1, S, T]."""
    distance_ST = jnp.arange(S)[:, None] + first - jnp.arange(T)
    seen_ST = distance_ST >= 0
    if window is not None:
        seen_ST &= distance_ST < window
    if segments_BS is None:
        return seen_ST[None]
    return seen_ST[None] & (segments_BS[:, :, None] == segments_BS[:, None, :])


def _cudnn(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    scale: float | None,
    window: int | None = None,
    mask: jax.Array | None = None,
) -> jax.Array:
    return jax.nn.dot_product_attention(
        q,
        k,
        v,
        mask=mask,
        is_causal=True,
        scale=scale,
        local_window_size=None if window is None else (window - 1, 0),
        implementation="cudnn",
    )


_again = functools.partial(jax.checkpoint, prevent_cse=False)
"""Nothing of the inside is kept for the backward pass. Where a layer's forward is made again right before its backward,
XLA may take the scores of that one: a barrier would have them made a third time."""


def _xla(q: jax.Array, k: jax.Array, v: jax.Array, scale: float | None) -> jax.Array:
    attend = functools.partial(jax.nn.dot_product_attention, is_causal=True, scale=scale, implementation="xla")
    return _again(attend)(q, k, v)


def _plain(
    q_BSND: jax.Array,
    k_BTKD: jax.Array,
    v_BTKD: jax.Array,
    scores: Scores,
    window: int | jax.Array | None = None,
    segments_BS: jax.Array | None = None,
    first: int | jax.Array = 0,
) -> jax.Array:
    """Attention written out, in at least float32: `jax.nn.dot_product_attention` has no caps, and takes its softmax
    in float32 even in float64. `_seen` says what is seen."""

    @_again
    def attend(q_BSND: jax.Array, k_BTKD: jax.Array, v_BTKD: jax.Array, *limits: Any) -> jax.Array:
        (B, S, N, D), T = q_BSND.shape, k_BTKD.shape[1]
        wide = jnp.promote_types(q_BSND.dtype, jnp.float32)
        q_BSKGD = q_BSND.reshape(B, S, k_BTKD.shape[2], -1, D)
        x_BKGST = jnp.einsum("bskgd,btkd->bkgst", q_BSKGD, k_BTKD, preferred_element_type=wide)
        x_BKGST = x_BKGST * (1 / np.sqrt(D) if scores.scale is None else scores.scale)
        if scores.cap is not None:
            x_BKGST = scores.cap * jnp.tanh(x_BKGST / scores.cap)
        seen_B11ST = _seen(S, T, *limits)[:, None, None]
        p_BKGST = jax.nn.softmax(jnp.where(seen_B11ST, x_BKGST, -jnp.inf)).astype(v_BTKD.dtype)
        return jnp.einsum("bkgst,btkd->bskgd", p_BKGST, v_BTKD).reshape(B, S, N, D)

    return attend(q_BSND, k_BTKD, v_BTKD, window, segments_BS, first)


def _normal(rngs: nnx.Rngs, rows: int, columns: int, std: float) -> Any:
    return jax.random.normal(rngs.params(), (rows, columns)) * std
