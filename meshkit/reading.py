"""What a config is read from: files and mappings as nested tables, and pydantic's errors as sentences."""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from meshkit.errors import MeshkitError, nearest


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; MeshkitError when it is missing or malformed."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        beside = [p.stem for p in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        hint = f"; {nearest(path.stem, beside)} (in {path.parent})" if beside else ""
        raise MeshkitError(f"{path}: no such config file{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise MeshkitError(f"{path}: cannot be read as a config: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise MeshkitError(f"{path}: not valid TOML: {error}") from None


WHOLE = {"data.tokens"}
"""Keys whose table is one value: what stands in it are no keys of the config, and another table takes its place."""


def nested(values: Mapping[Any, Any], at: str = "") -> dict[str, Any]:
    """Tables in tables, from nested or dotted keys; MeshkitError for a key that is not a string.

    at: the key of the table that `values` are, with a point behind it.
    """
    result: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise MeshkitError(f"the config: key {key!r}: keys are names, such as 'steps' or 'mesh.data'")
        head, _, rest = key.partition(".")
        if isinstance(value, pydantic.BaseModel):
            value = value.model_dump(exclude_unset=True)
        if rest:
            value = nested({rest: value}, f"{at}{head}.")
        elif isinstance(value, Mapping) and at + head not in WHOLE:
            value = nested(value, f"{at}{head}.")
        result = merge(result, {head: value}, at)
    return result


def merge(base: Mapping[str, Any], over: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """`base` with the values of `over` on top, table by table; `at` as for `nested`."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and f"{at}{key}" not in WHOLE:
            value = merge(old, value, f"{at}{key}.")
        result[key] = value
    return result


def holds(values: Any, path: Sequence[int | str]) -> bool:
    """Whether nested tables have a value at `path`, or one that stands for all below it."""
    for part in path:
        if not isinstance(values, Mapping):
            return True
        if part not in values:
            return False
        values = values[part]
    return bool(path)


def number(value: Any) -> Any:
    """`value`; an error for true and false, which Python takes for 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("number", "Input should be a number, not true or false")
    return value


def explain(item: Any, source: str, known: Mapping[str, FieldInfo]) -> str:
    """A sentence from one of pydantic's errors. source: what was read; known: every key and table, dotted."""
    key = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"{source}: unknown key {key!r}; {_known_keys_like(key, known)}"
    rule = item["msg"].removeprefix("Value error, ")
    if item["type"] == "value_error":
        return f"{source}: {key}: {rule}" if key else f"{source}: {rule}"
    if item["type"] == "list_type":
        rule += f": {known[key].description}"
    return f"{source}: {key} = {item['input']!r}: {rule[0].lower()}{rule[1:]}"


def _known_keys_like(key: str, known: Collection[str]) -> str:
    """The same leaf in another table (`sequence` -> `data.sequence`), else the nearest key or table."""
    leaf = key.rpartition(".")[2]
    elsewhere = [other for other in known if other.rpartition(".")[2] == leaf]
    return f"did you mean {' or '.join(map(repr, elsewhere))}?" if elsewhere else nearest(key, known)
