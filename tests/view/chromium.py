"""The system's Chromium, driven by Playwright, and the page in it: one of each for a file of tests.

A test asks `seen.open(…)` for what it wants to see; the page goes there by its URL's fragment, without loading anew.
"""

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshkit.view import command
from meshkit.view.page_file import Boot
from meshkit.view.server import server
from meshkit.view.setting import Setting
from meshkit.view.world import World

MODES = ("architecture", "data", "state", "performance", "learn")
SIZES = {"desktop": (1440, 900), "laptop": (1024, 768), "phone": (390, 844)}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDED = "MESHKIT_NEEDS_CHROMIUM"

WORLD = World.of()
SMALL = Setting("tiny", data=2, tensor=2, pipe=2, microbatches=4, batch=16, sequence=128, recompute="none")
LARGE = Setting("llama3-405b", data=32, tensor=8, pipe=16, batch=2048, microbatches=64)


class Seen:
    """A page in a browser, and whatever its console complained about."""

    def __init__(self, browser: Any, size: str = "desktop", **options: object) -> None:
        width, height = SIZES[size]
        options = {"reduced_motion": "reduce", "locale": "en-US"} | options
        self.page = browser.new_page(viewport={"width": width, "height": height}, **options)
        self.page.set_default_timeout(60_000)
        self.faults: list[str] = []
        complain = ("error", "warning")
        self.page.on("console", lambda said: said.type in complain and self.faults.append(said.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))

    def open(self, address: str, layout: Setting | None = None, **said: object) -> Any:
        """Go there, in English and in the light unless said otherwise; the page, when it shows what was asked."""
        fragment = {"mode": "architecture", "lang": "en", "theme": "light"} | said
        if layout is not None:
            fragment["layout"] = layout.query.replace("&", "%26").replace("=", "%3D")
        self.page.goto(f"{address}#" + "&".join(f"{key}={value}" for key, value in fragment.items()))
        settle(self.page)
        return self.page


def settle(page: Any) -> None:
    """Until what is shown is the answer to what was asked."""
    page.wait_for_function("window.meshkit?.settled()")


def pick(page: Any, control: str, value: object) -> None:
    """Choose a value from a control's list."""
    page.click(f"#value-{control}")
    page.click(f'[data-control={control}] [role=option][data-value="{value}"]')
    settle(page)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Skips, with the reason, where there is no Chromium; in CI, which installs one, it fails instead."""
    missing = "there is no Chromium: apt-get install chromium" if CHROMIUM is None else ""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing = "Playwright is not installed"
    if missing:
        (pytest.fail if os.environ.get(NEEDED) else pytest.skip)(missing)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def shared(browser: Any) -> Iterator[Seen]:
    """One page for a whole file."""
    opened = Seen(browser)
    yield opened
    opened.page.close()


@pytest.fixture
def seen(shared: Seen) -> Iterator[Seen]:
    """The shared page; nothing may have been complained about when a test is done with it."""
    shared.faults.clear()
    yield shared
    assert shared.faults == []


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a page that begins with what `meshkit view` begins with."""
    yield from serve(*command.prepare(None, "h100"))


def serve(world: World, boot: Boot) -> Iterator[str]:
    """The address of a server, until the generator ends."""
    serving = server(world, boot)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}/"
    serving.shutdown()
    serving.server_close()


SHOTS = Path(os.environ.get("MESHKIT_SHOTS", ".cache/view"))
"""Where the screenshots land."""
