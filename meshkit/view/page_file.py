"""The built page, and what is written into it before it is served or saved."""

import base64
import dataclasses
import gzip
import hashlib
from importlib import resources
from pathlib import Path
from typing import Any

from meshkit import __version__
from meshkit.view.payload import to_json

PAGE = resources.files("meshkit.view") / "static" / "index.html"

BOOT, PACK = "<!--meshkit-boot-->", "<!--meshkit-pack-->"
"""Places in the page: of the Boot, and of precomputed parts."""


@dataclasses.dataclass(frozen=True)
class Preset:
    """A named setting in the page's menu; query: of its URL."""

    name: str
    query: str


@dataclasses.dataclass(frozen=True)
class Boot:
    """What the page knows before it asks: the first setting, presets, settings of Learn's figures by name, and a
    recorded run's timeline if there is one."""

    query: str
    presets: list[Preset]
    lessons: dict[str, str]
    measured: Any = None
    version: str = __version__


def page(boot: Boot, pack: str | None = None) -> str:
    """The page as one HTML file. pack: precomputed parts as JSON (see export.py), gzipped into it."""
    html = PAGE.read_text(encoding="utf-8")
    html = html.replace(BOOT, _script("boot", "application/json", to_json(boot).replace("</", "<\\/")))
    if pack is None:
        return html
    packed = gzip.compress(pack.encode(), 9, mtime=0)
    return html.replace(PACK, _script("pack", "text/plain", base64.b64encode(packed).decode()))


def _script(name: str, kind: str, text: str) -> str:
    return f'<script id="meshkit-{name}" type="{kind}">{text}</script>'


# --- that the build is the source's ------------------------------------------------------------------

UNBUILT = ("node_modules", "dist")


def source_digest(folder: Path) -> str:
    """SHA-256 over names and contents of the page's source; vite.config.ts writes the same into the build."""
    digest = hashlib.sha256()
    paths = [path for path in folder.rglob("*") if path.is_file() and not set(UNBUILT) & set(path.parts)]
    for path in sorted(paths, key=lambda path: path.relative_to(folder).as_posix()):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
