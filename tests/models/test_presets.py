"""Sizes by name, and which of them can be cut how."""

import math
import re

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.config import MeshShape, ModelConfig, RopeScaling
from meshkit.errors import MeshkitError
from meshkit.models.build import builder
from meshkit.models.presets import PRESETS, check_cut, sizes
from meshkit.pipeline.stage import functional

PUBLISHED = {
    "llama2-7b": 6.74e9,
    "llama2-13b": 13.02e9,
    "llama2-70b": 68.98e9,
    "llama3-1b": 1.24e9,
    "llama3-3b": 3.21e9,
    "llama3-8b": 8.03e9,
    "llama3-70b": 70.6e9,
    "llama3-405b": 405.9e9,
    "mistral-7b": 7.24e9,
    "qwen2.5-7b": 7.62e9,
    "qwen3-8b": 8.19e9,
    "gpt2": 124.4e6,
    "gpt2-medium": 354.8e6,
    "gpt2-large": 774.0e6,
    "gpt2-xl": 1557.6e6,
    "gpt3-6.7b": 6.7e9,
    "gpt3-13b": 12.85e9,  # "13B"; the paper's width 5140 is not 40 heads of 128
    "gpt3-175b": 174.6e9,
}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_the_published_number_of_parameters(preset: str) -> None:
    shapes = functional(builder(sizes(ModelConfig(preset=preset)), vocab_multiple=1)).shapes
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    if preset.startswith("tiny"):
        assert count < 1e6
    else:
        assert count == pytest.approx(PUBLISHED[preset], rel=0.01)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("mesh", [MeshShape(data=1, tensor=1, pipe=1), MeshShape(data=8, tensor=4, pipe=2)])
def test_a_preset_fits_the_usual_meshes(preset: str, mesh: MeshShape) -> None:
    if preset == "gpt2-xl" and mesh.tensor == 4:  # it has 25 heads
        with pytest.raises(MeshkitError, match=r"model\.heads = 25"):
            check_cut(sizes(ModelConfig(preset=preset)), mesh, 1024)
    else:
        check_cut(sizes(ModelConfig(preset=preset)), mesh, 1024)


# --- sizes --------------------------------------------------------------------------------------


def test_the_configs_own_sizes_stand_over_the_presets() -> None:
    chosen = sizes(ModelConfig(preset="llama3-8b", layers=2, tied=True, rope_scaling=RopeScaling(factor=2.0)))
    assert (chosen.layers, chosen.tied, chosen.width, chosen.head_dim) == (2, True, 4096, 128)
    assert chosen.rope_scaling == RopeScaling(factor=2.0)


def test_the_datas_vocabulary_stands_between_preset_and_config() -> None:
    assert sizes(ModelConfig(preset="llama3-8b")).vocab == 128256
    assert sizes(ModelConfig(preset="llama3-8b"), vocab=300).vocab == 300
    assert sizes(ModelConfig(preset="llama3-8b", vocab=512), vocab=300).vocab == 512


def test_head_dim_follows_width_and_heads_unless_given() -> None:
    assert sizes(ModelConfig(preset="llama3-1b")).head_dim == 64
    assert sizes(ModelConfig(preset="llama3-1b", width=1024)).head_dim == 32
    assert sizes(ModelConfig(preset="llama3-1b", width=1024, head_dim=64)).head_dim == 64
    assert sizes(ModelConfig(preset="gpt2", heads=6)).head_dim == 128


def test_without_key_value_heads_every_head_has_its_own() -> None:
    assert sizes(ModelConfig(preset="gpt2", heads=6)).kv_heads == 6


def test_an_unknown_preset_is_answered_with_the_nearest() -> None:
    with pytest.raises(MeshkitError, match=r"model\.preset = 'llama3-8': .*did you mean 'llama3-8b'"):
        sizes(ModelConfig(preset="llama3-8"))


def numbers_after(said: str, words: str) -> list[int]:
    """The choices that an error lists after `words`."""
    found = re.search(re.escape(words) + r" ([\d, ]*\d)", said)
    return [int(number) for number in found[1].split(", ")] if found else []


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(1, 16))
def test_every_fix_of_key_value_heads_is_one(heads: int, kv_heads: int) -> None:
    config = ModelConfig(heads=heads, kv_heads=kv_heads, width=heads * 8)
    if heads % kv_heads == 0:
        assert sizes(config).kv_heads == kv_heads
        return
    with pytest.raises(MeshkitError, match=rf"model\.heads = {heads} .* model\.kv_heads = {kv_heads}:") as error:
        sizes(config)
    fixes = numbers_after(str(error.value), "set model.kv_heads to one of")
    assert fixes
    for fix in fixes:
        assert sizes(config.model_copy(update={"kv_heads": fix})).kv_heads == fix


