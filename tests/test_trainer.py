"""`meshkit.train`: the same history whatever the mesh, what a run leaves behind, and what it says of mistakes."""

import errno
import fcntl
import json
import math
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tomli_w

import meshkit
from meshkit import report, trainer
from meshkit.cli import main
from meshkit.config import RunConfig, load
from meshkit.data.loader import Loader
from meshkit.data.text import ByteTokenizer
from meshkit.equality.one_device import cross_entropy
from meshkit.errors import MeshkitError
from meshkit.run_folder import RunFolder
from meshkit.trainer import Result
from tests import law

STEPS, BATCH, SEQUENCE = 12, 16, 16
MESHES = [(8, 1, 1), (1, 2, 4), (2, 1, 4)]  # against (2, 2, 2)
RECORD = {
    "step",
    "loss",
    "grad_norm",
    "learning_rate",
    "target_tokens",
    "tokens_per_second",
    "skipped_total",
}
CONFIG = """
steps = 12
precision = "float32"
log_every = 1
evaluate_every = 6

[pipeline]
microbatches = 2

[model]
layers = 4
width = 16
heads = 4
kv_heads = 4
mlp_width = 32

[optimizer]
learning_rate = 1e-2
warmup_steps = 2

[data]
sequence = 16
batch = 16
"""


Train = Callable[..., Result]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "sums.txt"
    path.write_text("".join(f"{n} and {n + 1} make {2 * n + 1}.\n" for n in range(600)))
    return path


@pytest.fixture(scope="module")
def base(text: Path) -> dict[str, Any]:
    """The config above as a mapping, on the mesh (2, 2, 2)."""
    data = {"text": [str(text)]}
    return load(tomllib.loads(CONFIG), {"mesh": mesh((2, 2, 2)), "data": data}).model_dump(exclude_unset=True)


@pytest.fixture(scope="module")
def train(base: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Train:
    """`meshkit.train` of the base config with other values for some keys, in a new folder."""

    def run(objects: dict[str, Any] | None = None, **overrides: Any) -> Result:
        folder = tmp_path_factory.mktemp("run") / "run"
        return meshkit.train(base, **(objects or {}), **({"run_dir": str(folder)} | overrides))

    return run


@pytest.fixture(scope="module")
def trained(train: Train) -> Result:
    return train()


def mesh(shape: tuple[int, int, int]) -> dict[str, int]:
    return dict(zip(("data", "tensor", "pipe"), shape, strict=True))


def column(result: Result, name: str) -> np.ndarray:
    return np.array([record[name] for record in result.history if name in record])


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]


def test_the_opening_says_that_offload_is_nothing_on_the_cpu() -> None:
    sources = SimpleNamespace(files=())
    opening = lambda **keys: " ".join(report.opening(law.make_step(law.make_config(**keys)), sources))
    assert "offload = true: on cpu the memory of host and device is one" in opening(offload=True)
    assert "offload" not in opening()


# --- the numbers of a run ------------------------------------------------------------------------


def test_the_loss_falls(trained: Result) -> None:
    losses = column(trained, "loss")
    assert len(losses) == STEPS
    assert losses[0] == pytest.approx(math.log(ByteTokenizer.vocab), rel=0.02)
    assert losses[-1] < losses[0] - 1
    held_out = column(trained, "held_out_loss")
    assert [record["step"] for record in trained.history if "held_out_loss" in record] == [6, 12]
    assert held_out[1] < held_out[0]
    assert held_out[1] == pytest.approx(losses[-1], rel=0.1)


def test_a_run_repeats_to_the_last_bit(train: Train, trained: Result) -> None:
    for one, other in zip(train().history, trained.history, strict=True):
        assert one | {"tokens_per_second": 0} == other | {"tokens_per_second": 0}


def test_a_file_a_mapping_and_a_run_config_are_the_same_run(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RunConfig] = []
    monkeypatch.setattr(trainer, "_train", lambda config, *_: seen.append(config))
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(base))
    for config in (path, str(path), base, load(base)):
        meshkit.train(config, steps=3, mesh={"data": 8}, **{"mesh.tensor": 1, "mesh.pipe": 1})
    assert seen == [load(base, {"steps": 3, "mesh": mesh((8, 1, 1))})] * 4


