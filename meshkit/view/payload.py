"""The page's JSON API: parts by name, each a dataclass whose fields are documented where it is defined.

GET /api/<part>?<setting>      a part for a setting (see setting.Setting; what is left out is the default)
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from meshkit.view import devices, perceptron, performance, schedules, storyboard, sweeps, weights
from meshkit.view.setting import Case, parse, resolve
from meshkit.view.world import World

PARTS: dict[str, Callable[[Case], Any]] = {
    "overview": performance.overview,
    "mesh": devices.mesh,
    "weights": weights.weights,
    "schedule": schedules.table,
    "story": storyboard.story,
    "sweeps": sweeps.sweeps,
    "best": sweeps.best,
    "perceptron": lambda case: perceptron.perceptron(),
}
"""What the page asks for, by name: a function of a legal setting."""

DIGITS = 6
"""Significant digits of a number on the page."""


def part(world: World, name: str, query: str) -> str:
    """A part as JSON. Raises MeshkitError for a setting that is not legal, KeyError for an unknown part."""
    return to_json(PARTS[name](resolve(world, parse(query))))


def to_json(value: Any) -> str:
    """Dataclasses as objects, floats to DIGITS."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def plain(value: Any) -> Any:
    """Dataclasses, mappings, sequences and numbers as what JSON has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        short = float(f"{value:.{DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 2**53 else short
    return value
