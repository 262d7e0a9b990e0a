"""The page in a real Chromium (see chromium.py): what it shows, what it does, how it looks."""

import dataclasses
import io
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from xml.etree import ElementTree

import pytest
from PIL import Image, ImageChops, ImageStat

from meshkit.pipeline import builders, grid
from meshkit.view import command, export, schedules, weights
from meshkit.view.choices import choices
from meshkit.view.page_file import Boot, Preset
from meshkit.view.setting import PRESETS_OF_THE_PAGE, Setting, resolve
from meshkit.view.world import World
from tests.view.chromium import MODES, SHOTS, SIZES, Seen, browser, pick, seen, serve, settle, shared

__all__ = ["browser", "seen", "shared"]  # fixtures

SMALL = Setting("tiny", data=2, tensor=2, pipe=2, microbatches=4, batch=16, sequence=128, recompute="none")
CROSSING = Setting("gpt3-175b", data=1, tensor=16, pipe=2, batch=64, microbatches=64, sequence=2048)
LARGE = Setting("llama3-405b", data=32, tensor=8, pipe=16, batch=2048, microbatches=64)
WORLD = World.of()
REDRAW_MS = 100
"""Of 4,096 devices, in the median: what still feels immediate."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    yield from serve(*command.prepare(None, "h100"))


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


# --- controls --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("control", "value"), [("tensor", 8), ("pipe", 4), ("microbatches", 16), ("zero", 3), ("schedule", "gpipe")]
)
def test_a_control_changes_what_is_shown_to_what_python_says(
    seen: Seen, address: str, control: str, value: int | str
) -> None:
    page = seen.open(address, Setting(), mode="performance")
    pick(page, control, value)
    found = resolve(WORLD, Setting().but({control: value})).estimate
    shown = page.locator(".waterfall .sum .num").first.inner_text()
    assert float(shown.removesuffix(" s")) == pytest.approx(found.step, rel=6e-3)
    memory = page.locator(".headline .row .num").inner_text()
    assert float(memory.split()[0]) == pytest.approx((found.peak_memory + 2 * 2**30) / 2**30, abs=0.06)
    page.keyboard.press("Control+z")
    settle(page)
    assert page.locator(f"#value-{control}").inner_text() == str(getattr(Setting(), control))


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_is_not_legal_cannot_be_chosen_and_says_why(seen: Seen, address: str, lang: str) -> None:
    page = seen.open(address, Setting(), lang=lang)
    page.click("#value-tensor")
    refused = page.locator('[data-control=tensor] [role=option][data-value="16"]')
    [reason] = [choice.reason for choice in choices(WORLD, Setting())["tensor"] if choice.value == 16]
    assert refused.get_attribute("aria-disabled") == "true"
    assert refused.locator("small").inner_text() == getattr(reason, lang)
    refused.click(force=True)
    assert page.locator("#value-tensor").inner_text() == "4"
    page.keyboard.press("Escape")


@pytest.mark.parametrize(("lang", "word"), [("en", "does not split"), ("zh", "不能均分")])
def test_a_setting_that_is_not_legal_is_said(browser: Any, address: str, lang: str, word: str) -> None:
    opened = Seen(browser)
    opened.page.goto(f"{address}#lang={lang}&layout=tensor%3D16")
    assert word in opened.page.locator("[role=alert] p").inner_text()
    opened.page.click("[role=alert] button")
    settle(opened.page)
    assert opened.page.locator("#value-tensor").inner_text() == "4"
    opened.page.close()


@pytest.mark.parametrize(
    "fragment", ["at=-5&mode=state", "at=x", "chapter=-1&mode=learn", "device=9.x", "mode=x&lang=fr"]
)
def test_a_url_that_says_nonsense_does_no_harm(seen: Seen, address: str, fragment: str) -> None:
    seen.page.goto(f"{address}#{fragment}")
    settle(seen.page)
    assert seen.page.locator("main").inner_text()


def test_controls_work_from_the_keyboard_and_by_dragging(seen: Seen, address: str) -> None:
    page = seen.open(address, Setting())
    page.focus("#value-data")
    page.keyboard.press("ArrowUp")
    settle(page)
    assert page.locator("#value-data").inner_text() == "16"
    box = page.locator("#value-data").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 20, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] - 10, box["y"] + 10)
    page.mouse.up()
    settle(page)
    assert page.locator("#value-data").inner_text() == "8"
    page.focus("#value-schedule")
    for key in ("Enter", "Home", "ArrowDown", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    settle(page)
    assert page.locator("#value-schedule").inner_text() == "gpipe"


def test_the_url_holds_what_is_seen(seen: Seen, browser: Any, address: str) -> None:
    page = seen.open(address, Setting(), mode="state", lang="zh", theme="dark")
    pick(page, "pipe", 4)
    page.select_option("[data-compare]", "gpipe")
    page.click("[data-clock=ms]")
    page.wait_for_function("['against=gpipe', 'pipe%3D4', 'clock=ms'].every((one) => location.hash.includes(one))")
    again = Seen(browser)
    again.page.goto(page.url)
    settle(again.page)
    assert again.page.locator("#value-pipe").inner_text() == "4"
    assert again.page.locator("[data-compare]").input_value() == "gpipe"
    assert again.page.locator("[data-clock=ms]").get_attribute("aria-pressed") == "true"
    assert again.page.evaluate("document.documentElement.lang") == "zh-CN"
    again.page.close()


HELD = {
    "architecture": ({"device": "1.1.1", "parameter": "blocks.mlp.up.kernel", "solid": 1}, ".inspector, .segmented"),
    "data": ({"story": 330}, "[aria-current=step], .player output"),
    "state": ({"against": "gpipe", "clock": "free", "at": 3, "unfolded": 1}, ".inspector, .player output"),
    "performance": ({"metric": "eta", "pinned": Setting().query}, ".performance [aria-pressed=true], .compare"),
    "learn": ({"chapter": 4}, "article h2"),
}
"""What a mode's URL says, and where the page shows it."""


