"""The page as one file: with the settings around the first one and the presets computed beforehand."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshkit.errors import MeshkitError
from meshkit.view import sweeps
from meshkit.view.choices import choices
from meshkit.view.page_file import Boot, page
from meshkit.view.payload import PARTS, plain, to_json
from meshkit.view.performance import diagnosis
from meshkit.view.setting import Setting, parse, resolve
from meshkit.view.world import World

CONTROLS = ("data", "tensor", "pipe", "schedule", "virtual", "layers", "overlap", "microbatches", "recompute", "zero")
FROM_FIRST = ("model", "cluster", "precision", "batch", "sequence")
"""Controls that the file can turn, one at a time: from the first setting and from each preset; from the first alone."""


def check(path: Path) -> None:
    """Raises MeshkitError when no file can be at `path`: before half a minute is spent on what is to be in it."""
    why = "it is a folder" if path.is_dir() else "" if path.parent.is_dir() else f"there is no folder {path.parent}"
    if why:
        raise MeshkitError(f"--export {path}: cannot be written: {why}")


def write(world: World, boot: Boot, path: Path) -> int:
    """Write the page to `path`; its size in bytes. Raises MeshkitError when it cannot be written."""
    text = page(boot, pack(world, boot))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MeshkitError(f"--export {path}: cannot be written: {error.strerror}") from None
    return len(text.encode())


def pack(world: World, boot: Boot) -> str:
    """A JSON object. settings: query -> part -> index into parts; equal parts of different settings are kept once.

    Parts of a kind stand together: they are alike, and gzip looks back 32 KiB only. The best layouts, a search of
    seconds, are there for the jobs of the first setting and the presets, on as many devices.
    """
    hubs = list(dict.fromkeys(parse(query) for query in [boot.query, *(preset.query for preset in boot.presets)]))
    searched = {_job(hub) for hub in hubs}
    lessons = [parse(query) for query in boot.lessons.values()]
    cases = [resolve(world, setting) for setting in dict.fromkeys([*around(world, hubs), *lessons])]
    parts: dict[str, int] = {}
    settings: dict[str, dict[str, int]] = {case.setting.query: {} for case in cases}
    for name, part in PARTS.items():
        for case in cases:
            if name != BEST or _job(case.setting) in searched:
                text = to_json(in_steps(plain(part(case))))
                settings[case.setting.query][name] = parts.setdefault(text, len(parts))
    return f'{{"settings":{json.dumps(settings)},"parts":[{",".join(parts)}]}}'


def _job(setting: Setting) -> tuple[Any, ...]:
    """What a search of the best layouts is for."""
    devices = setting.cluster, setting.mesh.devices
    return (*devices, setting.model, setting.batch, setting.sequence, setting.precision)


LONG, PER_ONE = 16, 10_000
"""A list of more numbers is written in steps, if they are all whole in units of which 1 has so many."""


def in_steps(value: Any) -> Any:
    """JSON with its long lists of numbers as {"steps": differences in such units}: those of a schedule are alike."""
    if isinstance(value, dict):
        return {key: in_steps(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > LONG and all(isinstance(item, int | float) for item in value):
        units = [round(item * PER_ONE) for item in value]
        if [unit / PER_ONE for unit in units] == value:
            return {"steps": [b - a for a, b in itertools.pairwise([0, *units])]}
    return [in_steps(item) for item in value]


BEST, TOP = "best", 3
"""The part of the best layouts; how many of them can be loaded."""


def around(world: World, hubs: list[Setting]) -> Iterator[Setting]:
    """The hubs, each with one control changed, and what the planner would change."""
    near = [
        hub.but(choice.change)
        for hub in hubs
        for control, offered in choices(world, hub).items()
        if control in CONTROLS or (control in FROM_FIRST and hub == hubs[0])
        for choice in offered
        if not choice.reason
    ]
    said = [diagnosis(resolve(world, hub)) for hub in hubs]
    helps = [hub.but(c.change) for hub, d in zip(hubs, said, strict=True) for c in (d.change, d.blocked) if c]
    best = [hub.but(sweeps.changes_of(row)) for hub in hubs for row in sweeps.best(resolve(world, hub)).rows[:TOP]]
    yield from dict.fromkeys([*hubs, *near, *helps, *best])
