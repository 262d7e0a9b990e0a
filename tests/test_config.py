"""The config: what stands over what, what is refused and how, and that a written config reads as itself."""

import re
from pathlib import Path
from typing import Any

import pydantic
import pytest
import tomli_w
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshkit.config import MeshShape, RopeScaling, RunConfig, keys, load
from meshkit.errors import MeshkitError
from meshkit.overrides import parse_value, split_overrides, words


def written(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


# --- reading ------------------------------------------------------------------------------------


def test_defaults_then_file_then_overrides(tmp_path: Path) -> None:
    path = written(tmp_path, "steps = 7\nseed = 3\n[mesh]\ntensor = 2\npipe = 4\n")
    config = load(path, {"steps": 9, "mesh": {"pipe": 2}})
    assert (config.steps, config.seed, config.log_every) == (9, 3, RunConfig().log_every)
    assert config.mesh == MeshShape(data=-1, tensor=2, pipe=2)


@pytest.mark.parametrize(
    "overrides",
    [
        {"mesh.data": 2, "mesh.tensor": 4, "model.rope_scaling.factor": 2.0},
        {"mesh": {"data": 2, "tensor": 4}, "model": {"rope_scaling": {"factor": 2.0}}},
        {"mesh": {"data": 2}, "mesh.tensor": 4, "model": {"rope_scaling.factor": 2.0}},
        {"mesh": MeshShape(data=2, tensor=4), "model.rope_scaling": RopeScaling(factor=2.0)},
    ],
)
def test_nested_and_dotted_spellings_are_one(overrides: dict[str, Any]) -> None:
    expected = RunConfig.model_validate(
        {"mesh": {"data": 2, "tensor": 4}, "model": {"rope_scaling": {"factor": 2.0}}},
    )
    assert load({}, overrides) == load(overrides) == expected


def test_an_override_of_a_run_config_leaves_its_other_keys(tmp_path: Path) -> None:
    config = load({"steps": 7, "mesh.data": 2})
    assert load(config, {"mesh.pipe": 4}) == load({"steps": 7, "mesh.data": 2, "mesh.pipe": 4})
    assert load(config) == config


def test_command_line_mapping_and_file_give_the_same(tmp_path: Path) -> None:
    values = {
        "steps": 5,
        "run_dir": "2026",
        "precision": "float64",
        "zero": 0,
        "mesh.data": 2,
        "model.tied": False,
        "model.rope_scaling.factor": 2.0,
        "optimizer.learning_rate": 1e-3,
        "data.text": ["here"],
    }
    words = [word for key, value in values.items() for word in (f"--{key}", str(value).lower().strip("[]'"))]
    _, overrides = split_overrides(["train", "run.toml", *words])
    nested = load(values).model_dump(exclude_unset=True)
    assert load({}, overrides) == load(values) == load(written(tmp_path, tomli_w.dumps(nested)))


@pytest.mark.parametrize("tokens", ["a", ["a.b", "c"], {"a/v1.0": 0.75, "c": 1}])
def test_paths_of_tokens_are_no_keys(tmp_path: Path, tokens: Any) -> None:
    """A table of paths, with points in them, is one value: everywhere the same, and replaced as a whole."""
    values = {"data": {"tokens": tokens, "batch": 4}}
    config = load(values)
    assert config.data.tokens == tokens
    assert load(written(tmp_path, tomli_w.dumps(values))) == load({"data.tokens": tokens}, {"data.batch": 4}) == config
    assert load({}, split_overrides(["train", *words(values)])[1]) == config
    assert load(config.model_dump(exclude_unset=True)) == config
    for under in ({"x": 1.0}, "x", ["x"]):
        assert load({"data.tokens": under}, values) == config


def test_every_default_survives_the_command_line() -> None:
    for key, field in keys().items():
        default = field.get_default(call_default_factory=True)
        if default is None or isinstance(default, (list, dict)):
            continue
        text = str(default).lower() if isinstance(default, bool) else str(default)
        assert load({}, {key: parse_value(key, text)}) == RunConfig(), key


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("steps", 0, "greater than or equal to 1"),
        ("steps", 1.5, "valid integer"),
        ("steps", "many", "valid integer"),
        ("seed", -1, "greater than or equal to 0"),
        ("devices", 0, "greater than or equal to 1"),
        ("mesh", 3, "valid dictionary"),
        ("mesh.data", 0, "an axis has at least 1 device, or -1 for the rest"),
        ("mesh.pipe", -2, "greater than or equal to -1"),
        ("zero", 9, "input should be 0"),
        ("zero", True, "input should be a number, not true or false"),
        ("precision", "fp32", "'bfloat16', 'float32' or 'float64'"),
        ("recompute", "ful", "input should be 'full'"),
        ("pipeline.microbatches", 0, "greater than or equal to 1"),
        ("pipeline.layers_per_stage", "even", "valid list: Layers of each stage (of each chunk: P·v), as [3, 1, 1]; a"),
        ("model.tied", "maybe", "valid boolean"),
        ("model.dropout", 1.0, "less than 1"),
        ("model.rope_scaling.factor", 0, "greater than 0"),
        ("optimizer.name", "adam", "'adamw', 'lion', 'adafactor', 'muon' or 'sgd'"),
        ("optimizer.schedule", "cosin", "'cosine', 'linear', 'constant' or 'wsd'"),
        ("optimizer.learning_rate", 0, "greater than 0"),
        ("optimizer.learning_rate", float("nan"), "finite"),
        ("optimizer.weight_decay", float("inf"), "finite"),
        ("optimizer.clip_norm", -1.0, "greater than or equal to 0"),
        ("optimizer.betas", [0.9], "at least 2 items"),
        ("data.text", "here", "valid list"),
        ("data.held_out", 1.0, "less than 1"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_its_rule(tmp_path: Path, key: str, value: object, rule: str) -> None:
    with pytest.raises(MeshkitError) as error:
        load({}, {key: value})
    assert re.fullmatch(rf"an override: (\w+: )?{re.escape(key)} = {re.escape(repr(value))}: .+", str(error.value))
    assert rule in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("stps", "'steps'"),
        ("sequence", "'data.sequence'"),
        ("microbatches", "'pipeline.microbatches'"),
        ("mesh.dta", "'mesh.data'"),
        ("mehs.data", "'mesh'"),
        ("data.learning_rate", "'optimizer.learning_rate'"),
        ("model.rope_scaling.factr", "'model.rope_scaling.factor'"),
        ("factor", "'model.rope_scaling.factor'"),
        ("pipeline.schedul", "'pipeline.schedule'"),
        ("zzzzzz", "known: "),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(tmp_path: Path, key: str, nearest: str) -> None:
    with pytest.raises(MeshkitError) as error:
        load(written(tmp_path, ""), {key: 1})
    assert re.match(rf"an override: unknown key '{re.escape(key.split('.')[0])}", str(error.value))
    assert nearest in str(error.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"mesh": {"data": -1, "pipe": -1}}, "only one axis can be -1 (the rest of the devices), not data and pipe"),
        ({"mesh.tensor": -1}, "only one axis can be -1 (the rest of the devices), not data and tensor"),
        ({"model.rope_scaling": {"low": 4.0}}, "model.rope_scaling: low = 4.0 must be less than high = 4.0"),
    ],
)
def test_values_that_do_not_go_together(values: dict[str, Any], said: str) -> None:
    with pytest.raises(MeshkitError, match=re.escape(said)):
        load(values)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(MeshkitError) as error:
        load({"steps": 0, "mesh.dta": 1, "zero": 9})
    assert len(str(error.value).splitlines()) == 3


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    written(tmp_path, "")
    with pytest.raises(MeshkitError, match=r"rum\.toml: no such config file; did you mean 'run'\?"):
        load(tmp_path / "rum.toml")
    with pytest.raises(MeshkitError, match=r"absent/run\.toml: no such config file"):
        load(tmp_path / "absent" / "run.toml")
    with pytest.raises(MeshkitError, match=r"run\.toml: not valid TOML: .*line 1"):
        load(written(tmp_path, "steps = = 3"))
    with pytest.raises(MeshkitError, match="cannot be read as a config"):
        load(tmp_path)
    (tmp_path / "latin.toml").write_bytes('run_dir = "é"'.encode("latin-1"))
    with pytest.raises(MeshkitError, match=r"latin\.toml: cannot be read as a config"):
        load(tmp_path / "latin.toml")


