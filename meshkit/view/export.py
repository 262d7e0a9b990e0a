"""The page as one file: with the settings around the first one and the presets computed beforehand."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshkit.errors import MeshkitError
from meshkit.view.page_file import Boot, page
from meshkit.view.payload import PARTS, plain
from meshkit.view.setting import Setting, World, choices, parse, resolve

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


def pack(world: World, boot: Boot) -> dict[str, Any]:
    """settings: query -> part -> index into parts; equal parts of different settings are kept once.

    The best layouts, a search of seconds, are there for as many devices as the first setting or a preset has.
    """
    parts: dict[str, int] = {}
    settings: dict[str, dict[str, int]] = {}
    hubs = list(dict.fromkeys(parse(query) for query in [boot.query, *(preset.query for preset in boot.presets)]))
    searched = {(hub.mesh.devices, hub.batch) for hub in hubs}
    for setting in around(world, hubs):
        case = resolve(world, setting)
        settings[setting.query] = {
            name: parts.setdefault(json.dumps(plain(part(case))), len(parts))
            for name, part in PARTS.items()
            if name != BEST or (setting.mesh.devices, setting.batch) in searched
        }
    return {"settings": settings, "parts": [json.loads(part) for part in parts]}


BEST = "best"


def around(world: World, hubs: list[Setting]) -> Iterator[Setting]:
    """The hubs, and each with one control changed."""
    near = [
        hub.but(choice.change)
        for hub in hubs
        for control, offered in choices(world, hub).items()
        if control in CONTROLS
        for choice in offered
        if not choice.reason
    ]
    yield from dict.fromkeys([*hubs, *near])
