"""The page in a real Chromium (see chromium.py): what its modes show, and how they look."""

import dataclasses
import statistics
from typing import Any

import pytest

from meshkit.pipeline import builders
from meshkit.view import weights
from meshkit.view.setting import PRESETS_OF_THE_PAGE, Setting, resolve
from tests.view.chromium import (
    LARGE,
    MODES,
    SHOTS,
    SIZES,
    SMALL,
    WORLD,
    Seen,
    address,
    browser,
    pick,
    seen,
    settle,
    shared,
)

__all__ = ["address", "browser", "seen", "shared"]  # fixtures

CROSSING = Setting("gpt3-175b", data=1, tensor=16, pipe=2, batch=64, microbatches=64, sequence=2048)
REDRAW_MS = 100
"""Of 4,096 devices, in the median: what still feels immediate."""


# --- every mode ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_renders_every_preset(seen: Seen, address: str, mode: str) -> None:
    for preset in PRESETS_OF_THE_PAGE.values():
        page = seen.open(address, preset, mode=mode)
        page.wait_for_function("[...document.querySelectorAll('canvas')].every((c) => c.width > 0 && c.height > 0)")
        assert page.locator("#value-data").count() == (mode != "learn")
        assert page.locator("main").inner_text() or page.locator("main canvas").count()


