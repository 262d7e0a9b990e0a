"""Published folders into checkpoints and meshes, and back: the same numbers, slice by slice, or an error."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from meshkit import assemble, mesh, train
from meshkit.checkpoint.slices import Saved
from meshkit.cli import main
from meshkit.config import load as load_config
from meshkit.equality.verify import canonical_leaves
from meshkit.errors import MeshkitError
from meshkit.hf import load as loading
from meshkit.hf import transfer
from meshkit.hf.folder import INDEX, SINGLE, Folder
from meshkit.hf.load import load
from meshkit.hf.weights import Weights, shapes_of
from meshkit.models import names
from meshkit.models.config_json import CONFIG, layer_types, read, sizes_in, write
from meshkit.models.presets import Sizes
from meshkit.models.published import PUBLISHED

SIZES = dict(layers=3, width=16, heads=4, kv_heads=2, head_dim=8, mlp_width=24, vocab=53, context=32)
OPTIONS: dict[str, dict[str, Any]] = {
    "mistral": dict(window=5),
    "gemma2": dict(window=5, global_every=2, attention_cap=50.0, logit_cap=30.0, query_scale=9),
    "gemma3": dict(window=5, global_every=2, logit_cap=None, query_scale=9, local_theta=10_000.0),
    "mixtral": dict(experts=4, chosen=2, balance=0.02, window=None),
    "qwen3-moe": dict(experts=4, chosen=2, balance=0.001, weigh="all"),
}


def sizes_of(family: str) -> Sizes:
    given = SIZES | (dict(kv_heads=4, head_dim=4, tied=True) if family == "gpt2" else {})
    return Sizes(family, **given, options=OPTIONS.get(family, {}))


def write_folder(folder: Path, family: str = "llama", dtype: Any = np.float32, files: int = 1) -> dict[str, np.ndarray]:
    """A published folder with another number at every place; returns its tensors."""
    sizes = sizes_of(family)
    tensors: dict[str, np.ndarray] = {}
    random = np.random.default_rng(0)
    for name, shape in shapes_of(sizes).items():
        tensor = names.tensors(sizes)[name]
        alone = 0 if not name.startswith("blocks.") else 2 if "{expert}" in tensor.name else 1
        for numbers in np.ndindex(*shape[:alone]):
            layer, expert = (*numbers, None, None)[:2]
            matrix = (*shape[alone:-1], shape[-1] * tensor.parts)
            key = tensor.name.format(layer=layer, expert=expert)
            tensors.setdefault(key, random.standard_normal(matrix[::-1] if tensor.transposed else matrix).astype(dtype))
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps(write(sizes, str(np.dtype(dtype)))))
    if files == 1:
        save_file(tensors, folder / SINGLE)
        return tensors
    placed = {name: f"model-{k % files + 1:05d}-of-{files:05d}.safetensors" for k, name in enumerate(tensors)}
    for file in set(placed.values()):
        save_file({name: tensors[name] for name, place in placed.items() if place == file}, folder / file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return tensors


def assert_same(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert got.keys() == want.keys()
    for name, values in want.items():
        assert got[name].dtype == values.dtype, name
        np.testing.assert_array_equal(got[name], values, err_msg=name)


# --- there and back -----------------------------------------------------------------------------


@pytest.mark.parametrize("family", PUBLISHED)
def test_what_is_imported_is_exported(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "CHUNK", 500)  # several chunks of a matrix
    want = write_folder(tmp_path / "in", family)
    assert main(["hf", "import", str(tmp_path / "in"), "--to", str(tmp_path / "saved")]) == 0
    assert sizes_in(tmp_path / "saved" / "0") == sizes_of(family)
    assert main(["checkpoint", "verify", str(tmp_path / "saved")]) == 0
    assert main(["hf", "export", str(tmp_path / "saved"), "--to", str(tmp_path / "out")]) == 0
    assert sizes_in(tmp_path / "out") == sizes_of(family)
    assert_same(load_file(tmp_path / "out" / SINGLE), want)


def test_files_dtypes_and_what_stands_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "FILE", 5000)
    want = write_folder(tmp_path / "in", dtype=ml_dtypes.bfloat16, files=3)
    (tmp_path / "in" / "tokenizer.json").write_text("{}")
    config = json.loads((tmp_path / "in" / CONFIG).read_text())
    (tmp_path / "in" / CONFIG).write_text(json.dumps(config | {"eos_token_id": 7}))
    saved = transfer.import_folder(str(tmp_path / "in"), str(tmp_path / "saved"))
    out = transfer.export_checkpoint(str(saved), str(tmp_path / "out"), like=str(tmp_path / "in"))
    weights = {name: Folder(out).read(name, (slice(None),) * values.ndim) for name, values in want.items()}
    assert_same(weights, want)
    assert len(set(json.loads((out / INDEX).read_text())["weight_map"].values())) > 3
    assert (out / "tokenizer.json").read_text() == "{}"
    assert json.loads((out / CONFIG).read_text())["eos_token_id"] == 7
    wide = transfer.export_checkpoint(str(saved), str(tmp_path / "wide"), dtype="float32")
    assert_same(
        {name: Folder(wide).read(name, (slice(None),) * v.ndim) for name, v in want.items()},
        {name: v.astype(np.float32) for name, v in want.items()},
    )


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
@pytest.mark.parametrize("layers_per_stage", [[2, 1], None])
def test_devices_read_their_own_shards(family: str, layers_per_stage: list[int] | None, tmp_path: Path) -> None:
    """What lies on a mesh, put in the model's order, is what the files hold; so from a checkpoint."""
    write_folder(tmp_path / "in", family)
    saved = transfer.import_folder(str(tmp_path / "in"), str(tmp_path / "saved"))
    weights = Weights(Folder(tmp_path / "in"))
    want = {}
    for name, shape in weights.shapes.items():
        everything = (slice(None),) * (len(shape) - 1)
        blocks = name.startswith("blocks.")
        read = (
            weights.read_layers(name, range(3), everything)
            if blocks
            else weights.read(name, (slice(None), *everything))
        )
        want[name] = read
    for source in (tmp_path / "in", saved):
        config = load_config(
            {
                "precision": "float32",
                "mesh": dict(data=2, tensor=2, pipe=2),
                "pipeline": dict(layers_per_stage=layers_per_stage),
                "model": dict(init_from=str(source)),
                "data": dict(sequence=8, batch=2),
            }
        )
        step = assemble.train_step(config, mesh.build(config.mesh, jax.devices()))
        params = load(str(source), step)
        shardings = jax.tree.map(lambda array: array.sharding, params)
        assert shardings == step.state_shardings["params"]
        assert_same(canonical_leaves(params, step.stages), want)


