"""`meshkit eval`: what it says is the loss of the model called whole, whatever the mesh."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from meshkit import train
from meshkit.checkpoint.slices import Saved
from meshkit.cli import main
from meshkit.config import keys
from meshkit.equality import one_device
from meshkit.errors import MeshkitError
from meshkit.hf.weights import dotted
from meshkit.models.build import builder
from meshkit.models.config_json import sizes_in
from meshkit.pipeline.context import Context
from meshkit.pipeline.stage import functional
from meshkit.use.evaluate import HEEDED, LAYOUT, evaluate, weights_of
from tests.small_run import write_text

SEQUENCE = 16
MODEL = dict(layers=2, width=16, heads=2, kv_heads=2, mlp_width=16)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, and its text beside."""
    folder = tmp_path_factory.mktemp("run")
    data = dict(text=[str(write_text(folder))], sequence=SEQUENCE, batch=8)
    train({"steps": 2, "precision": "float32", "model": MODEL, "data": data, "run_dir": str(folder / "run")})
    return folder


def texts(folder: Path) -> list[str]:
    """One that fills its windows, and one that is shorter than a window."""
    (folder / "long.txt").write_text("".join(f"{n} and {n} make {2 * n}.\n" for n in range(40)))
    (folder / "short.txt").write_text("1 and 1")
    return [str(folder / name) for name in ("long.txt", "short.txt")]


@pytest.fixture(scope="module")
def losses(run: Path) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Tokens, targets [B, S] -> losses of the run's model, called whole."""
    saved = Saved(epath.Path(run / "run" / "checkpoints" / "2"))
    stages = functional(builder(sizes_in(saved.where), 1))
    params = jax.tree_util.tree_map_with_path(
        lambda path, shape: jnp.asarray(saved.read(dotted(path), (slice(None),) * shape.ndim)), stages.shapes
    )

    def whole(tokens_BS: jax.Array, targets_BS: jax.Array) -> jax.Array:
        logits_BSV = stages.model(params)(tokens_BS, Context(-1, jnp.arange(len(tokens_BS)), None))
        return one_device.cross_entropy(logits_BSV, targets_BS)

    return jax.jit(whole)


def by_hand(losses: Callable[[np.ndarray, np.ndarray], np.ndarray], path: str) -> float:
    """The sum of losses of a file's bytes, window by window."""
    ids = np.frombuffer(Path(path).read_bytes(), np.uint8).astype(np.int32)
    filled = np.zeros(64 * SEQUENCE + 1, np.int32)
    filled[: len(ids)] = ids
    each = losses(filled[:-1].reshape(-1, SEQUENCE), filled[1:].reshape(-1, SEQUENCE))
    return float(np.asarray(each, np.float64).reshape(-1)[: len(ids) - 1].sum())


@pytest.mark.parametrize("mesh", [dict(data=8), dict(data=2, tensor=2, pipe=2)])
def test_scores_are_those_of_the_model_called_whole(mesh: dict[str, int], run: Path, losses: Any) -> None:
    files = texts(run)
    report = evaluate(
        str(run / "run"),
        files,
        {"mesh": mesh, "precision": "float32", "data.sequence": SEQUENCE, "data.batch": 8, "pipeline.microbatches": 1},
    )
    for score, path in zip(report.files, files, strict=True):
        size = Path(path).stat().st_size
        assert (score.name, score.tokens, score.bytes) == (Path(path).name, size - 1, size)
        assert score.nats == pytest.approx(by_hand(losses, path), rel=1e-5)
    assert report.total.nats == sum(score.nats for score in report.files)


def test_the_command_prints_one_json_value(run: Path, capfd: Any) -> None:
    arguments = ["eval", str(run / "run"), *texts(run), "--json", "--data.sequence", str(SEQUENCE)]
    assert main(arguments) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["perplexity"] == pytest.approx(math.exp(said["loss"]))
    assert said["bits_per_token"] == pytest.approx(said["loss"] / math.log(2))
    assert [file["name"] for file in said["files"]] == ["long.txt", "short.txt"]


def test_what_cannot_be_scored_is_named(run: Path, tmp_path: Path) -> None:
    one, none = (tmp_path / name for name in ("one.txt", "none.txt"))
    one.write_text("a")
    none.write_text("")
    with pytest.raises(MeshkitError, match=r"one\.txt, .*none\.txt: no text to score: a file needs two tokens"):
        evaluate(str(run / "run"), [str(one), str(none)], {"data.sequence": SEQUENCE})
    for key, value in {"steps": 4, "data.documents": "apart", "model.init_from": "other"}.items():
        with pytest.raises(MeshkitError, match=rf"{key} = .*: changes nothing of `meshkit eval`"):
            evaluate(str(run / "run"), texts(run), {"data.sequence": SEQUENCE, key: value})
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(MeshkitError, match=r"adapters as `peft` reads them, .*--merge"):
        weights_of(str(tmp_path))


COURSE = r"steps|seed|run_dir|resume|log_every|evaluate_every|(optimizer|checkpoint)\..*"
OTHER_DATA = r"data\.(text|dataset|documents|held_out|tokens|tokenizer)"
OF_THE_MODEL = r"model\.(?!options).*"
"""What a score cannot follow from: the course of a run, its data, and sizes that the weights bring with them."""


def test_every_key_is_heeded_or_cannot_change_a_score() -> None:
    unheeded = {key for key in keys() if key not in HEEDED and not key.startswith(LAYOUT)}
    assert unheeded == {key for key in keys() if re.fullmatch(f"{COURSE}|{OTHER_DATA}|{OF_THE_MODEL}", key)}
    assert keys().keys() >= HEEDED


def test_a_table_is_no_text(run: Path, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": ["some text"]}), tmp_path / "t.parquet")
    with pytest.raises(MeshkitError, match=r"t\.parquet: a table of records: `meshkit eval` reads files of text"):
        evaluate(str(run / "run"), [str(tmp_path / "t.parquet")], {"data.sequence": SEQUENCE})