@pytest.mark.parametrize("shape", MESHES)
def test_the_history_does_not_depend_on_the_mesh(shape: tuple[int, int, int], train: Train, trained: Result) -> None:
    result = train(mesh=mesh(shape) | {"data": -1})
    for name in ("loss", "grad_norm", "held_out_loss"):
        np.testing.assert_allclose(column(result, name), column(trained, name), rtol=1e-5)
    np.testing.assert_array_equal(column(result, "target_tokens"), BATCH * SEQUENCE)
    assert load(result.run_dir / "config.toml").mesh.sizes == mesh(shape)


@pytest.mark.parametrize("microbatches", [1, 8])
def test_the_history_does_not_depend_on_microbatches(microbatches: int, train: Train, trained: Result) -> None:
    result = train(**{"pipeline.microbatches": microbatches})
    for name in ("loss", "grad_norm", "held_out_loss"):
        np.testing.assert_allclose(column(result, name), column(trained, name), rtol=1e-5)


def test_float64_is_computed_in_float64(train: Train, trained: Result) -> None:
    result = train(precision="float64")  # other parameters: JAX draws others in float64
    assert result.state["params"]["embed"]["table"].dtype == jnp.float64
    losses = column(result, "loss")
    np.testing.assert_allclose(column(trained, "loss"), losses, rtol=0.05)
    assert np.any(losses != losses.astype(np.float32))


