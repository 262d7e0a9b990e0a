"""config.json, as Hugging Face's `transformers` writes it, to sizes and back. No JAX.

A field that asks for what meshkit has not is an error that names it.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshkit.config import RopeScaling
from meshkit.errors import MeshkitError, nearest
from meshkit.models.presets import Sizes, sizes_of
from meshkit.models.published import LINEAR, LLAMA3, PUBLISHED, TOKENS, Published

Config = dict[str, Any]
"""The content of a config.json."""

CONFIG = "config.json"
RECORD = "record/metadata"
"""What a checkpoint says of itself: JSON, in a file that Orbax names."""

LOCAL, GLOBAL = "sliding_attention", "full_attention"


# --- reading ------------------------------------------------------------------------------------


def sizes_in(folder: str | Path) -> Sizes:
    """The sizes of the model whose weights are in `folder`, published or a checkpoint.

    Raises MeshkitError as `read` and `read_json` do.
    """
    if is_checkpoint(folder):
        return sizes_of(read_json(Path(folder) / RECORD)["model"])
    path = Path(folder) / CONFIG
    return read(read_json(path), str(path))


def is_checkpoint(folder: str | Path) -> bool:
    """Whether it is a checkpoint of meshkit."""
    return (Path(folder) / RECORD).is_file()


def read_json(path: Path) -> Config:
    """The object in a JSON file; MeshkitError when there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MeshkitError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise MeshkitError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise MeshkitError(f"{path}: must hold a JSON object")
    return content


def read(config: Config, where: str) -> Sizes:
    """The sizes in a config.json; `where`: its path, for errors.

    Raises MeshkitError that names the field which is missing, unknown, or asks for what meshkit has not.
    """
    family = _family(config, where)
    published = PUBLISHED[family]
    fields = dict(published.absent) | {k: v for k, v in _flat(config, where).items() if not k.endswith(TOKENS)}
    for name, value in published.fixed.items():
        if fields.get(name, value) not in (value, None):
            raise MeshkitError(f"{where}: {name} = {fields[name]!r}: meshkit's {family} has {value!r} alone")
    for name, value in fields.items():
        if name not in published.known and value not in (None, False, [], {}):
            raise MeshkitError(f"{where}: {name} = {value!r}: meshkit does not know what this asks of a {family}")
    missing = {*published.sizes.values(), *published.options.values()} - fields.keys()
    if missing:
        raise MeshkitError(f"{where}: {', '.join(sorted(missing))} is missing")
    values = {ours: fields[theirs] for ours, theirs in published.sizes.items()}
    options = {ours: fields[theirs] for ours, theirs in published.options.items()}
    if "weigh" in options:
        options["weigh"] = "chosen" if options["weigh"] else "all"
    values["kv_heads"] = values.get("kv_heads") or values["heads"]
    values["head_dim"] = values.get("head_dim") or values["width"] // values["heads"]
    values["mlp_width"] = values["mlp_width"] or 4 * values["width"]
    scaling = _scaling(fields.get("rope_scaling"), where)
    for name, size in values.items():
        if name in ("layers", "width", "heads", "kv_heads", "head_dim", "mlp_width", "vocab", "context") and not (
            type(size) is int and size > 0
        ):
            raise MeshkitError(f"{where}: {published.sizes.get(name, name)} = {size!r}: must be a positive number")
    found = Sizes(family=family, **values, rope_scaling=scaling, options=options)
    if family != "gpt2":
        _ = found.style  # checks the options
    return found


def _family(config: Config, where: str) -> str:
    kinds = {published.kind: family for family, published in PUBLISHED.items()}
    kind = config.get("model_type")
    if kind not in kinds:
        raise MeshkitError(f"{where}: model_type = {kind!r}: not a family of meshkit; {nearest(str(kind), kinds)}")
    return kinds[kind]


def _flat(config: Config, where: str) -> Config:
    """The config as older files have it: rotary settings and the pattern of local layers as plain fields."""
    flat = {name: value for name, value in config.items() if name not in ("rope_parameters", "layer_types")}
    if "num_experts" in flat:  # of a Qwen3; newer files have Mixtral's name
        flat["num_local_experts"] = flat.pop("num_experts")
    rope: Config = config.get("rope_parameters") or {}
    if LOCAL in rope:
        flat["rope_local_base_freq"] = rope[LOCAL]["rope_theta"]
    rope = {**rope.get(GLOBAL, rope)}
    if "rope_theta" in rope:
        flat["rope_theta"] = rope.pop("rope_theta")
    if rope:
        flat["rope_scaling"] = rope
    pattern = config.get("_sliding_window_pattern")
    if pattern is not None:
        flat["sliding_window_pattern"] = pattern
    types = config.get("layer_types")
    if types and set(types) != {GLOBAL}:
        flat["sliding_window_pattern"] = _pattern(types, pattern, where)
    return flat


