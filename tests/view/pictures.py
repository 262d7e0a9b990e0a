"""The pictures of README.md and docs/learn*.md, taken from the page: `make pictures`.

Look at them before committing.
"""

import io
import itertools
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from meshkit.view import command
from meshkit.view.setting import Setting
from tests.view.chromium import CHROMIUM, Seen, serve

OUT = Path(__file__).parents[2] / "docs/view"
SIDE_BY_SIDE = Setting("llama3-8b", data=2, tensor=1, pipe=4, microbatches=16, recompute="selective", batch=32)
SHOWN: dict[str, tuple[Setting, dict[str, object]]] = {
    "architecture": (Setting(), {"device": "2.1.0"}),
    "data": (Setting(), {"mode": "data", "story": 5 * 60}),
    "state": (SIDE_BY_SIDE, {"mode": "state", "against": "gpipe", "clock": "ms", "at": 9, "theme": "dark"}),
    "performance": (Setting(), {"mode": "performance", "theme": "dark"}),
}
LANGUAGES = {"en": "", "zh": ".zh"}
"""Of the chapters, and what the names of their pictures end in."""
FIGURES = ("cuts", "tensor", "bubble", "memory", "places", "tuning")


def main() -> None:
    world, boot = command.prepare(None, "h100")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for address in serve(world, boot):
            seen = Seen(browser)
            for name, (setting, said) in SHOWN.items():
                page = ready(seen.open(address, setting, **said))
                save(page.screenshot(), name)
            for (chapter, name), (lang, suffix) in itertools.product(enumerate(FIGURES), LANGUAGES.items()):
                page = ready(seen.open(address, Setting(), mode="learn", chapter=chapter, lang=lang))
                save(page.locator(".figure").screenshot(), f"learn-{name}{suffix}")
        browser.close()


def save(picture: bytes, name: str) -> None:
    """In 256 colours, which drawings of few have enough of, and a third of the bytes."""
    few = (
        Image.open(io.BytesIO(picture))
        .convert("RGB")
        .quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    )
    few.save(OUT / f"{name}.png", optimize=True)


def ready(page: Any) -> Any:
    """When fonts are there and nothing is computed any more."""
    page.evaluate("document.fonts.ready")
    page.wait_for_function("!/computing…|计算中…/.test(document.querySelector('.frame').innerText)")
    page.wait_for_timeout(300)
    return page


if __name__ == "__main__":
    main()