def test_bfloat16_is_float32_roughly_with_wide_master_weights(train: Train, trained: Result) -> None:
    result = train(precision="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(result.state["params"])} == {jnp.dtype("float32")}
    np.testing.assert_allclose(column(result, "loss"), column(trained, "loss"), rtol=0.02)
    assert np.any(column(result, "loss") != column(trained, "loss"))


# --- what a run leaves behind --------------------------------------------------------------------


def test_the_result_and_the_files_say_the_same(trained: Result) -> None:
    assert lines(trained) == trained.history
    assert [set(record) for record in trained.history] == [
        RECORD | ({"held_out_loss"} if number % 6 == 0 else set()) for number in range(1, STEPS + 1)
    ]
    rates = column(trained, "learning_rate")
    np.testing.assert_allclose(rates[:3], [1e-2 / 3, 2e-2 / 3, 1e-2], rtol=1e-6)
    assert np.all(np.diff(rates[2:]) < 0)
    assert list(trained.run_dir.glob("events.out.tfevents.*"))
    assert int(trained.state["step"]) == STEPS


def test_the_summary(trained: Result) -> None:
    summary = json.loads(json.dumps(trained.summary))
    assert summary["mesh"] == {"data": 2, "tensor": 2, "pipe": 2}
    assert summary["ideal_bubble"] == pytest.approx(1 / 3)
    assert summary["memory_bytes_a_device"] > 0
    assert summary["predicted_memory_bytes_a_device"] > 0
    assert "--calibrate" in summary["not_predicted"]  # of simulated devices no rates are known
    assert summary["tokens_per_second"] == np.median(column(trained, "tokens_per_second")[1:])
    assert summary["step_seconds"] > 0
    assert summary["skipped_steps"] == 0
    assert (summary["loss"], summary["held_out_loss"]) == (
        trained.history[-1]["loss"],
        trained.history[-1]["held_out_loss"],
    )
    assert summary["run_dir"] == str(trained.run_dir)
    counted = summary["held_out_loss_of_counting"]
    assert counted["bigram"] < counted["unigram"] < counted["uniform"] == pytest.approx(math.log(257))


def test_the_written_config_is_the_run(trained: Result, base: dict[str, Any]) -> None:
    expected = load(base, {"run_dir": str(trained.run_dir)})
    assert load(trained.run_dir / "config.toml") == expected


def test_a_run_made_afresh_overwrites_nothing(base: dict[str, Any], tmp_path: Path) -> None:
    config = load(base, {"run_dir": str(tmp_path / "run")})
    folders = [RunFolder.create(config, fresh=True).path for _ in range(3)]
    assert [folder.name for folder in folders] == ["run", "run-2", "run-3"]
    assert [load(folder / "config.toml").run_dir for folder in folders] == list(map(str, folders))


def test_two_runs_in_one_folder_are_refused(base: dict[str, Any], tmp_path: Path) -> None:
    config = load(base, {"run_dir": str(tmp_path / "run")})
    refusal = pytest.raises(MeshkitError, match=rf"run_dir = .*: process {os.getpid()} on .* trains there")
    with RunFolder.create(config, fresh=False), refusal:
        RunFolder.create(config, fresh=False)
    with RunFolder.create(config, fresh=False) as again:
        assert again.path == tmp_path / "run"


def test_a_file_system_without_locks_is_named(
    base: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match=r"its file system has no locks \(No locks available\)"):
        RunFolder.create(load(base, {"run_dir": str(tmp_path / "run")}), fresh=False)


# --- the loop ------------------------------------------------------------------------------------


def test_what_is_logged_shown_and_when_it_is_read(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events, fetch, call = [], jax.device_get, jax.stages.Compiled.__call__

    def step(self: Any, *arguments: Any) -> Any:
        events.append("step")
        return call(self, *arguments)

    def read(tree: Any) -> Any:
        if isinstance(tree, dict) and "loss" in tree:
            events.append("read")
        return fetch(tree)

    monkeypatch.setattr(jax.stages.Compiled, "__call__", step)
    monkeypatch.setattr(jax, "device_get", read)
    result = train(steps=5, log_every=2, evaluate_every=0)

    # Step k + 1 is on the devices before anyone waits for the metrics of step k.
    assert events == ["step", *["step", "read"] * 4, "read"]
    # The first, those that are due, the last.
    assert [record["step"] for record in result.history] == [1, 2, 4, 5]
    # No terminal here: plain lines.
    shown = capsys.readouterr().out
    assert "model tiny: 18,608 parameters in 4 layers, float32\n" in shown
    assert "mesh data 2 × tensor 2 × pipe 2 on 8 devices (cpu)\n" in shown
    assert "batch 16 × 16 tokens = 2 replicas × 2 microbatches × 4 samples, schedule 1f1b\n" in shown
    assert re.search(r"held-out loss of counting: uniform 5\.\d+  unigram \d\.\d+  bigram \d\.\d+\n", shown)
    assert re.search(r"\nstep 1/5  loss 5\.\d{4}  tokens/s [\d,]+  ETA 0:\d\d:\d\d\n", shown)
    assert re.search(r"memory a device +│ [\d.]+ MiB", shown)
    assert "\x1b" not in shown


class Samples:
    """Random tokens below 50; sample `poisoned` has the target 50 at one place."""

    def __init__(self, count: int, poisoned: int | None):
        self.tokens = np.random.default_rng(0).integers(0, 50, (count, SEQUENCE + 1))
        if poisoned is not None:
            self.tokens[poisoned, -1] = 50

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        ids = self.tokens[index]
        return {"tokens": ids[:-1], "targets": ids[1:], "weights": np.ones(SEQUENCE)}


class Untold(Samples):
    """Samples without a target."""

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return super().__getitem__(index) | {"weights": np.zeros(SEQUENCE)}


def test_a_run_that_learned_nothing_is_no_success(train: Train, tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(MeshkitError, match="none of the 4 steps had a target, .* nothing was learned"):
        train(
            {"dataset": lambda data, split: Untold(BATCH * 4, None)},
            run_dir=str(tmp_path / "run"),
            steps=4,
            log_every=3,
            evaluate_every=0,
            data={"text": []},
            model={"vocab": 53, "layers": 1},
            mesh=mesh((8, 1, 1)),
        )
    said = capsys.readouterr().out
    for number, steps in ((1, "1 step"), (3, "2 steps"), (4, "1 step")):
        assert f"warning: up to step {number}, {steps} had no target" in said


def infinite_at_50(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.where(targets == 50, jnp.inf, cross_entropy(logits, targets))


def test_one_poisoned_batch_is_skipped_and_training_goes_on(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    batches = 6  # one epoch: every sample once
    result = train(
        {
            "dataset": lambda data, split: Samples(BATCH * batches, 7 if split == "train" else None),
            "loss": infinite_at_50,
        },
        steps=batches,
        evaluate_every=0,
        data={"text": []},
        model={"vocab": 53},
    )
    wrong = [k for k, loss in enumerate(column(result, "loss")) if not math.isfinite(loss)]
    with Loader(Samples(BATCH * batches, 7), batch=BATCH, seed=0) as loader:
        poisoned = [k for k in range(batches) if 50 in np.asarray(loader.at(k)["targets"])]
    assert wrong == poisoned
    assert len(wrong) == 1
    assert f"step {wrong[0] + 1} is skipped, its gradients are not finite: 1 so far\n" in capsys.readouterr().out
    np.testing.assert_array_equal(column(result, "skipped_total"), np.arange(batches) >= wrong[0])
    assert result.summary["skipped_steps"] == 1
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(result.state))
    assert math.isfinite(result.summary["held_out_loss"])
    assert lines(result)[wrong[0]]["loss"] is None
    assert lines(result)[wrong[0]]["non_finite"]["loss"] == "inf"


def test_several_bad_steps_in_a_row_stop_the_run(train: Train, tmp_path: Path) -> None:
    def undefined(logits: jax.Array, targets: jax.Array) -> jax.Array:
        return logits.sum(-1) * jnp.nan

    with pytest.raises(MeshkitError) as stop:
        train({"loss": undefined}, run_dir=str(tmp_path / "run"))
    message = str(stop.value)
    assert message.startswith("step 5: 5 steps in a row had gradients that are not finite (loss nan, ")
    assert "lower optimizer.learning_rate = 0.01" in message
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    assert all(record["loss"] is None and record["skipped_total"] == record["step"] for record in records)


# --- mistakes ------------------------------------------------------------------------------------

MISTAKES = {
    "no data": (["--data.text", "[]"], "no data is given: set exactly one of data.text"),
    "two data sets": (["--data.tokens", "somewhere"], "data.tokens and data.text are given: set exactly one"),
    "no such text": (["--data.text", "nowhere.txt"], "nowhere.txt"),
    "vocabulary": (["--model.vocab", "200"], "model.vocab = 200 and the data's ids go up to 256: set it to 257"),
    "batch": (["--data.batch", "10"], "data.batch = 10 does not split into mesh.data = 2 replicas × .* 8 or 12"),
    "more than there is": (["--data.batch", "4096"], "split of .* samples and a batch takes 4096: lower"),
    "heads": (["--mesh.tensor", "8", "--mesh.data", "1", "--mesh.pipe", "1"], "model.heads = 4 .* mesh.tensor = 8"),
    "layers": (["--mesh.pipe", "8", "--mesh.data", "1", "--mesh.tensor", "1"], "model.layers = 4 .* mesh.pipe = 8"),
    "devices": (["--mesh.pipe", "3"], "takes 12 devices and there are 8: set mesh.data"),
    "context": (["--model.context", "8"], "data.sequence = 16 exceeds model.context = 8"),
    "no folder": (["--run_dir", ""], "run_dir = '': "),
    "folder": (["--run_dir", "{text}/run"], "run_dir = .*: cannot be written .Not a directory"),
    "warm-up": (["--optimizer.warmup_steps", "13"], "optimizer.warmup_steps = 13 do not fit into steps = 12: lower"),
    "file": (
        ["--pipeline.schedule", "no.txt"],
        "pipeline.schedule = 'no.txt': no such file; schedules .*: gpipe, 1f1b",
    ),
    "schedule": (["--pipeline.schedule", "1f1"], "pipeline.schedule = '1f1': no such schedule, and a grid's"),
    "chunks": (["--pipeline.virtual", "2"], "pipeline.virtual = 2 needs pipeline.schedule = 'interleaved'"),
    "optimizer": (["--optimizer.name", "adam"], "optimizer.name = 'adam': .*'adamw'"),
    "preset": (["--model.preset", "tinny"], "model.preset = 'tinny': no such preset; did you mean 'tiny'"),
    "family": (["--model.family", "lama"], "model.family = 'lama': .* did you mean 'llama'"),
    "loss": (["--loss", "entropy"], "loss = 'entropy': .* did you mean 'cross_entropy'"),
    "other devices": (["--devices", "4"], "4 simulated CPU devices .* already runs .* 8 cpu devices: set devices = 8"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_sentence_and_exit_1(
    mistake: str,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words, message = MISTAKES[mistake]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(f'{CONFIG}\ntext = ["{text}"]\n[mesh]\ndata = 2\ntensor = 2\npipe = 2\n')
    assert main(["train", "run.toml", *(word.format(text=text) for word in words)]) == 1
    out, err = capsys.readouterr()
    *_, last = err.splitlines()
    assert last.startswith("error: ")
    assert re.search(message, last)
    assert "Traceback" not in out + err
    assert not (tmp_path / "runs").exists()  # nothing was begun