@pytest.mark.parametrize("mode", MODES)
def test_the_url_of_every_mode_is_heeded_and_kept(seen: Seen, address: str, mode: str) -> None:
    said, where = HELD[mode]
    written = {key: str(value).replace("&", "%26").replace("=", "%3D") for key, value in said.items()}
    computed = "!/computing…/.test(document.querySelector('main').innerText)"
    told = lambda: [*page.locator(where).all_inner_texts(), page.locator("main").inner_text()]
    page = seen.open(address, SMALL, mode=mode)
    plain = told()
    page = seen.open(address, SMALL, mode=mode, **written)
    page.wait_for_function(computed)
    page.wait_for_timeout(200)
    shown, kept = told(), dict(parse_qsl(page.url.partition("#")[2]))
    assert shown != plain
    assert said.items() <= {key: int(v) if v.isdecimal() else v for key, v in kept.items()}.items()
    page.reload()
    settle(page)
    page.wait_for_function(computed)
    page.wait_for_timeout(200)  # a schedule to compare with comes later
    assert told() == shown


def test_the_planners_best_is_that_of_what_is_shown(seen: Seen, address: str) -> None:
    page = seen.open(address, SMALL, mode="performance")
    page.wait_for_function(
        "[...document.querySelectorAll('[data-presets] option')].some((o) => o.value.includes('tiny'))"
    )
    page.select_option("[data-presets]", label="planner's best")
    settle(page)
    page.wait_for_selector(".best tr.present")
    assert page.locator(".best tr.present td").first.inner_text() == "1"


# --- hands ------------------------------------------------------------------------------------------

REACHED = "button:not(:disabled), select, input, summary, [tabindex='0']"


