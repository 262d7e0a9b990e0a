"""A checkpoint knows nothing of the layout: what one mesh saves, any other reads to the bit, and trains on alike."""

import functools
import itertools
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from meshkit.checkpoint.layout import Layout, leaves_of, tree_of
from meshkit.pipeline.stage import padded
from meshkit.train_step import State, TrainStep
from tests.law import BOUND, Leaves, error, make_batch, make_config, make_step

pytestmark = pytest.mark.usefixtures("float64")

MESHES = [(8, 1, 1), (2, 2, 2), (1, 2, 4), (1, 1, 8)]
LAYOUTS = {
    **{str(shape): dict(shape=shape) for shape in MESHES},
    "zero 0": dict(shape=(2, 2, 2), zero=0),
    "zero 3": dict(shape=(4, 1, 2), zero=3),
    "interleaved": dict(shape=(2, 1, 4), pipeline=dict(schedule="interleaved", virtual=2, microbatches=4)),
    "uneven": dict(shape=(1, 2, 3), pipeline=dict(layers_per_stage=[1, 4, 3], microbatches=3)),
    "uneven, interleaved": dict(
        shape=(1, 2, 2),
        pipeline=dict(schedule="interleaved", virtual=2, layers_per_stage=[1, 2, 2, 3], microbatches=2),
    ),
}
BATCH = 24


@functools.lru_cache
def step_of(layout: str, rule: str = "adamw", family: str = "llama") -> TrainStep:
    keys = LAYOUTS[layout]
    return make_step(make_config(family=family, optimizer={"name": rule}, **{"data.batch": BATCH}, **keys))


@functools.lru_cache
def layout_of(layout: str, rule: str = "adamw", family: str = "llama") -> Layout:
    return Layout(step_of(layout, rule, family))


def step_of_layout(layout: Layout) -> TrainStep:
    return layout._step


def some_state(layout: Layout) -> Leaves:
    """A state with another number at every place, as a checkpoint holds it."""
    random = np.random.default_rng(0)
    return {
        "/".join(leaf.name): np.asarray(
            random.permutation(max(1, int(np.prod(leaf.saved.shape)))), leaf.saved.dtype
        ).reshape(leaf.saved.shape)
        for leaf in layout.leaves
    }


def placed(layout: Layout, leaves: Leaves) -> State:
    """That state on the mesh of `layout`."""
    tree = {leaf.name: jax.device_put(leaves["/".join(leaf.name)], leaf.saved.sharding) for leaf in layout.leaves}
    return layout.to_state(tree_of(tree))


def held(tree: dict[str, Any]) -> Leaves:
    return {"/".join(name): np.asarray(array) for name, array in leaves_of(tree)}


def write(layout: Layout, state: State, folder: Path) -> Path:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder, layout.to_saved(state))
    return folder


def read(layout: Layout, folder: Path) -> State:
    target = tree_of({leaf.name: leaf.saved for leaf in layout.leaves})
    return layout.to_state(ocp.StandardCheckpointer().restore(folder, target))


def assert_same(got: Leaves, want: Leaves) -> None:
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)
        assert got[name].dtype == want[name].dtype, name


# --- what is held -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "family"), [*((layout, "llama") for layout in LAYOUTS), ("(2, 2, 2)", "gpt2"), ("interleaved", "gpt2")]
)
def test_the_parameters_held_are_the_canonical_ones(layout: str, family: str) -> None:
    step, there = step_of(layout, family=family), layout_of(layout, family=family)
    state = some_state(there)
    want = {name.removeprefix("params/"): leaf for name, leaf in state.items() if name.startswith("params/")}
    # What the stages hold of them, by the functions that training itself is tested with.
    tree = padded(tree_of({tuple(name.split("/")): jnp.asarray(leaf) for name, leaf in want.items()}), step.stages)
    params = jax.device_put(tree, step.state_shardings["params"])
    got = held(there.to_saved(placed(there, state) | {"params": params})["params"])
    assert_same(got, want)
    assert got["embed/table"].shape[0] == 53, "all but (1, 1, 1) pad it"
    assert ("head/table" in got) == (family == "llama")


@pytest.mark.parametrize("rule", ["adamw", "muon", "adafactor"])
def test_moments_are_held_like_their_parameters(rule: str) -> None:
    """A step of gradients on two layouts: what the checkpoint holds of the optimizer is the same."""
    moments = []
    for there in (layout_of("uneven, interleaved", rule), layout_of("(1, 1, 8)", rule)):
        state, step = placed(there, some_state(there)), step_of_layout(there)
        update = jax.jit(lambda g, s, p, step=step: step.optimizer.update(g, s, p)[1])
        opt = update(jax.tree.map(lambda p: p * 1e-3, state["params"]), state["opt"], state["params"])
        opt = jax.device_put(opt, step.state_shardings["opt"])
        moments.append(held(there.to_saved(state | {"opt": opt})["optimizer"]))
    assert moments[0].keys() == moments[1].keys()
    for name in moments[0]:
        np.testing.assert_allclose(moments[0][name], moments[1][name], rtol=1e-12, atol=1e-12, err_msg=name)


