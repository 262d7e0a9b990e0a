"""The rotary settings of a config.json, to `RopeScaling` and back. No JAX.

Newer files hold them in `rope_parameters`, for each kind of layers where these differ; older ones in plain fields.
"""

from typing import Any

from meshkit.config import RopeScaling
from meshkit.errors import MeshkitError
from meshkit.models.published import Config, Published, check

LOCAL, GLOBAL = "sliding_attention", "full_attention"
"""Layers with a window and those that see all, as `transformers` calls them."""

LLAMA3 = {
    "factor": "factor",
    "low": "low_freq_factor",
    "high": "high_freq_factor",
    "original": "original_max_position_embeddings",
}
"""Our field of `RopeScaling` -> theirs, for rope_type "llama3"."""

LINEAR = {"low": 1.0, "high": 2.0, "original": 1}
"""What makes a `RopeScaling` that of rope_type "linear": every wavelength is longer than original / low."""


# --- reading ------------------------------------------------------------------------------------


def plain(rope: Any, published: Published, where: str) -> Config:
    """What `rope_parameters` says, as the plain fields of older files.

    Raises MeshkitError for settings of no layers, or of local layers other than their base.
    """
    if rope is None:
        return {}
    found: Config = {}
    whole = _object("rope_parameters", rope, where)
    if "local_theta" in published.options and whole and not {LOCAL, GLOBAL} & whole.keys():
        raise MeshkitError(f"{where}: rope_parameters = {rope!r}: must say which layers: {LOCAL}, {GLOBAL}")
    if LOCAL in whole:
        local = _object(f"rope_parameters.{LOCAL}", whole[LOCAL], where)
        if "rope_theta" in local:
            found["rope_local_base_freq"] = local["rope_theta"]
        for name, value in local.items():
            if name != "rope_theta" and value not in (None, "default"):
                raise MeshkitError(
                    f"{where}: rope_parameters.{LOCAL}.{name} = {value!r}: meshkit has no scaling of local layers, "
                    "rope_type 'default' alone"
                )
    rope = _object(f"rope_parameters.{GLOBAL}", whole[GLOBAL], where) if GLOBAL in whole else whole
    rope = {name: value for name, value in rope.items() if name != LOCAL}
    if "rope_theta" in rope:
        found["rope_theta"] = rope.pop("rope_theta")
    return found | ({"rope_scaling": rope} if rope else {})


def agree(name: str, older: Any, newer: Any, where: str) -> None:
    """MeshkitError when a plain field and `rope_parameters` say different things."""
    scaling = name == "rope_scaling" and older is not None
    same = read(older, where) == read(newer, where) if scaling else older in (None, newer)
    if not same:
        raise MeshkitError(f"{where}: {name} = {older!r}: rope_parameters says {newer!r}: keep the one that is meant")


def read(theirs: Any, where: str) -> RopeScaling | None:
    """The scaling that `rope_scaling` asks for; MeshkitError naming the field that is wrong or unknown."""
    if theirs is None:
        return None
    stated = {name: value for name, value in _object("rope_scaling", theirs, where).items() if value is not None}
    kind = stated.pop("rope_type", stated.get("type", "default"))
    stated.pop("type", None)
    if kind not in ("default", "linear", "llama3"):
        raise MeshkitError(f"{where}: rope_type = {kind!r}: meshkit has 'default', 'linear' and 'llama3'")
    names = {"default": [], "linear": ["factor"], "llama3": [*LLAMA3.values()]}[kind]
    for name in names:
        if name not in stated:
            raise MeshkitError(f"{where}: rope_scaling.{name} is missing, which rope_type {kind!r} has")
        check(name, stated[name], where, "rope_scaling.")
    for name in stated:
        if name not in names:
            raise MeshkitError(
                f"{where}: rope_scaling.{name} = {stated[name]!r}: meshkit does not know what this asks of rope_type "
                f"{kind!r}"
            )
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling.model_validate({"factor": float(stated["factor"])} | LINEAR)
    values = {ours: stated[name] for ours, name in LLAMA3.items()}
    if values["low"] >= values["high"]:
        raise MeshkitError(
            f"{where}: rope_scaling.low_freq_factor = {values['low']}: must be less than high_freq_factor = "
            f"{values['high']}"
        )
    return RopeScaling.model_validate(values)


def _object(name: str, value: Any, where: str) -> Config:
    if not isinstance(value, dict):
        raise MeshkitError(f'{where}: {name} = {value!r}: must be an object, such as {{"rope_theta": 10000.0}}')
    return value


# --- writing ------------------------------------------------------------------------------------


def write(scaling: RopeScaling | None) -> Config | None:
    """The same as `rope_scaling` says it."""
    if scaling is None:
        return None
    if all(getattr(scaling, name) == value for name, value in LINEAR.items()):
        return {"rope_type": "linear", "factor": scaling.factor}
    return {"rope_type": "llama3", **{theirs: getattr(scaling, ours) for ours, theirs in LLAMA3.items()}}