@pytest.mark.parametrize(
    ("size", "theme", "lang"), [(s, *how) for s in SIZES for how in (("light", "en"), ("dark", "zh"))]
)
def test_every_mode_looks_right(browser: Any, address: str, size: str, theme: str, lang: str) -> None:
    """Pictures for people to look at; nothing wider than the window, nothing said in the console, no serious fault
    of accessibility."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed").Axe()
    opened = Seen(browser, size)
    SHOTS.mkdir(parents=True, exist_ok=True)
    for mode in MODES:
        page = opened.open(address, Setting(), mode=mode, theme=theme, lang=lang, parameter="blocks.mlp.up.kernel")
        page.evaluate("document.fonts.ready")
        page.screenshot(path=SHOTS / f"{mode}-{size}-{theme}-{lang}.png")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), mode
        cut = "[...document.querySelectorAll('aside, .controls, .player')].filter((e) => e.scrollWidth > e.clientWidth)"
        assert page.evaluate(f"{cut}.map((e) => e.className)") == [], mode
        if size != "laptop":
            found = axe.run(page).response["violations"]
            serious = [v for v in found if v["impact"] in ("serious", "critical")]
            assert [(v["id"], [node["html"][:120] for node in v["nodes"][:4]]) for v in serious] == [], mode
    opened.page.close()
    assert opened.faults == []


# --- modes ----------------------------------------------------------------------------------------


def test_a_device_says_what_it_holds(seen: Seen, address: str) -> None:
    page = seen.open(address, SMALL, mode="architecture", device="1.1.1")
    page.click('[data-parameter="blocks.attention.query.kernel"]')
    case = resolve(WORLD, SMALL)
    [query] = [p for p in weights.weights(case).parameters if p.path == "blocks.attention.query.kernel"]
    ranges = weights.block(query, {"data": 1, "tensor": 1, "pipe": 1}, SMALL.mesh.sizes)[1:]
    said = page.locator("[data-slice]").inner_text()
    assert said.endswith(f"[{', '.join(f'{a}:{b}' for a, b in ranges)}]")
    assert query.spec in page.locator(".chosen").inner_text()
    page.focus("canvas")
    page.keyboard.press("ArrowUp")
    assert "Device 3" in page.locator(".inspector h2").inner_text()


def test_the_code_is_shown_where_it_stands(seen: Seen, address: str) -> None:
    page = seen.open(address, SMALL)
    page.click('[data-code="meshkit/mesh.py:place"]')
    assert page.locator("dialog header").inner_text().startswith("meshkit/mesh.py:")
    assert "def place(" in page.locator("dialog pre").inner_text()
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    page.click(".see dd button:not([data-code])")
    assert page.locator("article h2").inner_text() == "Who sits where"


def test_links_are_as_bright_as_their_bytes(seen: Seen, address: str) -> None:
    page = seen.open(address, Setting())
    bright = {
        axis: page.locator(f"[data-traffic={axis}] i").evaluate("(i) => Number(i.style.opacity)")
        for axis in ("data", "tensor", "pipe")
    }
    assert 1 == bright["tensor"] > bright["data"] > bright["pipe"] > 0


def test_a_tensor_group_on_two_nodes_is_flagged(seen: Seen, address: str) -> None:
    page = seen.open(address, CROSSING)
    assert (
        "2 of 2 tensor groups (mesh.tensor = 16) have members on more than one node"
        in page.locator(".flag").inner_text()
    )


def test_the_schedule_plays_to_its_end(seen: Seen, address: str) -> None:
    page = seen.open(address, SMALL, mode="state")
    ticks = int(page.locator(".player input").get_attribute("max") or 0)
    for _ in range(ticks):
        page.click(".player button:nth-of-type(4)")
    assert page.locator(".player output").inner_text() == f"tick {ticks + 1}/{ticks + 1}"
    page.click(".player button:nth-of-type(1)")
    page.click(".player .main")
    page.wait_for_function(f"document.querySelector('.player input').value === '{ticks}'")


def test_the_cursor_reaches_the_end_of_the_longer_schedule(seen: Seen, address: str) -> None:
    few = dataclasses.replace(SMALL, schedule="1f1b", microbatches=8)
    page = seen.open(address, few, mode="state")
    last = lambda: int(page.locator(".player input").get_attribute("max") or 0)
    alone = last()
    page.select_option("[data-compare]", "gpipe")
    page.wait_for_function(f"Number(document.querySelector('.player input').max) > {alone}")
    assert last() == builders.build("gpipe", few.pipe, few.microbatches).ticks - 1
    page.locator(".player input").focus()
    page.keyboard.press("End")
    page.wait_for_function(f"document.querySelector('.player output').innerText === 'tick {last() + 1}/{last() + 1}'")
    assert page.locator(".inspector .now").count() == 2


def test_the_story_reaches_its_end(seen: Seen, address: str) -> None:
    page = seen.open(address, SMALL, mode="data")
    steps = page.locator("[data-step]").count()
    for k in range(1, steps):
        page.click(".player button:nth-of-type(4)")
        assert page.locator(".player output").inner_text() == f"{k + 1}/{steps}"
        assert page.locator("[data-step][aria-current=step] .num").inner_text() == str(k + 1)


def test_a_row_of_the_best_layouts_is_loaded(seen: Seen, address: str) -> None:
    page = seen.open(address, SMALL, mode="performance")
    row = page.locator(".best tbody tr").first
    row.wait_for()
    step = row.locator("td").nth(8).inner_text()
    row.click()
    settle(page)
    assert page.locator(".waterfall .sum .num").first.inner_text() == step


def test_a_and_b_are_compared(seen: Seen, address: str) -> None:
    page = seen.open(address, SMALL, mode="performance")
    page.click("[data-pin]")
    pick(page, "pipe", 1)
    page.wait_for_selector("table.compare")
    assert "pipe 2 → 1" in " ".join(page.locator(".difference").all_inner_texts())


def test_4096_devices_stay_responsive(seen: Seen, address: str, record_property: Any) -> None:
    for solid in (0, 1):
        page = seen.open(address, LARGE, **({"solid": 1} if solid else {}))
        times = []
        page.focus("canvas")
        for k in range(12):
            page.keyboard.press(("ArrowDown", "ArrowRight")[k % 2])
            times.append(float(page.locator("canvas").get_attribute("data-redraw-ms") or "nan"))
        record_property(f"redraw_ms_{solid}", statistics.median(times))
        assert statistics.median(times) < REDRAW_MS


# --- languages ------------------------------------------------------------------------------------


def test_both_languages_have_every_text(seen: Seen, address: str) -> None:
    texts = seen.open(address, SMALL).evaluate("meshkit.texts")
    blanks = lambda text: sorted(part.split("}")[0] for part in text.split("{")[1:])
    for key, (english, chinese) in texts.items():
        assert english, key
        assert chinese, key
        assert blanks(english) == blanks(chinese), key


def test_drawings_speak_the_language_that_is_chosen(seen: Seen, address: str) -> None:
    drawn = lambda: page.evaluate("[...document.querySelectorAll('.figure canvas')].map((c) => c.toDataURL())")
    page = seen.open(address, SMALL, mode="learn", chapter=2)
    page.wait_for_selector(".figure canvas")
    english = drawn()
    page.click("[data-language]")
    settle(page)
    chosen = drawn()
    page.reload()
    settle(page)
    page.wait_for_selector(".figure canvas")
    assert english != chosen == drawn()