def test_a_run_begins_with_published_weights_and_its_checkpoint_is_exported(tmp_path: Path) -> None:
    """A run that hardly moves gives back what it began with; its data have other ids than the model has."""
    want = write_folder(tmp_path / "in", "qwen3")
    (tmp_path / "text.txt").write_text("0123456789" * 200)
    settings = {
        "steps": 1,
        "precision": "float32",
        "run_dir": str(tmp_path / "run"),
        "mesh": dict(data=2, tensor=2, pipe=2),
        "model": dict(init_from=str(tmp_path / "in")),
        "optimizer": dict(learning_rate=1e-7, weight_decay=0.0),
        "data": dict(text=[str(tmp_path / "text.txt")], sequence=16, batch=4),
    }
    with pytest.raises(MeshkitError, match=r"model\.vocab = 53 and the data's ids go up to 256"):
        train(settings)
    settings["data"] |= {"text": [], "dataset": "tests.hf.test_transfer:Digits"}
    train(settings)
    transfer.export_checkpoint(str(tmp_path / "run"), str(tmp_path / "out"))
    got = load_file(tmp_path / "out" / SINGLE)
    assert got.keys() == want.keys()
    moved = {name: np.abs(got[name] - values).max() for name, values in want.items()}
    assert max(moved.values()) < 1e-6
    assert min(value for name, value in moved.items() if "norm" not in name) > 0


