"""Layers against their formulas in NumPy; the cut and the first value of every parameter."""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from meshkit.config import MeshShape, ModelConfig, RopeScaling
from meshkit.mesh import PIPE, TENSOR
from meshkit.models.build import builder
from meshkit.models.layers import LayerNorm, RMSNorm, attention, rope_frequencies, rotate
from meshkit.models.presets import check_cut, sizes
from meshkit.pipeline.context import Context
from meshkit.pipeline.stage import Params, functional, initial

FAMILIES = ["tiny", "tiny-gpt2"]
CONTEXT = Context(0, jnp.arange(1), None)
SMALL = dict(layers=3, width=64, heads=4, kv_heads=4, mlp_width=96, vocab=57, context=40)


@pytest.fixture(autouse=True)
def without_a_mesh() -> Iterator[None]:
    """Parameters with a cut can be made where there is no mesh."""
    with nnx.use_eager_sharding(False):
        yield


def drawn(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def small(preset: str, vocab_multiple: int = 1) -> Callable[[nnx.Rngs], Any]:
    return builder(sizes(ModelConfig(preset=preset, tied=False, **SMALL)), vocab_multiple)


@functools.cache
def drawing(preset: str, vocab_multiple: int) -> Callable[[int], Params]:
    """Seed -> first values of a small model, compiled once for all tests."""
    return jax.jit(functools.partial(initial, small(preset, vocab_multiple)))


def first_values(preset: str, seed: int, vocab_multiple: int = 1) -> dict[str, np.ndarray]:
    """Dotted name -> value."""
    return jax.tree.map(np.asarray, leaves(drawing(preset, vocab_multiple)(seed)))


def leaves(params: Params) -> dict[str, Any]:
    """Dotted name -> leaf."""
    flat = jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda x: isinstance(x, P))
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in flat}


# --- rotary positions ---------------------------------------------------------------------------


def test_rotation_multiplies_pairs_by_complex_numbers() -> None:
    x_BSND = drawn(2, 50, 3, 8)
    frequency = rope_frequencies(8, 10_000.0, None)
    assert frequency == pytest.approx([1, 0.1, 0.01, 0.001])
    z = x_BSND[..., :4] + 1j * x_BSND[..., 4:]
    z = z * np.exp(1j * np.arange(50)[:, None, None] * frequency)
    expected = np.concatenate([z.real, z.imag], -1)
    np.testing.assert_allclose(rotate(jnp.asarray(x_BSND), frequency, CONTEXT), expected, atol=2e-6)


def test_scores_depend_on_the_distance_alone() -> None:
    with jax.enable_x64(True):
        q, k = (jnp.asarray(np.tile(drawn(1, 1, 1, 16, dtype=np.float64, seed=s), (1, 40, 1, 1))) for s in (1, 2))
        frequency = rope_frequencies(16, 500_000.0, RopeScaling())
        scores = np.einsum("bsnd,btnd->st", rotate(q, frequency, CONTEXT), rotate(k, frequency, CONTEXT))
    for distance in range(-39, 40):
        diagonal = np.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-12)


def test_positions_far_out_are_as_exact_as_near_ones() -> None:
    """Angles are made in float64: in float32, 100 000 radians are known to 0.008 only."""
    x = jnp.zeros((1, 100_001, 1, 2)).at[:, -1, 0, 0].set(1.0)
    turned = rotate(x, rope_frequencies(2, 10_000.0, None), CONTEXT)[0, -1, 0]
    np.testing.assert_allclose(turned, [math.cos(100_000), math.sin(100_000)], atol=1e-6)


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        # Llama 3.1: theta 500000, D 128, factor 8, low 1, high 4, original 8192. Worked out by hand:
        # wavelength 2π·θ^(2i/D); short under 8192/4 = 2048, long over 8192/1 = 8192.
        (0, 1.0),  # wavelength 6.28
        (28, 500_000 ** (-28 / 64)),  # 1957.0: short, kept
        (36, 500_000 ** (-36 / 64) / 8),  # 10091: long, an eighth
        (63, 500_000 ** (-63 / 64) / 8),
    ],
)
def test_llama_3_keeps_short_waves_and_stretches_long_ones(pair: int, expected: float) -> None:
    assert rope_frequencies(128, 500_000.0, RopeScaling())[pair] == pytest.approx(expected, rel=1e-12)


