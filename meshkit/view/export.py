"""The page as one file: with the settings around the first one and the presets computed beforehand."""

import json
from collections.abc import Iterator
from pathlib import Path

from meshkit.errors import MeshkitError
from meshkit.view import sweeps
from meshkit.view.choices import choices
from meshkit.view.page_file import Boot, page
from meshkit.view.payload import PARTS, to_json
from meshkit.view.performance import diagnosis
from meshkit.view.setting import Setting, parse, resolve
from meshkit.view.world import World

CONTROLS = ("data", "tensor", "pipe", "schedule", "virtual", "microbatches", "recompute", "zero")
"""Controls that the file can turn, one at a time from the first setting and from each preset."""


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

    The best layouts, a search of seconds, are there for as many devices as the first setting or a preset has.
    """
    parts: dict[str, int] = {}
    settings: dict[str, dict[str, int]] = {}
    hubs = list(dict.fromkeys(parse(query) for query in [boot.query, *(preset.query for preset in boot.presets)]))
    searched = {(hub.mesh.devices, hub.batch) for hub in hubs}
    lessons = [parse(query) for query in boot.lessons.values()]
    for setting in dict.fromkeys([*around(world, hubs), *lessons]):
        case = resolve(world, setting)
        settings[setting.query] = {
            name: parts.setdefault(to_json(part(case)), len(parts))
            for name, part in PARTS.items()
            if name != BEST or (setting.mesh.devices, setting.batch) in searched
        }
    return f'{{"settings":{json.dumps(settings)},"parts":[{",".join(parts)}]}}'


BEST, TOP = "best", 3
"""The part of the best layouts; how many of them can be loaded."""


def around(world: World, hubs: list[Setting]) -> Iterator[Setting]:
    """The hubs, each with one control changed, and what the planner would change."""
    near = [
        hub.but(choice.change)
        for hub in hubs
        for control, offered in choices(world, hub).items()
        if control in CONTROLS
        for choice in offered
        if not choice.reason
    ]
    said = [diagnosis(resolve(world, hub)) for hub in hubs]
    helps = [hub.but(c.change) for hub, d in zip(hubs, said, strict=True) for c in (d.change, d.blocked) if c]
    best = [hub.but(sweeps.changes_of(row)) for hub in hubs for row in sweeps.best(resolve(world, hub)).rows[:TOP]]
    yield from dict.fromkeys([*hubs, *near, *helps, *best])
