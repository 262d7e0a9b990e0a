"""`meshkit eval`: how well a model predicts files, on any mesh.

Each file is read as training reads it: from its first token on in windows of `data.sequence`, the last one filled up
with tokens that count for nothing. Every token but a file's first is predicted once, from those before it in its
window.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshkit import assemble
from meshkit.checkpoint.find import address
from meshkit.checkpoint.record import Record, base_of
from meshkit.config import load as load_config
from meshkit.data import documents, paths
from meshkit.data.text import FileTokenizer, Tokenizer, load_tokenizer, tokenizer_of
from meshkit.errors import MeshkitError
from meshkit.hf.adapters import CONFIG as ADAPTERS
from meshkit.hf.load import load
from meshkit.mesh import build
from meshkit.models.config_json import CONFIG
from meshkit.overrides import dotted
from meshkit.simulate import simulate_cpu_devices
from meshkit.train_step import TrainStep

TOKENIZER = "tokenizer.json"

HEEDED = {"devices", "precision", "data.sequence", "data.batch", "zero", "recompute", "offload", "grad_dtype", "loss"}
LAYOUT = ("mesh.", "pipeline.", "model.options")
HEEDS = "it heeds mesh.*, pipeline.*, data.sequence, data.batch, precision and devices"
"""Which config keys may change a score, or are a part of the layout that it is computed in."""


@dataclasses.dataclass(frozen=True)
class Score:
    """Of a file, or of all: nats is the sum over `tokens` predicted tokens, which spell `bytes` bytes."""

    name: str
    nats: float
    tokens: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """With the figures that people compare: loss in nats a token, perplexity, bits a token and a byte."""
        loss, bits = self.nats / self.tokens, self.nats / math.log(2)
        figures = {"loss": loss, "perplexity": math.exp(min(loss, 700)), "bits_per_token": bits / self.tokens}
        return {"name": self.name, "tokens": self.tokens, **figures, "bits_per_byte": bits / self.bytes}


@dataclasses.dataclass(frozen=True)
class Report:
    """Scores of every file, and of all together."""

    files: list[Score]
    total: Score

    ok = True

    def to_json(self) -> str:
        """The report as a JSON object."""
        return json.dumps({**self.total.to_dict(), "files": [score.to_dict() for score in self.files]})

    def print(self) -> None:
        """The report as lines, the total last."""
        for score in [*self.files, self.total]:
            of = score.to_dict()
            print(
                f"{of['name']}: perplexity {of['perplexity']:.4f}, {of['bits_per_token']:.4f} bits a token, "
                f"{of['bits_per_byte']:.4f} bits a byte, {of['tokens']:,} tokens"
            )


def evaluate(model: str, text: Sequence[str], overrides: Mapping[str, Any], tokenizer: str | None = None) -> Report:
    """The scores of `model` (a published folder, a checkpoint, or a run) on the files that `text` names.

    overrides: config keys such as mesh, data.sequence, data.batch, precision. tokenizer: a tokenizer.json; None: the
    model's own (see `own_tokenizer`). Raises MeshkitError for anything the user can mend.
    """
    folder = weights_of(model)
    encoder = own_tokenizer(folder, tokenizer)
    config = load_config({"model": {"init_from": folder}}, overrides)
    for key, value in dotted(overrides).items():
        if key not in HEEDED and not key.startswith(LAYOUT):
            raise MeshkitError(f"{key} = {value!r}: changes nothing of `meshkit eval`: leave it out; {HEEDS}")
    if config.devices is not None:
        simulate_cpu_devices(config.devices)
    with jax.enable_x64(config.precision == "float64"):
        step = assemble.train_step(config, build(config.mesh), encoder.vocab)
        params = load(folder, step)
        files = [_score(step, params, name, ids, size) for name, ids, size in _encoded(text, encoder)]
    if not files:
        raise MeshkitError(f"{', '.join(text)}: no text to score: a file needs two tokens at least")
    total = Score("total", sum(f.nats for f in files), sum(f.tokens for f in files), sum(f.bytes for f in files))
    return Report(files, total)


def weights_of(model: str) -> str:
    """The published folder, or the checkpoint, that a user means by `model`.

    Raises MeshkitError for neither, for adapters as `peft` reads them, or a checkpoint of some whose base is gone.
    """
    if (Path(model) / CONFIG).is_file():
        return model
    if (Path(model) / ADAPTERS).is_file():
        raise MeshkitError(
            f"{model}: adapters as `peft` reads them, without their base: give the run or the checkpoint that they "
            "were exported from, or export it with `meshkit hf export --merge`"
        )
    found = address(model)
    base_of(str(found))  # says so when it is gone
    return str(found)


def own_tokenizer(folder: str, given: str | None) -> Tokenizer:
    """The tokenizer `given`, or what the model in `folder` was trained with: its tokenizer.json, or as its run says."""
    if given is not None or (Path(folder) / TOKENIZER).is_file():
        return FileTokenizer(given or Path(folder) / TOKENIZER)
    if (Path(folder) / CONFIG).is_file():
        raise MeshkitError(f"{folder}: has no {TOKENIZER}: give one with --tokenizer FILE")
    config = Record.read(address(folder)).config
    start = config["model"].get("init_from")
    if start is not None and not config["data"]["tokens"] and not config["data"]["text"]:
        return own_tokenizer(start, None)
    tokens = config["data"]["tokens"]
    if not tokens:
        return load_tokenizer(config["data"]["tokenizer"])
    prepared = [path for path in paths.weights(tokens) if Path(path).is_dir()]
    if not prepared:
        raise MeshkitError(f"{folder}: data.tokens = {tokens!r} has no tokenizer: give one with --tokenizer FILE")
    return tokenizer_of(prepared[0])


def _encoded(text: Sequence[str], encoder: Tokenizer) -> Iterator[tuple[str, np.ndarray, int]]:
    """Name, ids and bytes of every file that has more than a token.

    Raises MeshkitError for a table of records, which is no text.
    """
    for document in documents.find(text):
        if document.path.suffix in documents.TABLES:
            raise MeshkitError(f"{document.path}: a table of records: `meshkit eval` reads files of text, UTF-8, alone")
        with document.open() as file:
            ids = np.concatenate([np.zeros(0, np.int64), *encoder.encode_file(file, document.size)])
        if len(ids) > 1:
            yield document.name, ids, document.size


def _score(step: TrainStep, params: Any, name: str, ids: np.ndarray, size: int) -> Score:
    config = step.config
    S, B, m = config.data.sequence, config.data.batch, config.pipeline.microbatches
    windows = -(-(len(ids) - 1) // S)
    rows = -(-windows // B) * B
    filled = np.zeros(rows * S + 1, np.int32)
    filled[: len(ids)] = ids
    counts = np.arange(rows * S) < len(ids) - 1
    tokens, targets, weights = (
        array.reshape(-1, m, B // m, S) for array in (filled[:-1], filled[1:], counts.astype(np.float32))
    )
    nats = 0.0
    for batch in zip(tokens, targets, weights, strict=True):
        placed = jax.device_put(dict(zip(("tokens", "targets", "weights"), batch, strict=True)), step.batch_sharding)
        nats += float(step.evaluate(params, placed)["loss"])
    return Score(name, nats, len(ids) - 1, size)