@pytest.mark.parametrize("mode", MODES)
def test_the_keyboard_reaches_everything_and_shows_where_it_is(seen: Seen, address: str, mode: str) -> None:
    page = seen.open(address, SMALL, mode=mode, chapter=2)
    page.wait_for_function("!document.querySelector('[data-presets] option:disabled')")
    page.evaluate("document.activeElement.blur()")
    visible = f'[...document.querySelectorAll("{REACHED}")].filter((e) => e.checkVisibility())'
    all_of_them = page.evaluate(f"{visible}.length")
    for _ in range(all_of_them + 2):  # from wherever it begins, and over the end of the page
        page.keyboard.press("Tab")
        page.evaluate(
            """() => {
                const now = document.activeElement, style = getComputedStyle(now);
                now.dataset.reached = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1;
            }"""
        )
    missed = page.evaluate(
        f"{visible}.filter((e) => e.dataset.reached !== 'true').map((e) => e.outerHTML.slice(0, 90))"
    )
    assert missed == []


def test_arrow_keys_scrub(seen: Seen, address: str) -> None:
    page = seen.open(address, SMALL, mode="state")
    page.focus("main canvas")
    told = lambda: page.locator(".player output").inner_text().split("/")[0]
    for key, tick in (("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2), ("PageUp", 1)):
        page.keyboard.press(key)
        page.wait_for_function(f"document.querySelector('.player output').innerText.startsWith('tick {tick}/')")
    seen.open(address, SMALL, mode="data")
    page.focus(".player input")
    page.keyboard.press("End")
    page.wait_for_function("document.querySelector('.player output').innerText === '12/12'")
    assert told() == "12"


def test_every_control_can_be_undone_and_redone(seen: Seen, address: str) -> None:
    page = seen.open(address, SMALL)
    none = json.dumps({"rows": [], "legal": 0, "fitting": 0})  # a search for each change would take long
    page.route("**/api/best?*", lambda route: route.fulfill(body=none))
    changed = {
        "model": "llama3-1b",
        "cluster": "h200",
        "sequence": 512,
        "batch": 32,
        "data": 1,
        "tensor": 1,
        "pipe": 4,
        "microbatches": 8,
        "schedule": "interleaved",
        "virtual": 4,
        "recompute": "selective",
        "zero": 3,
        "precision": "float32",
    }
    controls = page.locator("[data-control]").evaluate_all("(all) => all.map((one) => one.dataset.control)")
    assert set(controls) == {*changed, "overlap"}
    shown = lambda: {name: page.locator(f"#value-{name}").inner_text() for name in controls}
    states = [shown()]
    for control, value in changed.items():
        pick(page, control, value)
        states.append(shown())
        assert states[-1][control] == str(value)
    pick(page, "schedule", "gpipe")
    pick(page, "overlap", "true")
    states += [states[-1] | {"schedule": "gpipe", "virtual": "1"}]
    states += [states[-1] | {"overlap": "true"}]
    assert shown() == states[-1]
    for keys, before in (("Control+z", states[-2::-1]), ("Control+Shift+Z", states[1:])):
        for state in before:
            page.keyboard.press(keys)
            settle(page)
            assert shown() == state

    page.unroute("**/api/best?*")


def test_fingers_scrub_drag_and_spread(browser: Any, address: str) -> None:
    opened = Seen(browser, "phone", has_touch=True, is_mobile=True)
    page = opened.open(address, LARGE, mode="state")
    hand = page.context.new_cdp_session(page)
    box = page.locator("main canvas").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2

    def touch(*path: tuple[float, ...]) -> str:
        """Fingers at some x each, moved along a path and lifted; what the cursor says then."""
        for kind, at in (("touchStart", path[0]), *(("touchMove", at) for at in path[1:]), ("touchEnd", ())):
            hand.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y} for x in at]})
        page.wait_for_timeout(100)
        return page.locator(".player output").inner_text()

    first, scrubbed = touch((200.0,)), touch((200.0,), (240.0,), (290.0,))
    assert first != scrubbed
    assert touch((200.0,)) == first
    touch((190.0, 230.0), (160.0, 260.0), (110.0, 310.0))
    assert touch((300.0,)) not in (first, scrubbed)
    assert int(touch((300.0,)).split()[1].split("/")[0]) < int(scrubbed.split()[1].split("/")[0])
    page.click(".sheets button:nth-of-type(1)")
    page.wait_for_timeout(400)
    value = page.locator("#value-tensor").bounding_box()
    assert value is not None
    y = value["y"] + value["height"] / 2
    touch((value["x"] + 40,), (value["x"] + 10,))
    settle(page)
    assert page.locator("#value-tensor").inner_text() == "4"
    opened.page.close()
    assert opened.faults == []


