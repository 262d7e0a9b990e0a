"""The built page, and what is written into it before it is served or saved."""

import base64
import dataclasses
import gzip
import hashlib
from importlib import resources
from pathlib import Path
from typing import Any

from meshkit import __version__
from meshkit.view.code import Snippet, snippets
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
    """What the page knows before it asks: the first setting, presets, settings of Learn's figures by name, a
    recorded run's timeline if there is one, and the code that it points at."""

    query: str
    presets: list[Preset]
    lessons: dict[str, str]
    measured: Any = None
    code: dict[str, Snippet] = dataclasses.field(default_factory=snippets)
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

SOURCE, UNBUILT = "meshkit/view/page", ("node_modules", "dist")
LESSONS = ("docs/learn.md", "docs/learn.zh.md")
"""In the repository: the page's source, and the text of its chapters."""


def source_digest(root: Path) -> str:
    """SHA-256 over names and contents of what the page is built from; vite.config.ts writes the same into the build.

    root: of the repository.
    """
    digest = hashlib.sha256()
    paths = [path.relative_to(root) for path in (root / SOURCE).rglob("*") if path.is_file()]
    names = [path.as_posix() for path in paths if not set(UNBUILT) & set(path.parts)]
    for name in sorted([*names, *LESSONS]):
        digest.update(name.encode() + b"\0" + (root / name).read_bytes() + b"\0")
    return digest.hexdigest()
