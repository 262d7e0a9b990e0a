"""A user's own model, loss and data set, outside meshkit: named in a config or given as arguments.

The model is written from the protocol in meshkit/pipeline/stage.py alone, with Flax's own layers.
"""

import sys
import textwrap
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import meshkit
from meshkit import assemble, mesh
from meshkit.cli import main
from meshkit.config import RunConfig, load
from meshkit.equality.verify import verify
from meshkit.errors import MeshkitError
from meshkit.imports import load_object

MODEL = '''
"""No attention: positions are mixed by a learned causal matrix, features by an MLP cut over tensor."""
import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from meshkit.pipeline.stage import apply_stack, stack, whole_sequence
from meshkit.pipeline.vocab import VocabTable

WIDTH = 16


def cut(*axes):
    return nnx.with_partitioning(nnx.initializers.normal(0.1), axes)


class Block(nnx.Module):
    def __init__(self, sizes, rngs):
        self.mix = nnx.Param(0.1 * jax.random.normal(rngs.params(), (sizes.context, sizes.context)))
        self.norm = nnx.LayerNorm(sizes.width, rngs=rngs)
        self.up = nnx.Linear(sizes.width, sizes.mlp_width, kernel_init=cut(None, "tensor"),
                             bias_init=nnx.with_partitioning(nnx.initializers.zeros, ("tensor",)), rngs=rngs)
        self.down = nnx.Linear(sizes.mlp_width, sizes.width, kernel_init=cut("tensor", None), rngs=rngs)

    def __call__(self, x, context):
        h = whole_sequence(self.norm(x))
        x = x + jnp.einsum("st,bth->bsh", jnp.tril(self.mix[...]), h)
        return x + self.down(jax.nn.gelu(self.up(whole_sequence(x))))


class Tiny(nnx.Module):
    def __init__(self, sizes, rngs, vocab_multiple):
        self.scale = sizes.options["scale"]
        self.embed = VocabTable(sizes.vocab, sizes.width, vocab_multiple, rngs)
        self.shift = nnx.Param(jnp.zeros(sizes.width))
        self.blocks = stack(sizes.layers, lambda rngs: Block(sizes, rngs), rngs)
        self.norm = nnx.RMSNorm(sizes.width, rngs=rngs)
        self.head = None

    def enter(self, x, context):
        return self.scale * x + self.shift[...]

    def leave(self, x):
        return self.norm(x)

    def __call__(self, tokens, context):
        x = self.enter(self.embed.lookup(tokens), context)
        return self.embed.logits(self.leave(apply_stack(self.blocks, x, context)))


class SlicingBlock(Block):
    def __call__(self, x, context):
        S = x.shape[1]
        return x + jnp.einsum("st,bth->bsh", jnp.tril(self.mix[:S, :S]), whole_sequence(x))


class Slicing(Tiny):
    def __init__(self, sizes, rngs, vocab_multiple):
        super().__init__(sizes, rngs, vocab_multiple)
        self.blocks = stack(sizes.layers, lambda rngs: SlicingBlock(sizes, rngs), rngs)


class NoEnter(Tiny):
    enter = property()


class WrongTable(Tiny):
    def __init__(self, sizes, rngs, vocab_multiple):
        super().__init__(sizes, rngs, vocab_multiple)
        self.embed = nnx.Embed(sizes.vocab, sizes.width, rngs=rngs)


class OneBlock(Tiny):
    def __init__(self, sizes, rngs, vocab_multiple):
        super().__init__(sizes, rngs, vocab_multiple)
        self.blocks = Block(sizes, rngs)


class OtherLayers(Tiny):
    def __init__(self, sizes, rngs, vocab_multiple):
        super().__init__(sizes, rngs, vocab_multiple)
        self.blocks = stack(sizes.layers + 1, lambda rngs: Block(sizes, rngs), rngs)


class Counting(Tiny):
    def __init__(self, sizes, rngs, vocab_multiple):
        super().__init__(sizes, rngs, vocab_multiple)
        self.norm = nnx.BatchNorm(sizes.width, rngs=rngs)


class Narrowing(Tiny):
    def leave(self, x):
        return x[..., :-2]


class Widening(Tiny):
    def enter(self, x, context):
        return x.astype(jnp.float32)


class TwoArguments(Tiny):
    def __init__(self, sizes, rngs):
        super().__init__(sizes, rngs, 1)
'''