def test_llama_3_blends_the_waves_between() -> None:
    """Pair 32: wavelength 2π·√500000 = 4442.9, smooth = (8192/4442.9 − 1)/(4 − 1) = 0.28128."""
    plain = 500_000**-0.5
    smooth = (8192 / 4442.88293816 - 1) / 3
    expected = (1 - smooth) * plain / 8 + smooth * plain
    assert rope_frequencies(128, 500_000.0, RopeScaling())[32] == pytest.approx(expected, rel=1e-9)
    assert smooth == pytest.approx(0.28128, abs=1e-5)


def test_scaled_frequencies_still_fall() -> None:
    assert (np.diff(rope_frequencies(128, 500_000.0, RopeScaling())) < 0).all()


# --- norms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rms_norm(dtype: Any) -> None:
    norm = RMSNorm(6, 1e-5)
    norm.scale.set_value(jnp.asarray(drawn(6, seed=1), dtype))
    x = np.asarray(jnp.asarray(drawn(2, 3, 6) * 100, dtype), np.float64)
    expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * np.asarray(norm.scale.get_value(), np.float64)
    actual = norm(jnp.asarray(x, dtype))
    assert actual.dtype == dtype
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=10 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_layer_norm(dtype: Any) -> None:
    norm = LayerNorm(6, 1e-5)
    norm.scale.set_value(jnp.asarray(drawn(6, seed=1), dtype))
    norm.bias.set_value(jnp.asarray(drawn(6, seed=2), dtype))
    x = np.asarray(jnp.asarray(drawn(2, 3, 6) + 10, dtype), np.float64)
    scale, bias = (np.asarray(p.get_value(), np.float64) for p in (norm.scale, norm.bias))
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias
    actual = norm(jnp.asarray(x, dtype))
    assert actual.dtype == dtype
    eps = 10 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, rtol=eps, atol=eps)


# --- attention ----------------------------------------------------------------------------------


def numpy_attention(q_BSND: np.ndarray, k_BSKD: np.ndarray, v_BSKD: np.ndarray) -> np.ndarray:
    """One query at a time, over the keys up to its own position."""
    out = np.zeros_like(q_BSND)
    B, S, N, D = q_BSND.shape
    for b, s, n in np.ndindex(B, S, N):
        key = n // (N // k_BSKD.shape[2])
        scores = k_BSKD[b, : s + 1, key] @ q_BSND[b, s, n] / math.sqrt(D)
        weights = np.exp(scores - scores.max())
        out[b, s, n] = weights / weights.sum() @ v_BSKD[b, : s + 1, key]
    return out


def qkv(kv_heads: int, dtype: Any) -> list[np.ndarray]:
    heads = (4, kv_heads, kv_heads)
    return [drawn(2, 9, n, 8, seed=seed).astype(np.float64).astype(dtype) for seed, n in enumerate(heads)]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(("dtype", "bound"), [(np.float64, 1e-14), (np.float32, 2e-6), (jnp.bfloat16, 0.03)])
def test_attention_in_every_precision(kv_heads: int, dtype: Any, bound: float) -> None:
    with jax.enable_x64(True):
        q, k, v = (jnp.asarray(x) for x in qkv(kv_heads, dtype))
        actual = jax.jit(attention)(q, k, v)
        assert actual.dtype == dtype
    expected = numpy_attention(*(np.asarray(x, np.float64) for x in (q, k, v)))
    np.testing.assert_allclose(np.asarray(actual, np.float64), expected, atol=bound)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_float64_attention_is_that_of_jax(kv_heads: int) -> None:
    with jax.enable_x64(True):
        q, k, v = (jnp.asarray(x) for x in qkv(kv_heads, np.float64))
        expected = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True))(q, k, v)
        np.testing.assert_allclose(jax.jit(attention)(q, k, v), expected, atol=1e-6)


