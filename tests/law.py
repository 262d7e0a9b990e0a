"""How the law is checked: a config's loss and gradients on its mesh against one device, in float64.

The other side is `one_device`: the model called whole, `jax.value_and_grad`, Optax.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshkit import assemble, mesh
from meshkit.config import ModelConfig, RunConfig, load
from meshkit.equality import one_device
from meshkit.equality.one_device import Batch
from meshkit.equality.verify import canonical_leaves
from meshkit.pipeline.stage import Params, Stages, functional, initial, padded
from meshkit.train_step import TrainStep

PRESETS = {"llama": "tiny", "gpt2": "tiny-gpt2"}
BOUND = 1e-12
ROUNDING = 1e-3  # a leaf is measured by at least this share of the largest: a key bias has no gradient but rounding

Leaves = dict[str, np.ndarray]


def make_config(shape: tuple[int, int, int] = (2, 2, 2), family: str = "llama", **overrides: Any) -> RunConfig:
    """Eight heads and layers: every axis can be 8; 53 tokens, which no mesh divides evenly."""
    data, tensor, pipe = shape
    base = {
        "precision": "float64",
        "mesh": dict(data=data, tensor=tensor, pipe=pipe),
        "pipeline": dict(microbatches=3),
        "model": dict(
            preset=PRESETS[family],
            layers=8,
            width=16,
            heads=8,
            kv_heads=8,
            head_dim=2,
            mlp_width=24,
            vocab=53,
            context=12,
        ),
        "data": dict(sequence=8, batch=data * 3 * 2),
    }
    return load(base, overrides)


def make_step(config: RunConfig, loss: Any = None) -> TrainStep:
    shape = config.mesh
    return assemble.train_step(config, mesh.build(shape, jax.devices()[: shape.devices]), loss=loss)


@functools.lru_cache
def uncut(model: str) -> tuple[Stages, Params]:
    """The model of a config's [model] table (as JSON) on one device, and its initial parameters."""
    config = load({"model": ModelConfig.model_validate_json(model)})
    build = assemble.builder(assemble.model_sizes(config, None), 1)
    params = jax.jit(lambda seed: initial(build, seed))(0)
    return functional(build), params


def whole(config: RunConfig) -> tuple[Stages, Params]:
    return uncut(config.model.model_dump_json(exclude_unset=True))


@functools.lru_cache
def uncut_gradient(model: str, loss: Any = None) -> Any:
    return one_device.gradient(uncut(model)[0], loss, jnp.float64)


def whole_gradient(config: RunConfig, batch: Batch, loss: Any = None) -> tuple[float, Leaves]:
    stages, params = whole(config)
    function = uncut_gradient(config.model.model_dump_json(exclude_unset=True), loss)
    value, gradients = function(params, batch, one_device.step_key(config.seed, 0))
    return float(value), canonical_leaves(gradients, stages)


def make_batch(config: RunConfig, seed: int = 0) -> Batch:
    """Random tokens, and masks from nearly empty samples to full ones."""
    random = np.random.default_rng(seed)
    m, batch, S = config.pipeline.microbatches, config.data.batch, config.data.sequence
    tokens = random.integers(0, config.model.vocab, (m, batch // m, S + 1), np.int32)
    share = np.linspace(0.1, 1, batch).reshape(m, batch // m, 1)
    weights = (random.random((m, batch // m, S)) < share).astype(np.float32)
    return {"tokens": tokens[..., :-1], "targets": tokens[..., 1:], "weights": weights}


def place(step: TrainStep, params: Params) -> Params:
    """Parameters from one device in the step's layout."""
    return jax.device_put(padded(params, step.stages), step.state_shardings["params"])


def cut_gradient(config: RunConfig, batch: Batch, loss: Any = None) -> tuple[float, Leaves]:
    step = make_step(config, loss)
    params = place(step, whole(config)[1])
    # A new function each time: jit would otherwise take two of equal steps for one.
    gradients = jax.jit(lambda *arguments: step.gradients(*arguments))
    value, _, tree = gradients(params, jax.device_put(batch, step.batch_sharding), jnp.int32(0))
    return float(value), canonical_leaves(tree, step.stages)


def error(got: Leaves, want: Leaves) -> tuple[float, str]:
    """The worst leaf's relative error, and its name."""
    assert got.keys() == want.keys()
    floor = ROUNDING * max(np.abs(leaf).max() for leaf in want.values())
    return max((np.abs(got[k] - want[k]).max() / max(np.abs(want[k]).max(), floor), k) for k in want)


def assert_equal(config: RunConfig, loss: Any = None) -> None:
    batch = make_batch(config)
    got, want = cut_gradient(config, batch, loss), whole_gradient(config, batch, loss)
    assert got[0] == pytest.approx(want[0], rel=BOUND, abs=0)
    assert error(got[1], want[1])[0] <= BOUND, error(got[1], want[1])