LOSS = '''
import jax


def smooth(logits, targets):
    """Cross-entropy with a tenth of the probability spread over all tokens."""
    logp = jax.nn.log_softmax(logits)
    hit = jax.nn.one_hot(targets, logits.shape[-1], dtype=logits.dtype)
    return -((0.9 * hit + 0.1 / logits.shape[-1]) * logp).sum(-1)


def mean(logits, targets):
    return smooth(logits, targets).mean()


def one_argument(logits):
    return logits.sum(-1)
'''

DATA = '''
import numpy as np


class Multiples:
    """Sample i counts in steps of 1 + i % 5; the first tokens of each are no targets."""

    def __init__(self, sequence, start):
        self.sequence, self.start = sequence, start

    def __len__(self):
        return 40

    def __getitem__(self, index):
        index += self.start
        ids = (index + (1 + index % 5) * np.arange(self.sequence + 1)) % 23
        return {"tokens": ids[:-1], "targets": ids[1:], "weights": np.arange(self.sequence) >= 2}


def open(config, split):
    return Multiples(config.sequence, 0 if split == "train" else 40)


def nothing(config, split):
    return None


def by_split(split):
    return Multiples(8, 0)
'''


@pytest.fixture(autouse=True)
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's modules, in the working directory."""
    for name, code in {"my_model": MODEL, "my_loss": LOSS, "my_data": DATA}.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


def make_config(**overrides: Any) -> RunConfig:
    base = {
        "steps": 4,
        "precision": "float64",
        "log_every": 1,
        "loss": "my_loss:smooth",
        "mesh": {"data": 2, "tensor": 2, "pipe": 2},
        "pipeline": {"microbatches": 2},
        "model": {
            "family": "my_model:Tiny",
            "layers": 4,
            "width": 16,
            "heads": 2,
            "kv_heads": 2,
            "mlp_width": 24,
            "vocab": 23,
            "context": 8,
            "options": {"scale": 3.0},
        },
        "optimizer": {"learning_rate": 1e-2},
        "data": {"dataset": "my_data:open", "sequence": 8, "batch": 8},
    }
    return load(base, overrides)


def test_own_model_and_loss_are_equal_on_a_mesh_and_on_one_device() -> None:
    """float64: loss, every gradient leaf, norm and parameters after 3 updates, within 1e-12."""
    report = verify(make_config(), full=True)
    gradients = {row.leaf for row in report.rows if row.quantity == "gradient"}
    assert {"embed.table", "shift", "norm.scale", "blocks.mix", "blocks.up.kernel", "blocks.norm.bias"} <= gradients
    assert {row.quantity: row.error for row in report.rows if not row.ok} == {}


def test_by_import_path_and_as_arguments_it_is_the_same_run() -> None:
    by_path = meshkit.train(make_config(), run_dir="by_path")
    import my_data
    import my_loss
    import my_model

    given = {"model": my_model.Tiny, "loss": my_loss.smooth, "dataset": my_data.open}
    config = make_config(loss="cross_entropy", **{"model.family": "llama", "data.dataset": None})
    by_argument = meshkit.train(config, **given, run_dir="by_argument")
    for name in ("loss", "grad_norm", "target_tokens"):
        assert [record[name] for record in by_path.history] == [record[name] for record in by_argument.history]
    assert by_path.history[0]["target_tokens"] == 8 * 6  # weights of the user's own
    assert by_path.summary["held_out_loss"] == by_argument.summary["held_out_loss"]


def test_a_parameter_without_a_cut_is_held_whole() -> None:
    step = assemble.train_step(config := make_config(), mesh.build(config.mesh))
    specs = step.stages.specs["blocks"]
    assert tuple(specs["mix"]) == ("pipe",)
    assert tuple(specs["up"]["kernel"]) == ("pipe", None, "tensor")
    assert tuple(specs["up"]["bias"]) == ("pipe", "tensor")