@pytest.mark.parametrize("preset", FAMILIES)
def test_a_later_token_changes_nothing_before(preset: str) -> None:
    stages, params = functional(small(preset)), drawing(preset, 1)(0)
    tokens_BS = np.random.default_rng(0).integers(0, 50, (1, 12))
    other_BS = tokens_BS.copy()
    other_BS[0, 8] += 1
    run = jax.jit(lambda tokens_BS: stages.model(params)(tokens_BS, Context(-1, jnp.arange(1), None)))
    before, after = run(tokens_BS), run(other_BS)
    np.testing.assert_array_equal(before[:, :8], after[:, :8])
    assert (np.abs(np.asarray(before[:, 8:] - after[:, 8:])).max(-1) > 1e-6).all()


# --- parameters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("preset", FAMILIES)
@pytest.mark.parametrize("tensor", [2, 4])
@pytest.mark.parametrize("pipe", [2, 4])
def test_every_parameter_has_a_cut_that_divides(preset: str, tied: bool, tensor: int, pipe: int) -> None:
    chosen = sizes(ModelConfig(preset=preset, tied=tied))
    check_cut(chosen, MeshShape(data=1, tensor=tensor, pipe=pipe), 128)
    stages = functional(builder(chosen, tensor * pipe))
    shapes, specs = leaves(stages.shapes), leaves(stages.specs)
    ways = {None: 1, TENSOR: tensor, PIPE: pipe, (PIPE, TENSOR): pipe * tensor}
    assert shapes.keys() == specs.keys()
    for name, spec in specs.items():
        shape = shapes[name].shape
        assert isinstance(spec, P), name
        assert len(spec) == len(shape), name
        for size, entry in zip(shape, spec, strict=True):
            assert size % ways[entry] == 0, name
        if name.startswith("blocks."):
            assert spec[0] == PIPE, name
        elif name.endswith(".table"):
            assert spec == P((PIPE, TENSOR), None), name
        else:
            assert set(spec) == {None}, name  # every stage holds it


@pytest.mark.parametrize("preset", FAMILIES)
def test_matrices_are_cut_over_tensor_and_norms_are_not(preset: str) -> None:
    stages = functional(builder(sizes(ModelConfig(preset=preset)), 1))
    for name, spec in leaves(stages.specs["blocks"]).items():
        norm = "norm" in name or name in ("attention.out.bias", "mlp.down.bias")
        assert (TENSOR in spec) != norm, name


@pytest.mark.parametrize("preset", FAMILIES)
def test_first_values_do_not_depend_on_the_padding_of_the_vocabulary(preset: str) -> None:
    plain, padded = first_values(preset, 7), first_values(preset, 7, vocab_multiple=16)
    assert plain.keys() == padded.keys()
    for name, value in plain.items():
        np.testing.assert_array_equal(value, padded[name][: len(value)], err_msg=name)
        assert not padded[name][len(value) :].any(), name
    assert {len(value) for name, value in padded.items() if name.endswith(".table")} == {64}


@pytest.mark.parametrize("preset", FAMILIES)
def test_first_values_depend_on_the_seed_and_layers_differ(preset: str) -> None:
    one, other = first_values(preset, 1), first_values(preset, 2)
    for name, value in one.items():
        random = name.endswith((".kernel", ".table", "positions"))
        assert (value != other[name]).any() == random, name
        if name.startswith("blocks.") and random:
            assert (value[0] != value[1]).any(), name


@pytest.mark.parametrize("preset", FAMILIES)
def test_first_values_have_the_stated_spread(preset: str) -> None:
    """0.02; 0.02 / √(2·layers) where a layer adds to the residual stream; 0.01 for learned positions."""
    for name, value in first_values(preset, 0).items():
        if name.endswith("scale"):
            assert (value == 1).all(), name
        elif name.endswith("bias"):
            assert not value.any(), name
        else:
            residual = name.endswith(("out.kernel", "down.kernel"))
            std = 0.02 / math.sqrt(2 * SMALL["layers"]) if residual else 0.01 if name == "positions" else 0.02
            assert value.std() == pytest.approx(std, rel=0.05), name
            assert abs(value.mean()) < std / 10, name