# --- batches ------------------------------------------------------------------------------------

counts = st.integers(1, 64)


@settings(deadline=None)
@given(counts, counts, counts)
def test_the_global_batch_is_data_times_microbatches_times_size(size: int, data: int, m: int) -> None:
    config = load({"data.batch": size * data * m, "pipeline.microbatches": m})
    assert config.microbatch_size(data) == size


@settings(deadline=None)
@given(st.integers(1, 256), st.integers(1, 16), st.integers(1, 16))
def test_every_fix_of_an_uneven_batch_is_one(batch: int, data: int, m: int) -> None:
    assume(batch % (data * m))
    config = load({"data.batch": batch, "pipeline.microbatches": m})
    with pytest.raises(MeshkitError) as error:
        config.microbatch_size(data)
    said = str(error.value)
    for number in (f"data.batch = {batch}", f"mesh.data = {data}", f"pipeline.microbatches = {m}"):
        assert number in said
    batches, _, microbatches = said.partition("set data.batch to ")[2].partition(", or pipeline.microbatches to ")
    for fit in batches.split(" or "):
        assert load(config, {"data.batch": int(fit)}).microbatch_size(data) >= 1
    for fit in microbatches.split(", ") if microbatches else ():
        assert load(config, {"pipeline.microbatches": int(fit)}).microbatch_size(data) >= 1
    assert bool(microbatches) == (batch % data == 0)