MISTAKES = {
    "no such class": ({"model.family": "my_model:Tinny"}, "my_model has no 'Tinny'; did you mean 'Tiny'"),
    "no such module": ({"model.family": "my_models:Tiny"}, "No module named 'my_models'; .* the working directory"),
    "no class": ({"model.family": "my_model:WIDTH"}, "model.family: 16: .* callable as .*sizes, rngs, vocab_multiple"),
    "arguments": ({"model.family": "my_model:TwoArguments"}, "model.family: my_model.TwoArguments: .* too many"),
    "attribute": ({"model.family": "my_model:NoEnter"}, r"NoEnter has no enter: meshkit/pipeline/stage.py"),
    "table": (
        {"model.family": "my_model:WrongTable"},
        r"WrongTable.embed is a Embed: it must be a .*\.VocabTable",
    ),
    "one block": ({"model.family": "my_model:OneBlock"}, r"blocks\..* has the shape .* made by .*stack"),
    "other layers": ({"model.family": "my_model:OtherLayers"}, r"has the shape \[5, .* a dim of 4 layers"),
    "state": ({"model.family": "my_model:Counting"}, r"Counting.norm.mean is a BatchStat: only nnx.Param"),
    "shape": ({"model.family": "my_model:Narrowing"}, r"leave takes x \[2, 8, 16\] float64 and gives \[2, 8, 14\]"),
    "dtype": ({"model.family": "my_model:Widening"}, r"enter takes x .* float64 and gives .* float32"),
    "loss's shape": ({"loss": "my_loss:mean"}, r"logits \[2, 8, 23\] .* gives \[\] .* one float a token, \[2, 8\]"),
    "loss's arguments": ({"loss": "my_loss:one_argument"}, r"loss: my_loss.one_argument: .*\(logits, targets\)"),
    "no samples": ({"data.dataset": "my_data:nothing"}, r"for 'train' it returned a NoneType: .* __len__"),
    "data's arguments": ({"data.dataset": "my_data:by_split"}, r"data.dataset: my_data.by_split: .* split\)"),
    "vocabulary": ({"model.vocab": 20}, r"my_data.Multiples: .* must be 0 … 19 \(model.vocab = 20\)"),
    "sequence": ({"data.sequence": 16}, "data.sequence = 16 exceeds model.context = 8"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_own_code_is_named(mistake: str) -> None:
    overrides, message = MISTAKES[mistake]
    with pytest.raises(MeshkitError, match=message):
        meshkit.train(make_config(**overrides))
    assert not Path("runs").exists()


def test_a_model_that_would_hang_is_refused() -> None:
    """To slice a matrix that the compiler cut, it lets all stages exchange; idle ones never come."""
    config = make_config(**{"model.family": "my_model:Slicing", "model.context": 12})
    with pytest.raises(MeshkitError, match=r"would hang: .*collective-permute for .*slice.*whole_sequence"):
        meshkit.train(config)


def test_the_command_line_finds_own_code_beside_the_config(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.toml").write_text('steps = 1\n[model]\nfamily = "my_model:NoEnter"\n[data]\ndataset = "my_data:open"\n')
    assert main(["train", "run.toml", "--model.options.scale", "2.0", "--model.vocab", "23"]) == 1
    assert capsys.readouterr().err == (
        "error: model.family: NoEnter has no enter: meshkit/pipeline/stage.py says what a model offers\n"
    )


def test_one_bad_sample_is_named_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set that only breaks later stops the run with its place, not with a traceback of threads."""
    multiples: Any = load_object("my_data:Multiples", "data.dataset")

    class Broken(multiples):
        def __getitem__(self, index: int) -> dict[str, np.ndarray]:
            sample = super().__getitem__(index)
            return sample | ({"weights": np.full(8, np.nan)} if index == 33 else {})

    with pytest.raises(MeshkitError, match=r"Broken: the sample at position \d+ of the run: weights must be finite"):
        meshkit.train(make_config(**{"data.dataset": None, "steps": 5}), dataset=lambda c, s: Broken(c.sequence, 0))


def test_a_loss_of_float32_in_bfloat16_runs() -> None:
    result = meshkit.train(make_config(precision="bfloat16"), run_dir="half")
    assert result.state["params"]["blocks"]["mix"].dtype == jnp.float32
    assert result.history[-1]["loss"] < result.history[0]["loss"]
