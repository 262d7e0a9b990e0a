"""`meshkit verify` passes a good layout, fails a perturbed one, and says how to mend a wrong one."""

import io
import json
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

from meshkit import assemble, cli, mesh, train_step
from meshkit.config import MeshShape, RunConfig, load
from meshkit.equality import compare, one_device, shrink, uneven, verify
from meshkit.equality.compare import Course, Row
from meshkit.errors import MeshkitError
from meshkit.models.presets import sizes
from meshkit.pipeline import chunks, vocab
from meshkit.pipeline.context import Context, dropout
from meshkit.simulate import QUICK

SMALL = {
    "mesh": dict(data=2, tensor=1, pipe=2),
    "pipeline": dict(microbatches=3),
    "data": dict(batch=12, sequence=16),
    "model": dict(layers=2),
    "precision": "float64",
}


@pytest.fixture(autouse=True)
def devices() -> None:
    """JAX started, with the devices of the test session."""
    jax.devices()


def text(report: verify.Report) -> str:
    console = Console(file=io.StringIO(), width=120)
    report.print(console)
    return console.file.getvalue()


def test_a_good_layout_passes() -> None:
    before = jax.config.jax_enable_x64
    report = verify.verify(load(SMALL))
    assert report.ok
    assert jax.config.jax_enable_x64 == before
    gradients = [row.leaf for row in report.rows if row.quantity == "gradient"]
    assert len(gradients) == 12
    assert {row.quantity for row in report.rows} == {
        "initial parameters", "loss", "gradient", "global norm", "parameters after 3 updates"
    }  # fmt: skip
    assert "blocks.mlp.down.kernel" in text(report)
    assert "trains as one device would" in text(report)
    shown = json.loads(report.to_json())
    assert shown["ok"] is True
    assert len(shown["rows"]) == len(report.rows)


def test_lower_precision_passes_beside_float64() -> None:
    report = verify.verify(load(SMALL, {"precision": "bfloat16"}))
    assert report.ok, report.to_json()
    assert {row.precision for row in report.rows} == {"float32", "float64", "bfloat16"}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_gradients_summed_in_bfloat16_pass(optimizer: str) -> None:
    config = load(SMALL, {"precision": "float32", "grad_dtype": "bfloat16", "optimizer.name": optimizer})
    report = verify.verify(config)
    assert report.ok, report.to_json()
    assert "grad_dtype = bfloat16" in text(report)
    far = {row.leaf: row.error for row in report.rows if row.precision == "float32" and row.quantity == "gradient"}
    assert max(far.values()) > 1e-4, "no leaf was summed in bfloat16"


def test_what_rounding_decides_is_no_fault_of_the_layout() -> None:
    """A bias that begins at zero: Adam makes a full step of a gradient whose sign is rounding."""
    more = {"precision": "bfloat16", "model.preset": "tiny-gpt2", "model.layers": 5, "optimizer.name": "adamw"}
    report = verify.verify(load(SMALL, more | {"mesh.data": 1, "zero": 0}))
    assert report.ok, report.to_json()


def test_offload_is_nothing_on_the_cpu_and_said_to_be() -> None:
    assert "saves nothing" in " ".join(verify._legend(load(SMALL, {"offload": True}), []))
    assert "saves nothing" not in " ".join(verify._legend(load(SMALL), []))


def no_lookup_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocab, "lookup_grad", lambda grad_vH, tokens_BS, dx_BsH: grad_vH)


