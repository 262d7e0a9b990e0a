"""Config keys on the command line: `--dotted.key VALUE`, and the help that lists them."""

import json
import textwrap
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from meshkit.config import RunConfig, keys
from meshkit.errors import MeshkitError, nearest
from meshkit.reading import WHOLE

OWN_OPTIONS = {
    *("-h", "--help", "--json", "--full", "--profile"),
    *("--cluster", "--nodes-of", "--backend", "--hlo", "--timeout", "--tokenizer"),
    *("--coordinator", "--process"),
    *("--processes", "--devices-per-process", "--grace", "--restarts", "--elastic"),
    *("--nodes", "--gpus-per-node", "--per", "--time", "--sbatch", "--submit", "--name", "--out"),
    *("--export", "--port", "--no-browser"),
    *("--image", "--claim", "--devices-per-node", "--least", "--hosts", "--settle"),
}
"""Options of `train`, `verify`, `compile`, `eval`, `launch` and `view` that are not config keys."""


def split_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """What argparse shall read, and the config's overrides, from the arguments of a command that takes both.

    Every `--name VALUE` or `--name=VALUE` that is not the command's own option is an override;
    `config.load` judges it, so that a wrong name gets the same answer here as in a file.
    Raises MeshkitError when a value is missing or a key is given twice.
    """
    rest: list[str] = []
    overrides: dict[str, Any] = {}
    words = iter(argv)
    for word in words:
        if not word.startswith("--") or word.partition("=")[0] in OWN_OPTIONS:
            rest.append(word)
            continue
        key, equals, text = word.removeprefix("--").partition("=")
        if not equals:
            following = next(words, None)
            if following is None or following.startswith("--"):
                hint = "" if key in keys() else f"; {nearest(key, [*keys(), *OWN_OPTIONS])}"
                raise MeshkitError(f"--{key} needs a value: --{key} VALUE{hint}")
            text = following
        if key in overrides:
            raise MeshkitError(f"--{key} is given twice: give it once")
        overrides[key] = parse_value(key, text)
    return rest, overrides


def parse_value(key: str, text: str) -> Any:
    """`text` as the TOML value it spells, else as a string; a lone string for a list key is its one element."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        table = {"value": text}
    value = table["value"] if len(table) == 1 else text
    field = keys().get(key)
    if field is None:
        return value
    kinds = _kinds(field.annotation)
    if type(value) in kinds:
        return value
    if str in kinds:
        return text  # a folder may be called 2026
    return [text] if list[str] in kinds else value


def words(overrides: Mapping[str, Any]) -> list[str]:
    """The command line that `split_overrides` reads as `overrides`, dotted keys and their values."""
    return [f"--{key}={_word(value)}" for key, value in dotted(overrides).items()]


def _word(value: Any) -> str:
    if isinstance(value, Mapping):  # an inline table; its keys and strings are written as in JSON
        return f"{{{', '.join(f'{json.dumps(k, ensure_ascii=False)} = {_word(v)}' for k, v in value.items())}}}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def dotted(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The same without tables in tables."""
    found: dict[str, Any] = {}
    for key, value in overrides.items():
        table = isinstance(value, Mapping) and key not in WHOLE
        inner = {f"{key}.{name}": inside for name, inside in value.items()} if table else None
        found |= {key: value} if inner is None else dotted(inner)
    return found


def _kinds(annotation: Any) -> set[Any]:
    """The plain types that a value of `annotation` may have, and those of lists and tables in full."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _kinds(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return {type(choice) for choice in typing.get_args(annotation)}
    if origin in (typing.Union, types.UnionType):
        return set().union(*map(_kinds, typing.get_args(annotation)))
    return {origin or annotation, annotation}


# --- help ---------------------------------------------------------------------------------------


def key_help() -> str:
    """Every config key with its type, default and meaning, table by table."""
    tables: dict[str, list[str]] = {}
    for key, field in keys().items():
        table, _, _ = key.rpartition(".")
        default = "" if field.default is None else f" (default: {_spell(field.default)})"
        meaning = textwrap.fill(f"{field.description}{default}", 96, initial_indent=" " * 6, subsequent_indent=" " * 6)
        tables.setdefault(table, []).append(f"  --{key} {_spell_type(field.annotation)}\n{meaning}")
    parts = ["config keys, the same in the TOML file and here; values are written as in TOML:"]
    for table, lines in tables.items():
        title = f"{table}: {RunConfig.model_fields[table].description}" if table else "the run:"
        parts += ["", title, *lines]
    return "\n".join(parts)


def _spell_type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _spell_type(arguments[0])
    if origin is typing.Literal:
        return "|".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return "|".join(_spell_type(kind) for kind in arguments if kind is not type(None))
    if origin is list:
        return f"[{_spell_type(arguments[0])}, …]"
    if origin is dict and arguments[1] is float:
        return "{TEXT = FLOAT, …}"
    return {int: "INT", float: "FLOAT", str: "TEXT", bool: "true|false"}.get(annotation, "{…}")


def _spell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