@pytest.mark.parametrize("wanted", ["reduce", "no-preference"])
def test_nothing_moves_where_motion_is_not_wanted(browser: Any, address: str, wanted: str) -> None:
    opened = Seen(browser, reduced_motion=wanted)
    page = opened.open(address, SMALL, mode="performance")
    page.evaluate(
        """() => {
            window.moved = 0;
            (function look() {
                moved = Math.max(moved, document.getAnimations().length);
                requestAnimationFrame(look);
            })();
        }"""
    )
    pick(page, "recompute", "full")
    page.wait_for_timeout(200)
    assert (page.evaluate("moved") > 0) == (wanted == "no-preference")
    seen = []
    for at in (305, 330):  # within a step of the story
        opened.open(address, SMALL, mode="data", story=at)
        seen.append(page.evaluate("document.querySelector('main canvas').toDataURL()"))
    assert (seen[0] != seen[1]) == (wanted == "no-preference")
    opened.page.close()
    assert opened.faults == []


# --- modes -----------------------------------------------------------------------------------------


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


def saved(page: Any, what: str, folder: Path) -> bytes:
    with page.expect_download() as download:
        page.select_option("[data-save]", what)
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path.read_bytes()


def words_of(svg: bytes) -> dict[str, float]:
    """What an SVG says, and how far down it says it last."""
    texts = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return {text.text or "": float(text.get("y", "nan")) for text in texts}


@pytest.mark.parametrize("mode", ["architecture", "data", "state"])
def test_a_saved_drawing_is_the_one_on_the_screen(
    seen: Seen, browser: Any, address: str, tmp_path: Path, mode: str
) -> None:
    page = seen.open(address, SMALL, mode=mode, theme="dark", lang="zh", clock="ms", against="gpipe", at=3)
    canvas = page.locator("main canvas")
    wide, high = canvas.evaluate("(c) => [c.width, c.height]")
    png = Image.open(io.BytesIO(saved(page, "savePng", tmp_path))).convert("RGB")
    assert png.size == (2 * wide, 2 * high)
    drawn = Image.open(io.BytesIO(canvas.screenshot())).convert("RGB")
    away = ImageStat.Stat(ImageChops.difference(png.resize(drawn.size, Image.Resampling.BOX), drawn)).mean
    assert max(away) < 4  # of 255: thin lines blur
    svg = saved(page, "saveSvg", tmp_path)
    words, root = words_of(svg), ElementTree.fromstring(svg)
    assert (root.get("width"), root.get("height")) == (str(wide), str(high))
    expected = {
        "architecture": ["stage 1", "层 2–3", "副本 1", "7"],
        "data": ["副本 0 · 8 个样本"],
        "state": ["gpipe", "气泡"],
    }
    assert all(any(one in word for word in words) for one in expected[mode])
    opened = browser.new_page()
    opened.goto((tmp_path / "meshkit.svg").as_uri())
    assert opened.evaluate("document.documentElement.getBBox().width") >= wide
    opened.close()


def test_a_saved_trace_is_the_timeline_that_runs(seen: Seen, address: str, tmp_path: Path) -> None:
    page = seen.open(address, SMALL, mode="state")
    events = json.loads(saved(page, "saveTrace", tmp_path))["traceEvents"]
    case = resolve(WORLD, SMALL)
    drawn, table = schedules.table(case).actions, case.layout.table.schedule
    spans = [event for event in events if event["ph"] == "X"]
    assert sorted((span["pid"], span["name"]) for span in spans) == sorted((s, str(action)) for _, s, action in table)
    assert sorted(span["ts"] for span in spans) == pytest.approx([1e3 * ms for ms in sorted(drawn.start_ms)], abs=0.1)


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


# --- languages -------------------------------------------------------------------------------------


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


# --- a file, a run -----------------------------------------------------------------------------------