class Digits:
    """Samples of one and the same text."""

    def __init__(self, data: Any, split: str) -> None:
        self.sequence = data.sequence

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        ids = (np.arange(self.sequence + 1) * 3 + index) % 53
        return {"tokens": ids[:-1], "targets": ids[1:], "weights": np.ones(self.sequence, np.float32)}


def test_no_more_than_a_shard_is_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of blocks cut over 8 devices; the most bytes that any read asks for are those of the largest shard."""
    write_folder(tmp_path / "in")
    config = load_config(
        {
            "mesh": dict(data=4, tensor=2, pipe=1),
            "model": dict(init_from=str(tmp_path / "in")),
            "data": dict(batch=4, sequence=8),
        }
    )
    step = assemble.train_step(config, mesh.build(config.mesh, jax.devices()))
    asked = []
    put = jax.device_put
    monkeypatch.setattr(
        loading.jax, "device_put", lambda values, device: asked.append(values.nbytes) or put(values, device)
    )
    params = load(str(tmp_path / "in"), step)
    shards = [shard.data.nbytes for leaf in jax.tree.leaves(params) for shard in leaf.addressable_shards]
    assert sorted(asked) == sorted(shards)


# --- what is refused ----------------------------------------------------------------------------


def cut_header(folder: Path) -> None:
    (folder / SINGLE).write_bytes((folder / SINGLE).read_bytes()[:100])


def cut_tail(folder: Path) -> None:
    (folder / SINGLE).write_bytes((folder / SINGLE).read_bytes()[:-1])


def long_header(folder: Path) -> None:
    (folder / SINGLE).write_bytes(b"\xff" * 8 + (folder / SINGLE).read_bytes()[8:])


def other_dtype(folder: Path) -> None:
    tensors = load_file(folder / SINGLE)
    save_file({name: values.astype(np.int8) for name, values in tensors.items()}, folder / SINGLE)


def other_shape(folder: Path) -> None:
    tensors = load_file(folder / SINGLE)
    save_file(tensors | {"model.norm.weight": np.ones(17, np.float32)}, folder / SINGLE)


def one_less(folder: Path) -> None:
    tensors = load_file(folder / SINGLE)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / SINGLE)


def one_more(folder: Path) -> None:
    save_file(
        load_file(folder / SINGLE) | {"model.layers.0.self_attn.q_proj.bias": np.ones(32, np.float32)}, folder / SINGLE
    )


def index(**table: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        placed = dict.fromkeys(load_file(folder / SINGLE), SINGLE) | table
        (folder / INDEX).write_text(json.dumps({"weight_map": placed}))

    return change


def config(**fields: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        values = json.loads((folder / CONFIG).read_text()) | fields
        (folder / CONFIG).write_text(json.dumps(values))

    return change


def gemma3_with_caps(folder: Path) -> None:
    shutil.rmtree(folder)
    write_folder(folder, "gemma3")
    config(attn_logit_softcapping=50.0)(folder)


def tied(**tensors: np.ndarray) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        save_file(load_file(folder / SINGLE) | tensors, folder / SINGLE)
        config(tie_word_embeddings=True)(folder)

    return change


NORM = "model.norm.weight"
SPOILT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a cut header": (cut_header, r"model\.safetensors: not a whole safetensors file"),
    "a cut tail": (cut_tail, r"model\.safetensors: not a whole safetensors file"),
    "a header longer than the file": (long_header, r"model\.safetensors: not a whole safetensors file"),
    "a dtype that is none of weights": (other_dtype, r"weight is I8: meshkit reads F64, F32"),
    "another shape": (other_shape, r"model\.norm\.weight has the shape \[17\], and the model's sizes say \[16\]"),
    "a tensor less": (one_less, r"the tensor model\.layers\.1\.mlp\.up_proj\.weight is missing"),
    "a tensor more": (one_more, r"has no place for the tensor model\.layers\.0\.self_attn\.q_proj\.bias"),
    "no weights": (lambda folder: (folder / SINGLE).unlink(), r"model\.safetensors: missing; .* has no weights"),
    "weights of another format": (
        lambda folder: (folder / SINGLE).rename(folder / "pytorch_model.bin"),
        r"model\.safetensors: missing; .* the folder has pytorch_model\.bin",
    ),
    "no config": (lambda folder: (folder / CONFIG).unlink(), r"config\.json: no such file"),
    "a config that is not JSON": (
        lambda folder: (folder / CONFIG).write_text("{"),
        r"config\.json: cannot be read as JSON",
    ),
    "a missing shard": (
        index(**{NORM: "model-00002-of-00002.safetensors"}),
        r"model-00002-of-00002\.safetensors: missing",
    ),
    "a shard without the tensor": (index(other="model.safetensors"), r"holds no tensor 'other'"),
    "a path out of the folder": (index(**{NORM: "../model.safetensors"}), r"'\.\./model\.safetensors': not the name"),
    "an absolute path": (index(**{NORM: "/etc/model.safetensors"}), r"'/etc/model\.safetensors': not the name"),
    "another file": (index(**{NORM: "config.json"}), r"'config\.json': not the name of a \.safetensors file"),
    "a name that no file can have": (
        lambda folder: (folder / INDEX).write_text(json.dumps({"weight_map": {"norm": "a" * 300 + ".safetensors"}})),
        r"a{300}\.safetensors: missing",
    ),
    "an index without a table": (lambda folder: (folder / INDEX).write_text("{}"), r"\"weight_map\" must say"),
    "another family": (config(model_type="llamma"), r"model_type = 'llamma': .*did you mean 'llama'"),
    "biases": (config(attention_bias=True), r"attention_bias = True: meshkit's llama has False alone"),
    "another activation": (config(hidden_act="relu"), r"hidden_act = 'relu': meshkit's llama has 'silu' alone"),
    "another scaling": (
        config(rope_parameters=None, rope_scaling={"rope_type": "yarn", "factor": 4.0}),
        r"rope_type = 'yarn': meshkit has",
    ),
    "an unknown field": (config(quantization_config={"bits": 4}), r"quantization_config = .*: meshkit does not know"),
    "caps that a Gemma 3 has not": (gemma3_with_caps, r"attn_logit_softcapping = 50\.0: meshkit's gemma3 has None"),
    "a tied head that is its own": (
        tied(),
        r"lm_head\.weight differs from model\.embed_tokens\.weight, and .*tie_word",
    ),
    "no width": (config(hidden_size=None), r"hidden_size = None: must be a positive number"),
}


DEFAULT, LLAMA3 = {"rope_type": "default", "rope_theta": 1e4}, {"rope_type": "llama3", "factor": 8.0}
LINEAR = {"rope_type": "linear", "factor": 4.0}
FIELDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a family that is a list": ("llama", {"model_type": ["a"]}, r"model_type = \['a'\]: not a family"),
    "no heads": ("llama", {"num_attention_heads": 0}, r"num_attention_heads = 0: must be a positive number"),
    "heads that do not divide": (
        "qwen2",
        {"num_attention_heads": 3, "head_dim": None},
        r"= 3: must divide hidden_size",
    ),
    "an epsilon in words": ("llama", {"rms_norm_eps": "x"}, r"rms_norm_eps = 'x': must be a positive, finite number"),
    "no epsilon": ("llama", {"rms_norm_eps": None}, r"rms_norm_eps = None: must be a positive, finite number"),
    "a negative epsilon": ("gpt2", {"layer_norm_epsilon": -1}, r"layer_norm_epsilon = -1: must be a positive, finite"),
    "an infinite base": ("llama", {"rope_theta": 1e999, "rope_parameters": None}, r"rope_theta = inf: must be"),
    "a switch in words": ("llama", {"tie_word_embeddings": "yes"}, r"tie_word_embeddings = 'yes': must be true or"),
    "an empty window": ("mistral", {"sliding_window": 0}, r"sliding_window = 0: must be a positive number, or null"),
    "a cap of nothing": (
        "gemma2",
        {"attn_logit_softcapping": 0.0},
        r"attn_logit_softcapping = 0\.0: must be a positive",
    ),
    "more chosen than there are": (
        "mixtral",
        {"num_experts_per_tok": 5},
        r"num_experts_per_tok = 5: must be 1 to .* 4",
    ),
    "two numbers of experts": (
        "qwen3-moe",
        {"num_experts": 4, "num_local_experts": 8},
        r"num_experts = 4 and num_local_experts = 8: two names",
    ),
    "dropout of all": ("gpt2", {"resid_pdrop": 1.0}, r"resid_pdrop = 1\.0: must be a number from 0 to less than 1"),
    "rotary settings in a list": ("llama", {"rope_parameters": [1]}, r"rope_parameters = \[1\]: must be an object"),
    "two bases": ("llama", {"rope_theta": 5.0}, r"rope_theta = 5\.0: rope_parameters says 10000\.0"),
    "two scalings": ("llama", {"rope_scaling": LINEAR}, r"rope_scaling = .*linear.*: rope_parameters says .*default"),
    "half a scaling": (
        "llama",
        {"rope_parameters": LLAMA3},
        r"rope_scaling\.low_freq_factor is missing, which .*llama3",
    ),
    "a factor of nothing": (
        "llama",
        {"rope_parameters": LINEAR | {"factor": 0}},
        r"config\.json: rope_scaling\.factor = 0: must be a positive, finite number$",
    ),
    "another rotary setting": (
        "llama",
        {"rope_parameters": DEFAULT | {"partial_rotary_factor": 0.5}},
        r"rope_scaling\.partial_rotary_factor = 0\.5: meshkit does not know",
    ),
    "a scaling of local layers": (
        "gemma3",
        {"rope_parameters": {"full_attention": DEFAULT, "sliding_attention": DEFAULT | LINEAR}},
        r"rope_parameters\.sliding_attention\.rope_type = 'linear': meshkit has no scaling of local layers",
    ),
    "rotary settings of no layers": ("gemma3", {"rope_parameters": DEFAULT}, r"must say which layers"),
    "too few layers": ("qwen2", {"layer_types": ["full_attention"]}, r"layer_types = .* each of num_hidden_layers = 3"),
    "local layers": (
        "qwen2",
        {"layer_types": ["sliding_attention"] * 3},
        r"layer_types = .* are 'full_attention' here",
    ),
    "a pattern that transformers does not heed": (
        "gemma2",
        {"layer_types": None, "sliding_window_pattern": 3},
        r"sliding_window_pattern = 3: `transformers` takes a gemma2 for 2 .* layer_types",
    ),
    "global layers beside a window": ("mistral", {"layer_types": ["full_attention"] * 3}, r"'sliding_attention' here"),
}


@pytest.mark.parametrize("what", FIELDS)
def test_a_field_of_another_kind_is_named_with_its_rule(what: str) -> None:
    family, fields, said = FIELDS[what]
    with pytest.raises(MeshkitError, match=said):
        read(write(sizes_of(family), "float32") | fields, "config.json")


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_layers_that_are_all_global_or_all_local(family: str) -> None:
    config = write(sizes_of(family), "float32")
    every = lambda kind: read(config | {"layer_types": [kind] * 3}, "config.json").style.global_every
    assert (every("full_attention"), every("sliding_attention")) == (1, 4)


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
@pytest.mark.parametrize("layers", [["sliding_attention", "sliding_attention", "full_attention"], None])
def test_the_pattern_of_local_layers_is_what_transformers_takes(family: str, layers: list[str] | None) -> None:
    transformers = pytest.importorskip("transformers")
    config = write(sizes_of(family), "float32") | {"layer_types": layers}
    for pattern in (1, 2, 3, None):
        stated = config | ({"sliding_window_pattern": pattern} if pattern else {})
        if not pattern:
            stated.pop("sliding_window_pattern", None)
        theirs = transformers.AutoConfig.for_model(**stated).layer_types
        if family == "gemma2" and layers is None and pattern in (1, 3):
            with pytest.raises(MeshkitError, match=f"sliding_window_pattern = {pattern}"):
                read(stated, "config.json")
        else:
            assert layer_types(3, read(stated, "config.json").style.global_every) == theirs


@pytest.mark.parametrize("family", PUBLISHED)
def test_what_is_absent_is_what_transformers_takes(family: str) -> None:
    """A file with nothing but what must be there, against what `transformers`' class writes from it."""
    transformers = pytest.importorskip("transformers")
    full = write(sizes_of(family), "float32") | {"num_attention_heads": 32, "hidden_size": 256, "head_dim": 8}
    published = PUBLISHED[family]
    kept = {*published.sizes.values(), *published.options.values()} - published.absent.keys()
    least = {name: full[name] for name in kept}
    theirs = transformers.AutoConfig.for_model(published.kind, **least)
    ours = {"model_type": published.kind}
    assert read(least | ours, "config.json") == read(json.loads(theirs.to_json_string(use_diff=False)), "config.json")


