"""Adapters: gradients are those of the formula written out, on any mesh; the base is frozen, to the bit."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from law import BOUND, error, make_batch, make_config, make_step, place, whole

from meshkit.config import RunConfig
from meshkit.equality import one_device
from meshkit.equality.verify import canonical_leaves
from meshkit.errors import MeshkitError
from meshkit.models.build import builder
from meshkit.models.presets import sizes
from meshkit.pipeline.context import Context
from meshkit.pipeline.stage import Params, Stages, functional
from meshkit.pipeline.trained import joined, like, part

LORA = {"rank": 3, "alpha": 12, "linears": ["query", "value", "attention.out", "mlp.up", "down"]}
SCALE = 4.0

CASES: dict[str, tuple[tuple[int, int, int], str, dict[str, Any]]] = {
    "one device": ((1, 1, 1), "llama", {}),
    "zero 1": ((2, 2, 2), "llama", {"model.tied": True}),
    "zero 2": ((2, 2, 2), "llama", {"zero": 2, "recompute": "selective", "pipeline.schedule": "gpipe"}),
    "zero 3": ((2, 2, 2), "gpt2", {"zero": 3, "recompute": "none", "pipeline.schedule": "zero-bubble"}),
}


def adapted(shape: tuple[int, int, int] = (2, 2, 2), family: str = "llama", **more: Any) -> RunConfig:
    return make_config(shape, family, **{"model.layers": 2, "model.options.lora": LORA} | more)


def with_adapters(config: RunConfig) -> tuple[Stages, Params]:
    """The model on one device, and parameters whose B is not zero."""
    stages, params = whole(config)
    random = np.random.default_rng(0)
    own = jax.tree.map(lambda p: p + random.standard_normal(p.shape) * 0.1, stages.own(params))
    return stages, joined(own, params)


def merged(own: Params, frozen: Params) -> Params:
    """The formula: W + alpha / rank · A·B in the place of each W that has an adapter."""
    if "lora" in own:
        a, b = own["lora"]["a"], own["lora"]["b"]
        return frozen | {"kernel": frozen["kernel"] + SCALE * jnp.einsum("lir,lro->lio", a, b)}
    return frozen | {name: merged(inside, frozen[name]) for name, inside in own.items()}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_formula(case: str) -> None:
    shape, family, more = CASES[case]
    config = adapted(shape, family, **more)
    stages, params = with_adapters(config)
    base = functional(builder(sizes(config.model).base, 1))
    batch = make_batch(config)

    def written_out(own: Params) -> jax.Array:
        return one_device.mean_loss(base, merged(own, stages.frozen(params)), batch, None, None, jnp.float64)

    want = jax.jit(jax.value_and_grad(written_out))(stages.own(params))
    step = make_step(config)
    run = jax.jit(lambda *given: step.gradients(*given))
    loss, _, tree = run(place(step, params), jax.device_put(batch, step.batch_sharding), jnp.int32(0))
    assert float(loss) == pytest.approx(float(want[0]), rel=BOUND, abs=0)
    got, want = canonical_leaves(tree, step.stages), canonical_leaves(want[1], stages)
    assert {name.rpartition(".lora.")[0] for name in got} == {
        f"blocks.{name}" for name in ("attention.query", "attention.value", "attention.out", "mlp.up", "mlp.down")
    }
    assert error(got, want)[0] <= BOUND, error(got, want)


@pytest.mark.usefixtures("float64")
def test_logits_are_those_of_merged_weights() -> None:
    config = adapted()
    stages, params = with_adapters(config)
    base = functional(builder(sizes(config.model).base, 1))
    tokens_BS = make_batch(config)["tokens"][0]
    call = lambda of, params: of.model(params)(tokens_BS, Context(-1, jnp.arange(len(tokens_BS)), None))
    got = jax.jit(functools.partial(call, stages))(params)
    want = jax.jit(functools.partial(call, base))(merged(stages.own(params), stages.frozen(params)))
    assert np.abs(got - jax.jit(functools.partial(call, base))(stages.frozen(params))).max() > 1e-2
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-13)


def test_the_base_stays_as_it_is_and_has_no_state() -> None:
    config = adapted((2, 1, 2), precision="bfloat16", **{"optimizer.learning_rate": 1e-2})
    step = make_step(config)
    state = step.init(0)
    before = jax.tree.map(np.asarray, state["params"])
    batch = jax.device_put(make_batch(config), step.batch_sharding)
    for _ in range(2):
        state, metrics = step.step(state, batch)
    after = jax.tree.map(np.asarray, state["params"])
    split = step.stages.own, step.stages.frozen
    assert {leaf.dtype for leaf in jax.tree.leaves(split[1](after))} == {np.dtype(jnp.bfloat16)}
    for now, then in zip(*(jax.tree.leaves(split[1](tree)) for tree in (after, before)), strict=True):
        assert now.tobytes() == then.tobytes()
    for now, then in zip(*(jax.tree.leaves(split[0](tree)) for tree in (after, before)), strict=True):
        assert now.dtype == np.float32
        assert (now != then).any()
    adapters = sum(leaf.size for leaf in jax.tree.leaves(split[0](after)))
    moments = sum(leaf.size for leaf in jax.tree.leaves(state["opt"]) if leaf.ndim)
    assert moments == 2 * adapters
    assert float(metrics["skipped_total"]) == 0


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ({"rank": 2, "linears": ["querry"]}, r"Decoder has no linear 'querry'; known: attention\.key, attention\.out"),
        ({"rank": 0, "linears": ["query"]}, r"lora\.rank: Input should be greater than 0"),
        ({"rank": 2}, r"lora\.linears: Field required: write lora = \{rank = 16"),
        ({"rank": 2, "linears": ["query"], "dropout": 0.1}, r"lora\.dropout: Extra inputs"),
    ],
)
def test_what_adapters_cannot_be_is_named(lora: dict[str, Any], said: str) -> None:
    with pytest.raises(MeshkitError, match=said):
        make_step(adapted((1, 1, 1), **{"model.options.lora": lora}))


def test_trees_part_and_join() -> None:
    tree = {"a": {"b": 1, "c": 2}, "d": 3, "e": {"f": 4}}
    chosen = {"a": {"b": True, "c": False}, "d": False, "e": {"f": False}}
    own, frozen = part(tree, chosen, True), part(tree, chosen, False)
    assert own == {"a": {"b": 1}}
    assert joined(own, frozen) == tree
    assert joined({"a": {"b": 5}}, tree)["a"] == {"b": 5, "c": 2}
    assert like(tree, own) == own
