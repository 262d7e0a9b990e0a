"""The law over schedules and memory policies: any of them, together, equals one device; and what they cost.

Corners are always run; between them Hypothesis draws a fixed number of combinations, the same each time.
"""

import functools
import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from law import assert_equal, make_config, make_step

from meshkit.config import RunConfig
from meshkit.pipeline import buffers
from meshkit.pipeline.slots import allocate

GRIDS = Path(__file__).parent / "grids"


def config_of(
    shape: tuple[int, int, int],
    schedule: str,
    microbatches: int,
    recompute: str = "full",
    zero: int = 1,
    layers: int = 4,
    family: str = "llama",
    **more: Any,
) -> RunConfig:
    """More: virtual, layers_per_stage, overlap of the pipeline table; other keys as they are."""
    pipeline = {f"pipeline.{k}": more.pop(k) for k in ("virtual", "layers_per_stage", "overlap") if k in more}
    return make_config(
        shape,
        family,
        **{
            "pipeline.schedule": schedule,
            "pipeline.microbatches": microbatches,
            "data.batch": shape[0] * microbatches,
            "recompute": recompute,
            "zero": zero,
            "model.layers": layers,
        }
        | pipeline
        | more,
    )


CORNERS = {
    "interleaved": ((2, 1, 2), "interleaved", 4, "full", 1, 4, "llama", {"virtual": 2}),
    "interleaved, kept, ZeRO-3": (
        (2, 1, 2),
        "interleaved",
        2,
        "none",
        3,
        6,
        "gpt2",
        {"virtual": 3, "model.dropout": 0.2},
    ),
    "interleaved on one stage": ((1, 2, 1), "interleaved", 3, "selective", 0, 4, "llama", {"virtual": 4}),
    "zero-bubble": ((2, 2, 2), "zero-bubble", 3, "full", 2, 4, "llama", {}),
    "zero-bubble, kept": ((1, 1, 4), "zero-bubble", 2, "none", 1, 4, "llama", {}),
    "zero-bubble, selective, dropout": ((1, 2, 2), "zero-bubble", 5, "selective", 1, 4, "gpt2", {"model.dropout": 0.2}),
    "zero-bubble on one stage": ((2, 1, 1), "zero-bubble", 2, "none", 3, 2, "gpt2", {}),
    "uneven by hand": ((1, 1, 4), "1f1b", 3, "full", 1, 8, "llama", {"layers_per_stage": [1, 3, 2, 2]}),
    "uneven, interleaved": ((2, 1, 2), "interleaved", 4, "selective", 3, 7, "llama", {"virtual": 2}),
    "uneven, zero-bubble": ((1, 1, 3), "zero-bubble", 4, "full", 0, 5, "gpt2", {}),
    "hidden hops, 1f1b": ((1, 2, 2), "1f1b", 4, "none", 1, 4, "llama", {"overlap": True}),
    "hidden hops, gpipe": ((2, 1, 4), "gpipe", 3, "selective", 2, 4, "llama", {"overlap": True}),
    "hidden hops, zero-bubble": ((1, 1, 4), "zero-bubble", 5, "full", 1, 4, "llama", {"overlap": True}),
    "host memory": ((1, 2, 2), "1f1b", 4, "selective", 1, 4, "llama", {"offload": True}),
    "three replicas: nothing divides": ((3, 1, 2), "1f1b", 2, "selective", 3, 4, "gpt2", {"model.tied": True}),
    "ZeRO-2": ((4, 2, 1), "1f1b", 2, "selective", 2, 2, "gpt2", {"model.tied": True}),
}


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no action has written is NaN: it shows wherever it is read."""
    monkeypatch.setattr(buffers, "EMPTY", np.nan)


@pytest.mark.usefixtures("float64", "poisoned")
@pytest.mark.parametrize("name", CORNERS)
def test_corners_equal_one_device(name: str) -> None:
    *arguments, more = CORNERS[name]
    assert_equal(config_of(*arguments, **more))


@pytest.mark.usefixtures("float64", "poisoned")
def test_a_grid_of_the_users_equals_one_device() -> None:
    grid = GRIDS / "zigzag.txt"
    assert_equal(config_of((2, 2, 2), str(grid), 4, "none"))


@st.composite
def combinations(draw: st.DrawFn, schedule: str) -> RunConfig:
    shape = draw(
        st.sampled_from([(1, 1, 2), (2, 1, 2), (1, 2, 2), (2, 2, 2), (1, 1, 4), (2, 1, 4), (1, 1, 3), (1, 1, 8)])
    )
    interleaved, pipe = schedule == "interleaved", shape[2]
    virtual = draw(st.integers(1, min(4, 16 // pipe))) if interleaved else 1
    m = pipe * draw(st.integers(1, 16 // pipe)) if interleaved else draw(st.integers(1, 16))
    layers = draw(st.integers(pipe * virtual, max(8, pipe * virtual)))
    cuts = draw(st.sets(st.integers(1, layers - 1), min_size=pipe * virtual - 1, max_size=pipe * virtual - 1))
    by_hand = [end - start for start, end in itertools.pairwise([0, *sorted(cuts), layers])]
    return config_of(
        shape,
        schedule,
        m,
        draw(st.sampled_from(["full", "selective", "none"])),
        draw(st.sampled_from([0, 1, 2, 3])),
        layers,
        draw(st.sampled_from(["llama", "gpt2"])),
        virtual=virtual,
        layers_per_stage=draw(st.sampled_from([None, by_hand])),
        overlap=draw(st.booleans()) if not interleaved else False,
        offload=draw(st.booleans()),
    )


@pytest.mark.usefixtures("float64", "poisoned")
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero-bubble"])
def test_any_combination_equals_one_device(schedule: str) -> None:
    @settings(max_examples=8, derandomize=True, deadline=None, database=None)
    @given(combinations(schedule))
    def law(config: RunConfig) -> None:
        assert_equal(config)

    law()


# --- memory -------------------------------------------------------------------------------------


@functools.cache
def memory(schedule: str, microbatches: int, recompute: str = "full", zero: int = 1, **more: Any) -> Any:
    """XLA's memory of one device for a compiled step in float32, activations large beside all else."""
    config = config_of(
        (2, 1, 2), schedule, microbatches, recompute, zero, **{"precision": "float32", "data.sequence": 64} | more
    )
    config = config.model_copy(update={"model": config.model.model_copy(update={"context": 64})})
    step = make_step(config)
    state = jax.tree.map(
        lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s),
        jax.eval_shape(step.init, 0),
        step.state_shardings,
    )
    shape = (microbatches, config.data.batch // microbatches, config.data.sequence)
    kinds = {"tokens": jnp.int32, "targets": jnp.int32, "weights": jnp.float32}
    batch = {k: jax.ShapeDtypeStruct(shape, kind, sharding=step.batch_sharding) for k, kind in kinds.items()}
    return step.step.lower(state, batch).compile().memory_analysis()


@pytest.mark.parametrize(("schedule", "more"), [("1f1b", ()), ("interleaved", (("virtual", 2),)), ("zero-bubble", ())])
def test_memory_does_not_grow_with_microbatches(schedule: str, more: tuple) -> None:
    few, many = (memory(schedule, m, **dict(more)).temp_size_in_bytes for m in (8, 16))
    columns = 8 * 64 * 4 * 2  # the table's own entries: some int32 for each tick
    assert many - few <= columns
    assert many < few * 1.01


def test_memory_of_gpipe_grows_with_microbatches() -> None:
    few, many = (memory("gpipe", m).temp_size_in_bytes for m in (8, 16))
    stage_input = 64 * 16 * 4
    assert many - few >= 8 * stage_input


def test_keeping_more_takes_more_memory() -> None:
    full, selective, none = (memory("1f1b", 8, r).temp_size_in_bytes for r in ("full", "selective", "none"))
    assert full < selective < none


def test_zero_cuts_the_state_over_replicas() -> None:
    """Level 1 halves weights and moments on two replicas; only what no dim divides stays whole."""
    whole, cut = (memory("1f1b", 8, zero=zero).argument_size_in_bytes for zero in (0, 1))
    config = config_of((2, 1, 2), "1f1b", 8)
    batch = 3 * 4 * 8 * 64
    assert cut - batch == pytest.approx((whole - batch) / 2, rel=0.05)
    assert config.zero == 1


def test_zero_2_and_3_hold_less_than_zero_1() -> None:
    """Level 1 has the stage's weights gathered, gradients whole and their cut sum; 2 the first and last; 3 the last.

    XLA puts half of the cut sum beside the gradients, the rest in their place.
    """
    wide = {"model.width": 64, "model.mlp_width": 256, "model.head_dim": 8, "model.layers": 16}
    once, scattered, by_layer = (memory("1f1b", 8, zero=zero, **wide).temp_size_in_bytes for zero in (1, 2, 3))
    layer = 4 * (4 * 64 * 64 + 3 * 64 * 256)
    beside = 1 / 2
    assert once - by_layer == pytest.approx(8 * layer * (1 + 1 + beside / 2 - 1 / 2), rel=0.05)
    assert scattered - by_layer == pytest.approx(8 * layer, rel=0.05)


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches", "virtual", "kept", "held"),
    [
        ("gpipe", 4, 8, 1, 8, 0),
        ("1f1b", 4, 8, 1, 7, 0),  # 2(P − 1) + 1
        ("zero-bubble", 4, 8, 1, 7, 4),  # W waits for at most P − 1 ticks
        ("interleaved", 4, 8, 2, 11, 0),
    ],
)
def test_slots_have_closed_forms(
    schedule: str, stages: int, microbatches: int, virtual: int, kept: int, held: int
) -> None:
    from meshkit.pipeline.builders import build

    slots = allocate(build(schedule, stages, microbatches, virtual))
    assert (slots.kept, slots.held) == (kept, held)
