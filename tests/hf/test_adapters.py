"""Adapters of a run: saved without their base, gone on from, used, and exported for `peft` or merged."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from meshkit import assemble, mesh, train
from meshkit.checkpoint.find import address
from meshkit.checkpoint.slices import Saved
from meshkit.cli import main
from meshkit.config import load as load_config
from meshkit.equality.verify import canonical_leaves
from meshkit.errors import MeshkitError
from meshkit.hf import adapters as exported
from meshkit.hf import transfer
from meshkit.hf.folder import SINGLE
from meshkit.hf.load import load
from meshkit.pipeline.stage import Params
from meshkit.use.evaluate import weights_of
from tests.hf.test_transfer import write_folder

LORA = {"rank": 2, "alpha": 3, "linears": ["query", "attention.out", "up"]}


def settings(folder: Path, **more: Any) -> Any:
    return load_config(
        {
            "steps": 2,
            "precision": "float64",
            "run_dir": str(folder / "run"),
            "mesh": dict(data=2, tensor=2, pipe=2),
            "model": {"init_from": str(folder / "base"), "options": {"lora": LORA}},
            "optimizer": dict(learning_rate=0.1, schedule="constant", weight_decay=0.0),
            "data": dict(dataset="tests.hf.test_transfer:Digits", sequence=16, batch=4),
        },
        more,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with base/ and run/, two steps of adapters on it."""
    folder = tmp_path_factory.mktemp("adapters")
    write_folder(folder / "base", "qwen3")
    train(settings(folder))
    return folder


def formula(folder: Path) -> dict[str, np.ndarray]:
    """The base's tensors with alpha / rank · B·A added where the run has adapters, all in PyTorch's order."""
    tensors = load_file(folder / "base" / SINGLE)
    own = Saved(address(str(folder / "run")))
    theirs = {"attention.query": "self_attn.q_proj", "attention.out": "self_attn.o_proj", "mlp.up": "mlp.up_proj"}
    everything = (slice(None), slice(None))
    for ours, name in theirs.items():
        a, b = (own.read_layers(f"blocks.{ours}.lora.{part}", range(3), everything) for part in ("a", "b"))
        for layer in range(3):
            assert np.abs(b[layer]).max() > 0.05
            tensors[f"model.layers.{layer}.{name}.weight"] += 1.5 * b[layer].T @ a[layer].T
    return tensors


def test_a_checkpoint_holds_the_adapters_and_says_of_what(run: Path, capsys: Any) -> None:
    assert main(["checkpoint", "show", str(run / "run"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["base"] == str(run / "base")
    assert len(shown["arrays"]) == 3 * 2 * 3 + 5  # A and B of three linears, with two moments; counters
    assert all("/lora/" in name for name in shown["arrays"] if not name.endswith(("step", "skipped", "count", "total")))


def test_a_run_goes_on_with_its_adapters_on_another_mesh(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "halves")
    more = {"steps": 3, "model.init_from": str(run / "base")}
    halves = train(settings(tmp_path / "halves", **more | {"mesh": dict(data=4, tensor=2, pipe=1)}))
    whole = train(settings(tmp_path / "whole", **more))
    assert [record["step"] for record in halves.history] == [1, 2, 3]
    assert halves.history[-1]["loss"] == pytest.approx(whole.history[-1]["loss"], rel=1e-12)
    assert query(halves.state["params"]) == pytest.approx(query(whole.state["params"]), rel=1e-9)
    write_folder(tmp_path / "base", "qwen3")
    with pytest.raises(MeshkitError, match="the frozen base = .* then and .* now"):
        train(settings(tmp_path / "halves", steps=4, **{"model.init_from": str(tmp_path / "base")}))


def test_adapters_are_loaded_with_their_base(run: Path) -> None:
    checkpoint = str(address(str(run / "run")))
    given = {"model": {"init_from": checkpoint}, "mesh": {"data": 1}, "data": {"sequence": 8, "batch": 1}}
    config = load_config(given, {"precision": "float32"})
    step = assemble.train_step(config, mesh.build(config.mesh, jax.devices()[:1]))
    leaves = canonical_leaves(load(checkpoint, step), step.stages)
    base = load_file(run / "base" / SINGLE)["model.layers.1.self_attn.q_proj.weight"]
    np.testing.assert_array_equal(leaves["blocks.attention.query.kernel"][1], base.T)
    assert np.abs(leaves["blocks.attention.query.lora.b"]).max() > 0.05
    (run / "base").rename(run / "elsewhere")
    try:
        with pytest.raises(MeshkitError, match=r"holds adapters of .*base, which is not there: put it back"):
            load(checkpoint, step)
        with pytest.raises(MeshkitError, match=r"holds adapters of .*base, which is not there: put it back"):
            weights_of(checkpoint)  # as `meshkit eval` and `generate` begin
    finally:
        (run / "elsewhere").rename(run / "base")


def query(params: Params) -> float:
    return float(np.abs(np.asarray(params["blocks"]["attention"]["query"]["lora"]["b"])).sum())


def test_merged_is_the_formula(run: Path, tmp_path: Path) -> None:
    assert main(["hf", "export", str(run / "run"), "--to", str(tmp_path / "out"), "--merge"]) == 0
    want = formula(run)
    got = load_file(tmp_path / "out" / SINGLE)
    assert got.keys() == want.keys()
    for name, values in want.items():
        np.testing.assert_allclose(got[name], values, rtol=0, atol=1e-6, err_msg=name)


def test_peft_reads_what_is_exported(run: Path, tmp_path: Path) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    import torch

    adapters = transfer.export_checkpoint(str(run / "run"), str(tmp_path / "adapters"))
    whole = transfer.export_checkpoint(str(run / "run"), str(tmp_path / "merged"), dtype="float64", merge=True)
    load = transformers.AutoModelForCausalLM.from_pretrained
    base, merged = (load(path, dtype=torch.float64) for path in (run / "base", whole))
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        before = base(tokens).logits
        adapted = peft.PeftModel.from_pretrained(base, str(adapters))
        got, want = adapted(tokens).logits, merged(tokens).logits
    assert (before - want).abs().max() > 1e-2
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=0, atol=1e-10)


def test_names_are_those_that_peft_writes(run: Path, tmp_path: Path) -> None:
    transfer.export_checkpoint(str(run / "run"), str(tmp_path / "out"))
    tensors = load_file(tmp_path / "out" / exported.MODEL)
    assert len(tensors) == 3 * 3 * 2
    assert tensors["base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight"].shape == (2, 16)
    assert tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"].shape == (32, 2)
    written = json.loads((tmp_path / "out" / exported.CONFIG).read_text())
    assert (written["r"], written["lora_alpha"], written["base_model_name_or_path"]) == (2, 3, str(run / "base"))
    assert written["target_modules"] == ["self_attn.o_proj", "self_attn.q_proj", "mlp.up_proj"]


def test_what_cannot_be_exported_is_named(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "moved")
    write_folder(tmp_path / "whole")
    saved = transfer.import_folder(str(tmp_path / "whole"), str(tmp_path / "saved"))
    with pytest.raises(MeshkitError, match="has no adapters: without --merge"):
        transfer.export_checkpoint(str(saved), str(tmp_path / "out"), merge=True)
    with pytest.raises(MeshkitError, match=r"model\.options\.lora trains adapters of weights that there are"):
        train(settings(tmp_path, **{"model.init_from": None}))
    assert not (tmp_path / "out").exists()