def weights_by_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica divides by its own targets: right only if masks were even."""
    shared = train_step.TrainStep._shared

    def wrong(self: Any, local: Any) -> Any:
        tokens, batch = shared(self, local)
        own = local["weights"].sum() * self.mesh.shape["data"]
        return tokens, batch._replace(weights_MBS=local["weights"] / own)

    monkeypatch.setattr(train_step.TrainStep, "_shared", wrong)


@pytest.mark.parametrize(
    ("perturb", "failed"), [(no_lookup_gradient, "embed.table"), (weights_by_replica, "norm.scale")]
)
def test_a_perturbed_layout_fails(
    perturb: Any, failed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    perturb(monkeypatch)
    config = tmp_path / "c.toml"
    config.write_text('precision = "float64"\n[model]\nlayers = 2\n[data]\nbatch = 12\nsequence = 16\n')
    words = ["--mesh.data", "2", "--mesh.pipe", "2", "--pipeline.microbatches", "3"]
    assert cli.main(["verify", str(config), "--json", *words]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["ok"] is False
    assert failed in [row["leaf"] for row in shown["rows"] if not row["ok"]]


# --- measures -----------------------------------------------------------------------------------


def course(scale: float = 1.0, dtype: Any = np.float64, noise: float = 0.0) -> Course:
    random = np.random.default_rng(0)
    leaf = random.normal(size=(4, 5)) * scale
    leaf += noise * np.random.default_rng(1).normal(size=leaf.shape)
    leaves = {"w": leaf.astype(dtype)}
    return Course(np.array([scale]), np.array([scale]), [leaves], leaves)


def test_exactly_draws_the_line_at_its_bound() -> None:
    assert all(row.ok for row in compare.exactly(course(1 + 5e-13), course()))
    assert not any(row.ok for row in compare.exactly(course(1 + 5e-12), course()))
    assert not any(row.ok for row in compare.exactly(course(np.nan), course()))


def test_roughly_compares_with_one_device() -> None:
    def rows(noise: float) -> list[Row]:
        return compare.roughly(course(noise=noise), course(noise=0.01), course(), "bfloat16", 0.0078)

    assert all(row.ok for row in rows(0.02))
    assert {row.quantity for row in rows(0.04) if not row.ok} == {"gradient", "parameters after 1 updates"}


def test_rounding_where_nothing_else_is_left_does_not_fail() -> None:
    def with_bias(bias: float) -> Course:
        leaves = {"w": np.ones(3), "bias": np.full(3, bias)}
        return Course(np.ones(1), np.ones(1), [leaves], {"w": np.ones(3), "bias": np.sign(leaves["bias"])})

    assert all(row.ok for row in compare.exactly(with_bias(1e-18), with_bias(-1e-18)))
    assert not all(row.ok for row in compare.exactly(with_bias(1e-4), with_bias(-1e-4)))


def test_a_leaf_that_rounding_may_decide_is_compared_whole() -> None:
    """Its gradients are real, but what one device rounds is more, as where rounding chooses a token's experts."""

    def with_scale(rounded: float, updated: float) -> Course:
        leaves = {"w": np.ones(3), "scale": np.full(3, 0.1) + rounded}
        return Course(np.ones(1), np.ones(1), [leaves], {"w": np.ones(3), "scale": np.full(3, updated)})

    def failed(got: Course, one: Course) -> list[tuple[str, str]]:
        rows = compare.roughly(got, one, with_scale(0.0, 1.0), "bfloat16", 0.0078)
        assert rows[-1].compared == 1
        return [(row.quantity, row.leaf) for row in rows if not row.ok]

    updates = ("parameters after 1 updates", "scale")
    for rounded in (0.001, 0.02):
        assert failed(with_scale(rounded, 1.001), with_scale(rounded, 1.0)) == []
        assert failed(with_scale(rounded, 1.01), with_scale(rounded, 1.0)) == [updates]
    assert failed(with_scale(0.02, np.nan), with_scale(0.02, 1.0)) == [updates]


def test_nothing_compared_is_said() -> None:
    def row(error: float, compared: float) -> Row:
        return Row("parameters after 3 updates", "norm.scale", "bfloat16", error, 0.01, error, compared)

    report = verify.Report("a layout", [], [row(0.001, 0.75), row(np.nan, 0.0)])
    assert not report.ok
    assert [shown["compared"] for shown in json.loads(report.to_json())["rows"]] == [0.75, 0.0]
    shown = " ".join(text(report).split())
    assert "(75% of them)" in shown
    assert "nothing compared: FAILED" in shown


# --- shrinking ----------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["llama3-8b", "llama3-70b", "llama3-405b", "gpt2", "gpt3-175b"])
def test_small_keeps_what_the_layout_depends_on(preset: str) -> None:
    shape = MeshShape(data=8, tensor=4, pipe=2)
    config = load({"model.preset": preset, "mesh": shape, "pipeline.microbatches": 8, "data.batch": 256})
    big = sizes(config.model)
    small_config, notes = shrink.shrink(config, big, shape)
    small = sizes(small_config.model)
    assert small.heads // small.kv_heads == big.heads // big.kv_heads
    assert small.kv_heads % 4 == 0
    assert small.layers % 2 == 0
    assert (small.vocab % 8 == 0) == (big.vocab % 8 == 0)
    assert (small.tied, small.family, small.dropout) == (big.tied, big.family, big.dropout)
    assert max(small.width, small.mlp_width, small.vocab) <= 64
    assert small_config.pipeline == config.pipeline
    assert small_config.microbatch_size(8) == 2
    assert any("layers" in note for note in notes) == (small.layers != big.layers)


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        ({"data.batch": 8}, (2, 1, 1)),
        ({"data.batch": 9}, (3, 1, 1)),
        ({"data.batch": 1}, (1, 1, 1)),
        ({"mesh.data": 2, "mesh.pipe": -1, "model.layers": 1}, (2, 1, 1)),
        ({"devices": 8, "mesh.pipe": 2}, (4, 1, 2)),
    ],
)
def test_a_free_axis_is_filled_in(config: dict[str, Any], shape: tuple[int, int, int]) -> None:
    loaded: RunConfig = load(config)
    assert tuple(shrink.layout(loaded, sizes(loaded.model)).sizes.values()) == shape


