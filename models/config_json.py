"""config.json, as Hugging Face's `transformers` writes it, to sizes and back. No JAX.

A field that asks for what meshkit has not is an error that names it.
"""

import dataclasses
import json
from pathlib import Path

from meshkit.errors import MeshkitError, nearest
from meshkit.models import rope_json
from meshkit.models.presets import Sizes, sizes_of
from meshkit.models.published import PUBLISHED, TOKENS, Config, Published, check
from meshkit.models.rope_json import GLOBAL, LOCAL

CONFIG = "config.json"
RECORD = "record/metadata"
"""What a checkpoint says of itself: JSON, in a file that Orbax names."""


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

    Raises MeshkitError that names the field which is missing, unknown, of another type or range, or asks for what
    meshkit has not.
    """
    family = _family(config, where)
    published = PUBLISHED[family]
    fields = dict(published.absent) | {
        k: v for k, v in _flat(config, published, where).items() if not k.endswith(TOKENS)
    }
    for name, value in published.fixed.items():
        if fields.get(name, value) not in (value, None):
            raise MeshkitError(f"{where}: {name} = {fields[name]!r}: meshkit's {family} has {value!r} alone")
    for name, value in fields.items():
        if name not in published.known and value not in (None, False, [], {}):
            raise MeshkitError(f"{where}: {name} = {value!r}: meshkit does not know what this asks of a {family}")
    missing = {*published.sizes.values(), *published.options.values()} - fields.keys()
    if missing:
        raise MeshkitError(f"{where}: {', '.join(sorted(missing))} is missing")
    for name in [*published.sizes.values(), *published.options.values()]:
        check(name, fields[name], where)
    values = {ours: fields[theirs] for ours, theirs in published.sizes.items()}
    options = {ours: fields[theirs] for ours, theirs in published.options.items()}
    if "chosen" in options and options["chosen"] > options["experts"]:
        raise MeshkitError(
            f"{where}: num_experts_per_tok = {options['chosen']}: must be 1 to num_local_experts = {options['experts']}"
        )
    if "weigh" in options:
        options["weigh"] = "chosen" if options["weigh"] else "all"
    values["kv_heads"] = values.get("kv_heads") or values["heads"]
    if values.get("head_dim") is None:
        values["head_dim"], rest = divmod(values["width"], values["heads"])
        if rest:
            raise MeshkitError(
                f"{where}: {published.sizes['heads']} = {values['heads']}: must divide "
                f"{published.sizes['width']} = {values['width']}, or head_dim be given"
            )
    values["mlp_width"] = values["mlp_width"] or 4 * values["width"]
    scaling = rope_json.read(fields.get("rope_scaling"), where)
    return Sizes(family=family, **values, rope_scaling=scaling, options=options)


def _family(config: Config, where: str) -> str:
    kinds = {published.kind: family for family, published in PUBLISHED.items()}
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in kinds:
        raise MeshkitError(f"{where}: model_type = {kind!r}: not a family of meshkit; {nearest(str(kind), kinds)}")
    return kinds[kind]


def _flat(config: Config, published: Published, where: str) -> Config:
    """The config as older files have it: rotary settings and the pattern of local layers as plain fields."""
    beside = ("rope_parameters", "layer_types", "_sliding_window_pattern")
    flat = {name: value for name, value in config.items() if name not in beside}
    if "num_experts" in flat:  # of a Qwen3; newer files have Mixtral's name
        experts = flat.pop("num_experts")
        if flat.setdefault("num_local_experts", experts) != experts:
            raise MeshkitError(
                f"{where}: num_experts = {experts} and num_local_experts = {flat['num_local_experts']}: two names of "
                "one number: make them equal, or leave one out"
            )
    for name, value in rope_json.plain(config.get("rope_parameters"), published, where).items():
        rope_json.agree(name, flat.get(name), value, where)
        flat[name] = value
    patterned = config.get("layer_types") is not None
    for name in published.unheeded & flat.keys():
        stated, meant = flat.pop(name), published.absent[name]
        if stated not in (meant, None) and not patterned:
            raise MeshkitError(
                f"{where}: {name} = {stated!r}: `transformers` takes a {published.kind} for {meant} whatever this "
                "says: write layer_types, which it heeds, or leave the field out"
            )
    return flat | (_pattern(config, published, where) if patterned else {})


def _pattern(config: Config, published: Published, where: str) -> Config:
    """Every how many-th layer sees all, where a family has both kinds; nothing where its layers are alike."""
    types, layers = config["layer_types"], config.get("num_hidden_layers")
    named = f"{where}: layer_types = {types!r}"
    if not isinstance(types, list) or len(types) != layers or not all(kind in (LOCAL, GLOBAL) for kind in types):
        raise MeshkitError(f"{named}: must say {LOCAL!r} or {GLOBAL!r} for each of num_hidden_layers = {layers!r}")
    if "global_every" not in published.options:
        window = config.get("sliding_window", published.absent.get("sliding_window"))
        alike = LOCAL if "window" in published.options and window is not None else GLOBAL
        if set(types) != {alike}:
            raise MeshkitError(f"{named}: all layers of meshkit's {published.kind} are {alike!r} here")
        return {}
    stated = config.get("_sliding_window_pattern")
    tried = ([stated] if type(stated) is int and stated > 0 else []) + [*range(1, len(types) + 2)]
    for every in tried:
        if types == layer_types(len(types), every):
            return {"sliding_window_pattern": every}
    raise MeshkitError(f"{named}: meshkit has every n-th layer global, the others local")


def layer_types(layers: int, every: int) -> list[str]:
    """Of each layer, as `transformers` calls them."""
    return [LOCAL if (layer + 1) % every else GLOBAL for layer in range(layers)]


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
    scaling = rope_json.write(sizes.rope_scaling)
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