# --- the keys themselves ------------------------------------------------------------------------


def test_there_are_few_keys() -> None:
    assert len(keys()) < 60


@pytest.mark.parametrize("key", keys() | keys(RopeScaling, "model.rope_scaling."))
def test_every_key_says_what_it_means_in_a_line(key: str) -> None:
    description = (keys() | keys(RopeScaling, "model.rope_scaling."))[key].description or ""
    assert re.fullmatch(r"[A-Za-z].*[^.]\.", description)
    assert len(description) <= 110


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"devices": 8, "steps": 3, "precision": "float32", "zero": 0},
        {"mesh": {"data": 1, "tensor": 2, "pipe": -1}, "pipeline": {"schedule": "gpipe", "microbatches": 16}},
        {"model": {"preset": "llama3-1b", "layers": 4, "tied": False, "dropout": 0.0, "rope_scaling": {"factor": 3.5}}},
        {"model": {"family": "my.models:Mine", "options": {"experts": 8, "deep": {"list": [1, 2], "on": True}}}},
        {"optimizer": {"learning_rate": 3e-4, "epsilon": 1e-12, "clip_norm": 0.0, "decay_steps": 10}},
        {"data": {"text": ["a/*.txt", "{stdlib}"], "dataset": 'with "quotes" and \\', "held_out": 0.1}},
    ],
)
def test_a_config_written_as_toml_reads_as_itself(tmp_path: Path, values: dict[str, Any]) -> None:
    config = load(values)
    assert load(written(tmp_path, tomli_w.dumps(config.model_dump(exclude_none=True)))) == config


@pytest.mark.parametrize("key", keys())
def test_nothing_can_be_changed_afterwards(key: str) -> None:
    section: Any = RunConfig()
    *path, name = key.split(".")
    for part in path:
        section = getattr(section, part)
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        setattr(section, name, getattr(section, name))