def test_an_exported_page_needs_no_network(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "FROM_FIRST", ("precision",))
    page_file = tmp_path / "page.html"
    export.write(WORLD, Boot(SMALL.query, [Preset("small", SMALL.query)], {}), page_file)
    opened = Seen(browser, offline=True)
    for mode in MODES[:4]:
        opened.open(page_file.as_uri(), SMALL, mode=mode)
    for control, value in (("microbatches", 8), ("precision", "float32")):
        opened.open(page_file.as_uri(), SMALL, mode="performance")
        pick(opened.page, control, value)
        found = resolve(WORLD, SMALL.but({control: value})).estimate
        shown = opened.page.evaluate("meshkit.figures.value.step_seconds")
        assert shown == pytest.approx(found.step, rel=1e-5)
    opened.page.click("#value-model")
    away = opened.page.locator('[data-control=model] [role=option][data-value="llama3-8b"]')
    assert "not in this exported file" in away.inner_text()
    opened.page.close()
    assert opened.faults == []


def test_a_grid_of_ones_own_is_a_choice_and_only_with_what_it_has(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(grid.unparse(builders.build("zero-bubble", 2, 4, hop=2)))
    world = World.of(schedules=[str(file)], layers=["3,1"])
    own = SMALL.but({"schedule": str(file), "overlap": "true", "layers": "3,1"})
    for at in serve(world, Boot(own.query, [Preset("config", own.query)], {})):
        opened = Seen(browser)
        for mode in MODES[:4]:
            page = opened.open(at, own, mode=mode)
        page = opened.open(at, own, mode="state")
        assert [page.locator(f"#value-{name}").inner_text() for name in ("schedule", "layers", "overlap")] == [
            "mine.txt",
            "3,1",
            "true",
        ]
        page.click("#value-pipe")
        refused = page.locator('[data-control=pipe] [role=option][data-value="4"]')
        assert "mine.txt has 2 stages and mesh.pipe = 4: set mesh.pipe to 2" in refused.inner_text()
        assert refused.get_attribute("aria-disabled") == "true"
        page.keyboard.press("Escape")
        pick(page, "schedule", "1f1b")
        pick(page, "schedule", file)
        assert page.evaluate("meshkit.figures.value.step_seconds") == pytest.approx(
            resolve(world, own).estimate.step, rel=1e-5
        )
        opened.page.close()
        assert opened.faults == []


RUN = """
devices = 2
[mesh]
pipe = 2
[pipeline]
schedule = "interleaved"
virtual = 2
microbatches = 2
[model]
preset = "tiny"
[data]
batch = 4
"""


def test_a_recorded_timeline_is_drawn_under_the_plan(browser: Any, tmp_path: Path) -> None:
    """Of a run's folder: its config's schedule above, below what `meshkit train --profile` left there."""
    names = [f"device {k}: data 0 tensor 0 pipe {k}" for k in range(2)]
    events: list[dict[str, object]] = [
        {"ph": "M", "pid": k, "name": "process_name", "args": {"name": name}} for k, name in enumerate(names)
    ]
    span = {"ph": "X", "cat": "actions", "tid": 1, "dur": 900.0}
    for k, name in ((0, "F0"), (1, "F17.1")):
        events.append(span | {"pid": k, "name": name, "ts": 1000.0 * k, "args": {"step": 0, "tick": k}})
    (tmp_path / "config.toml").write_text(RUN)
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile/timeline.json").write_text(json.dumps({"traceEvents": events}))
    for at in serve(*command.prepare(str(tmp_path), "h100")):
        opened = Seen(browser)
        page = opened.open(at, mode="state")
        assert page.locator("[data-measured]").is_checked()
        assert json.loads(page.evaluate("JSON.stringify(meshkit.measured)"))["to"] == pytest.approx(1.9)
        words = words_of(saved(page, "saveSvg", tmp_path))
        assert words["interleaved"] < words["measured"] < words["stage 0"] < words["17"] == words["stage 1"]
        page.click("[data-measured]")
        page.wait_for_function("location.hash.includes('unmeasured')")
        assert not {"measured", "17"} & words_of(saved(page, "saveSvg", tmp_path)).keys()
        opened.page.close()
        assert opened.faults == []