def test_a_tied_head_that_is_the_embedding_again_is_read(tmp_path: Path) -> None:
    tensors = write_folder(tmp_path / "in")
    tied(**{"lm_head.weight": tensors["model.embed_tokens.weight"]})(tmp_path / "in")
    assert "head.table" not in Weights(Folder(tmp_path / "in")).shapes


@pytest.mark.parametrize("what", SPOILT)
def test_what_is_wrong_is_named_and_nothing_written(what: str, tmp_path: Path, capsys: Any) -> None:
    spoil, said = SPOILT[what]
    write_folder(tmp_path / "in")
    spoil(tmp_path / "in")
    before = sorted(tmp_path.rglob("*"))
    assert main(["hf", "import", str(tmp_path / "in"), "--to", str(tmp_path / "saved")]) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert re.search(said, error), error
    assert sorted(tmp_path.rglob("*")) == before


def test_places_that_are_taken_are_left_alone(tmp_path: Path) -> None:
    write_folder(tmp_path / "in")
    saved = transfer.import_folder(str(tmp_path / "in"), str(tmp_path / "saved"))
    with pytest.raises(MeshkitError, match="holds checkpoints already"):
        transfer.import_folder(str(tmp_path / "in"), str(tmp_path / "saved"))
    with pytest.raises(MeshkitError, match="is there already"):
        transfer.export_checkpoint(str(saved), str(tmp_path / "in"))
    damaged = next(path for path in (saved / "state" / "d").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(MeshkitError, match="is damaged"):
        transfer.export_checkpoint(str(saved), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_an_option_that_config_json_cannot_say_is_named() -> None:
    sizes = sizes_of("llama")
    with pytest.raises(MeshkitError, match=r"model\.options\.qk_norm = True: the config\.json of a llama cannot"):
        write(Sizes(**vars(sizes) | {"options": {"qk_norm": True}}), "float32")


def test_older_files_say_the_same() -> None:
    """rope_theta and rope_scaling as plain fields, no layer_types, experts by their former name."""
    for family in PUBLISHED:
        config = write(sizes_of(family), "float32")
        for newer in ("rope_parameters", "layer_types", "num_local_experts" if family == "qwen3-moe" else ""):
            config.pop(newer, None)
        assert read(config, "config.json") == sizes_of(family)


def test_a_saved_checkpoint_has_every_parameter(tmp_path: Path) -> None:
    write_folder(tmp_path / "in")
    saved = transfer.import_folder(str(tmp_path / "in"), str(tmp_path / "saved"))
    assert Saved(saved).shapes == shapes_of(sizes_of("llama"))
    shutil.rmtree(tmp_path / "in")
    assert sizes_in(saved) == sizes_of("llama")