def _pattern(types: Sequence[str], stated: int | None, where: str) -> int:
    """Every how many-th layer sees all."""
    tried = ([stated] if stated else []) + [*range(2, len(types) + 2)]
    for every in tried:
        if list(types) == layer_types(len(types), every):
            return every
    raise MeshkitError(f"{where}: layer_types = {list(types)!r}: meshkit has every n-th layer global, the others local")


def layer_types(layers: int, every: int) -> list[str]:
    """Of each layer, as `transformers` calls them."""
    return [LOCAL if (layer + 1) % every else GLOBAL for layer in range(layers)]


def _scaling(theirs: Config | None, where: str) -> RopeScaling | None:
    kind = (theirs or {}).get("rope_type", (theirs or {}).get("type", "default"))
    if theirs is None or kind == "default":
        return None
    try:
        if kind == "llama3":
            return RopeScaling(**{ours: _as_float(ours, theirs[name]) for ours, name in LLAMA3.items()})
        if kind == "linear":
            return RopeScaling.model_validate({"factor": float(theirs["factor"])} | LINEAR)
    except (KeyError, TypeError, ValueError) as error:
        raise MeshkitError(f"{where}: rope_scaling = {theirs!r}: {error}") from None
    raise MeshkitError(f"{where}: rope_type = {kind!r}: meshkit has 'default', 'linear' and 'llama3'")


def _as_float(ours: str, value: Any) -> Any:
    return value if ours == "original" else float(value)


# --- writing ------------------------------------------------------------------------------------


def write(sizes: Sizes, dtype: str) -> Config:
    """The config.json of a model of these sizes, as both older and newer versions of `transformers` read it.

    Raises MeshkitError for a model that is not of a published family, or has options that config.json cannot say.
    """
    if sizes.family not in PUBLISHED:
        raise MeshkitError(f"model.family = {sizes.family!r}: only these can be exported: {', '.join(PUBLISHED)}")
    published = PUBLISHED[sizes.family]
    config: Config = {"architectures": [published.architecture], "model_type": published.kind, "dtype": dtype}
    config |= {theirs: getattr(sizes, ours) for ours, theirs in published.sizes.items()}
    config |= dict(published.fixed)
    if sizes.family == "gpt2":
        return config | {"embd_pdrop": sizes.dropout, "attn_pdrop": 0.0}
    config |= _options(sizes, published)
    scaling = _written(sizes.rope_scaling)
    rope = {"rope_theta": sizes.rope_theta, **(scaling or {"rope_type": "default"})}
    style = sizes.style
    if style.local_theta is not None:
        rope = {GLOBAL: rope, LOCAL: {"rope_theta": style.local_theta, "rope_type": "default"}}
    if style.global_every:
        config["layer_types"] = layer_types(sizes.layers, style.global_every)
    if "num_local_experts" in config:
        config["num_experts"] = config["num_local_experts"]
    return config | {"rope_scaling": scaling, "rope_parameters": rope}


def _options(sizes: Sizes, published: Published) -> Config:
    style, family = sizes.style, Sizes(**vars(sizes) | {"options": {}}).style
    for field in dataclasses.fields(style):
        value = getattr(style, field.name)
        if field.name not in published.options and value != getattr(family, field.name):
            raise MeshkitError(
                f"model.options.{field.name} = {value!r}: the config.json of a {sizes.family} cannot say so"
            )
    options = {theirs: getattr(style, ours) for ours, theirs in published.options.items()}
    if "norm_topk_prob" in options:
        options["norm_topk_prob"] = style.weigh == "chosen"
    if "query_pre_attn_scalar" in options and style.query_scale is None:
        options["query_pre_attn_scalar"] = sizes.head_dim
    return options


def _written(scaling: RopeScaling | None) -> Config | None:
    if scaling is None:
        return None
    if all(getattr(scaling, name) == value for name, value in LINEAR.items()):
        return {"rope_type": "linear", "factor": scaling.factor}
    return {"rope_type": "llama3", **{theirs: getattr(scaling, ours) for ours, theirs in LLAMA3.items()}}