def test_names_are_those_of_the_model_and_of_optax() -> None:
    names = {"/".join(leaf.name) for leaf in layout_of("(2, 2, 2)").leaves}
    assert names >= {
        "step",
        "skipped_total",
        "params/embed/table",
        "params/blocks/attention/query/kernel",
        "optimizer/0/mu/blocks/attention/query/kernel",
        "optimizer/0/count",
    }


@pytest.mark.parametrize("layout", ["interleaved", "uneven, interleaved", "(2, 2, 2)"])
def test_no_device_gathers_what_it_does_not_keep(layout: str) -> None:
    there = layout_of(layout)
    moving = [leaf for leaf in there.leaves if leaf.moves and leaf.name[0] == "params"]
    assert moving
    for leaf in moving:
        save, restore = there._pair(leaf)
        for move, start in ((save, leaf.stored), (restore, leaf.saved)):
            assert "all-gather" not in move.lower(start).compile().as_text(), leaf.name  # type: ignore[attr-defined]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_device_holds_no_more_of_a_checkpoint_than_of_the_state(layout: str) -> None:
    for leaf in layout_of(layout).leaves:
        part, most = (math.prod(s.sharding.shard_shape(s.shape)) for s in (leaf.saved, leaf.stored))
        stages = step_of(layout).mesh.shape["pipe"]
        # Nothing of this model divides by three stages: they hold the same, of one array at a time.
        assert part <= most * (stages if stages == 3 else 1), leaf.name


# --- from any layout to any other ---------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(map(str, MESHES), 2)))
def test_what_one_mesh_saves_another_reads_to_the_bit(one: str, other: str, tmp_path: Path) -> None:
    there, here = layout_of(one), layout_of(other)
    want = some_state(there)
    state = read(here, write(there, placed(there, want), tmp_path / "state"))
    assert_same(held(here.to_saved(state)), want)
    for leaf, sharding in zip(
        jax.tree.leaves(state), jax.tree.leaves(step_of_layout(here).state_shardings), strict=True
    ):
        assert leaf.sharding == sharding


@pytest.mark.parametrize(
    ("one", "other", "rule"),
    [
        ("zero 3", "uneven, interleaved", "adamw"),
        ("zero 0", "zero 3", "lion"),
        ("uneven", "interleaved", "muon"),
        ("interleaved", "uneven", "adafactor"),
    ],
)
def test_so_do_schedules_placements_zero_levels_and_optimizers(one: str, other: str, rule: str, tmp_path: Path) -> None:
    there, here = layout_of(one, rule), layout_of(other, rule)
    want = some_state(there)
    assert_same(held(here.to_saved(read(here, write(there, placed(there, want), tmp_path / "state")))), want)


# --- and trains on alike ------------------------------------------------------------------------


@functools.lru_cache
def compiled(layout: str) -> Any:
    step = step_of(layout)
    state = jax.tree.map(
        lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
        jax.eval_shape(step.init, 0),
        step.state_shardings,
    )
    return step.step.lower(state, batch_on(layout, 0)).compile()


def batch_on(layout: str, seed: int) -> dict[str, jax.Array]:
    """The same samples on every layout, however many microbatches it has."""
    step = step_of(layout)
    m = step.config.pipeline.microbatches
    whole = make_batch(make_config((1, 1, 1), **{"data.batch": BATCH, "pipeline.microbatches": 1}), seed)
    return {
        name: jax.device_put(array.reshape(m, BATCH // m, -1), step.batch_sharding) for name, array in whole.items()
    }


def trained(layout: str, state: State, steps: range) -> tuple[State, list[float]]:
    losses = []
    for number in steps:
        state, metrics = compiled(layout)(state, batch_on(layout, number))
        losses.append(float(metrics["loss"]))
    return state, losses


@functools.lru_cache
def uninterrupted() -> tuple[Leaves, list[float]]:
    """Four steps on the first mesh."""
    first = str(MESHES[0])
    state, losses = trained(first, placed(layout_of(first), drawn()), range(4))
    return held(layout_of(first).to_saved(state)), losses


@functools.lru_cache
def drawn() -> Leaves:
    """The state at step 0."""
    first = str(MESHES[0])
    return held(layout_of(first).to_saved(jax.jit(step_of(first).init)(0)))


@pytest.fixture(scope="module")
def half_way(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The checkpoint of a layout after two steps, and their losses."""

    @functools.lru_cache
    def of(layout: str) -> tuple[Path, list[float]]:
        there = layout_of(layout)
        state, losses = trained(layout, placed(there, drawn()), range(2))
        return write(there, state, tmp_path_factory.mktemp("half") / "state"), losses

    return of


ENDS = [*map(str, MESHES), "interleaved"]


@pytest.mark.parametrize(("one", "other"), [(a, b) for a in ENDS for b in ENDS if a != b])
def test_training_goes_on_as_if_the_mesh_had_never_changed(one: str, other: str, half_way: Any) -> None:
    folder, before = half_way(one)
    state, after = trained(other, read(layout_of(other), folder), range(2, 4))
    want, losses = uninterrupted()
    np.testing.assert_allclose(before + after, losses, rtol=BOUND)
    got = held(layout_of(other).to_saved(state))
    for part in ("params", "optimizer"):
        worst = error(*({k: v for k, v in leaves.items() if k.startswith(part)} for leaves in (got, want)))
        assert worst[0] <= 1e-9, worst
    assert int(jnp.asarray(state["step"])) == 4