# --- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"mesh.pipe": 3}, "model.layers = 2 are too few for mesh.pipe = 3 stages: set mesh.pipe to 2 or less, or"),
        ({"mesh.tensor": 3}, "does not split into mesh.tensor = 3"),
        ({"data.batch": 7}, "data.batch = 7 does not split"),
        ({"mesh.data": 16, "data.batch": 96}, "32 simulated CPU devices were asked for.*JAX_NUM_CPU_DEVICES=32"),
    ],
)
def test_mistakes_name_the_way_out(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(MeshkitError, match=message):
        verify.verify(load(SMALL, overrides))


# --- stages of unequal length -------------------------------------------------------------------


def float32_loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return one_device.cross_entropy(logits.astype("float32"), targets)


def undefined_loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return one_device.cross_entropy(logits, targets) * np.nan


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("float32_loss", "of float64 logits it makes float32 losses"),
        ("undefined_loss", r"the losses of 3 steps are \[nan, nan, nan\]: there is nothing to compare"),
    ],
)
def test_a_loss_that_proves_nothing_is_named(loss: str, message: str) -> None:
    with pytest.raises(MeshkitError, match=message):
        verify.verify(load(SMALL, {"mesh": dict(data=1, tensor=1, pipe=1), "loss": f"{__name__}:{loss}"}))


def test_dropout_does_not_depend_on_the_precision() -> None:
    context, ones = Context(0, np.arange(4), jax.random.key(0), 1.0), np.ones((4, 8, 16), np.float32)
    narrow = np.asarray(dropout(ones, 0.3, context, 0))
    with jax.enable_x64(True):
        wide = np.asarray(dropout(ones.astype(np.float64), 0.3, context, 0))
    np.testing.assert_array_equal(narrow == 0, wide == 0)
    assert 0 < np.count_nonzero(narrow) < narrow.size


def test_costs_of_uneven_stages_stand_beside_the_formulas() -> None:
    uneven_stages = {"mesh.data": 1, "model.layers": 4, "pipeline.layers_per_stage": [1, 3], "data.documents": "apart"}
    report = verify.verify(load(SMALL, uneven_stages))
    assert report.ok, report.to_json()
    shown = {cost["quantity"]: (cost["compiled"], cost["formula"]) for cost in json.loads(report.to_json())["costs"]}
    assert shown["work on layers that a stage has not"] == (0, 0)
    # Full recompute: F = 1 and B = 4 of a mean stage's 2 layers. F0 | F1, F0+B0 | F2+B0, F1+B1 | B1, F2+B2 | B2.
    assert shown["time in lock-step"] == (0.5 + 7.5 + 7.5 + 7.5 + 2, 25)
    assert "work on layers that a stage has not" in text(report)


def test_work_that_is_moved_in_front_of_a_gate_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a row reads past its gate is the same in every trip: the compiler has it done where the row is empty too."""
    gated = chunks.Chunk.each

    def past_the_gate(self: chunks.Chunk, one: Any, carry: Any, reads: Any = (), backward: bool = False) -> Any:
        return gated(self, lambda carry, k, _: one(carry, k, reads), carry, (), backward)

    monkeypatch.setattr(chunks.Chunk, "each", past_the_gate)
    shape, sizes = SMALL["mesh"] | {"data": 1}, dict(layers=4, width=16, heads=2, kv_heads=2, mlp_width=16, vocab=32)
    more = {"precision": "float32", "pipeline.layers_per_stage": [1, 3], "data": dict(batch=6, sequence=8)}
    config = load(SMALL, more | {"mesh": shape, "model": sizes})
    step = assemble.train_step(config, mesh.build(config.mesh, verify.cpu_devices(2)))
    batch = verify.random_batches(config, step.stages.vocab, 1)[0]
    wasted, *others = uneven.costs(step, step.step.lower(jax.eval_shape(step.init, 0), batch).compile(QUICK))
    assert not wasted.ok
    assert wasted.compiled > 0
    assert all(cost.ok for cost in others)