@settings(deadline=None)
@given(st.integers(1, 128), st.integers(1, 32))
def test_every_fix_of_heads_that_do_not_split_the_width_is_one(width: int, heads: int) -> None:
    config = ModelConfig(preset="gpt2", width=width, heads=heads)
    if width % heads == 0:
        assert sizes(config).head_dim == width // heads
        return
    with pytest.raises(MeshkitError, match=rf"model\.width = {width} .* model\.heads = {heads} heads") as error:
        sizes(config)
    fixes = numbers_after(str(error.value), "or model.heads to one of")
    assert fixes
    for fix in fixes:
        assert sizes(config.model_copy(update={"heads": fix})).heads == fix
    assert sizes(config.model_copy(update={"head_dim": 64})).head_dim == 64


@pytest.mark.parametrize("odd", [1, 3, 7])
def test_rotary_positions_need_an_even_head(odd: int) -> None:
    config = ModelConfig(preset="tiny", head_dim=odd)
    with pytest.raises(MeshkitError, match=rf"model\.head_dim = {odd} is odd") as error:
        sizes(config)
    for fix in re.findall(r"to (\d+) or (\d+)", str(error.value))[0]:
        assert sizes(config.model_copy(update={"head_dim": int(fix)}))
    assert sizes(ModelConfig(preset="tiny-gpt2", head_dim=odd)).head_dim == odd


# --- cuts ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_every_fix_of_a_cut_is_one(data: st.DataObject) -> None:
    """Whatever does not divide: each offered choice mends its key, and following them ends in a layout."""
    kv_heads = data.draw(st.integers(1, 8), "kv_heads")
    heads = kv_heads * data.draw(st.integers(1, 4), "queries a key")
    width = 2 * heads * data.draw(st.integers(1, 8), "half head_dim")
    model = ModelConfig(
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        mlp_width=data.draw(st.integers(1, 64), "mlp_width"),
        context=64,
    )
    mesh = MeshShape(data=1, tensor=data.draw(st.integers(1, 8), "tensor"), pipe=1)
    sequence = data.draw(st.integers(1, 64), "sequence")
    while (said := complaint(model, mesh, sequence)) is not None:
        key = said.partition(" ")[0]
        fixes = choices(said)
        assert fixes
        for name, number in fixes:
            after = complaint(*changed(model, mesh, sequence, name, number))
            assert after is None or not after.startswith(key), f"{name} = {number} does not mend: {said}"
        model, mesh, sequence = changed(model, mesh, sequence, *data.draw(st.sampled_from(fixes), "fix"))


def complaint(model: ModelConfig, mesh: MeshShape, sequence: int) -> str | None:
    try:
        check_cut(sizes(model), mesh, sequence)
    except MeshkitError as error:
        return str(error)
    return None


def choices(said: str) -> list[tuple[str, int]]:
    """(key, value) of every way out that an error offers."""
    _, _, fixes = said.partition(": set ")
    found = []
    for fix in fixes.split("; or "):
        key, _, numbers = fix.partition(" to ")
        found += [(key, int(number)) for number in numbers.removeprefix("one of ").split(", ")]
    return found


def changed(
    model: ModelConfig, mesh: MeshShape, sequence: int, key: str, value: int
) -> tuple[ModelConfig, MeshShape, int]:
    table, _, name = key.partition(".")
    if table == "model":
        return model.model_copy(update={name: value}), mesh, sequence
    if table == "mesh":
        return model, mesh.model_copy(update={name: value}), sequence
    assert key == "data.sequence"
    return model, mesh, value


def test_a_sequence_longer_than_the_context_is_refused() -> None:
    with pytest.raises(MeshkitError, match=r"data\.sequence = 1025 exceeds model\.context = 1024"):
        check_cut(sizes(ModelConfig(preset="gpt2")), MeshShape(data=1), 1025)


def test_the_numbers_stand_in_the_error() -> None:
    with pytest.raises(MeshkitError) as error:
        check_cut(sizes(ModelConfig(preset="llama3-8b")), MeshShape(data=1, tensor=16, pipe=1), 4096)
    assert str(error.value) == (
        "model.kv_heads = 8 does not split into mesh.tensor = 16 equal parts: "
        "set mesh.tensor to one of 1, 2, 4, 8; or model.kv_heads to 16"
    )
