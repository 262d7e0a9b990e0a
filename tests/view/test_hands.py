"""The page in a real Chromium, used: controls, keyboard, fingers, undo, the URL."""

import json
from typing import Any
from urllib.parse import parse_qsl

import pytest

from meshkit.view.choices import choices
from meshkit.view.setting import Setting, resolve
from tests.view.chromium import LARGE, MODES, SMALL, WORLD, Seen, address, browser, pick, seen, settle, shared

__all__ = ["address", "browser", "seen", "shared"]  # fixtures


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


def test_the_planners_best_is_that_of_what_is_shown(seen: Seen, address: str) -> None:
    page = seen.open(address, SMALL, mode="performance")
    page.wait_for_function(
        "[...document.querySelectorAll('[data-presets] option')].some((o) => o.value.includes('tiny'))"
    )
    page.select_option("[data-presets]", label="planner's best")
    settle(page)
    page.wait_for_selector(".best tr.present")
    assert page.locator(".best tr.present td").first.inner_text() == "1"


# --- keyboard, fingers, motion ----------------------------------------------------------------------


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


# --- the URL ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fragment", ["at=-5&mode=state", "at=x", "chapter=-1&mode=learn", "device=9.x", "mode=x&lang=fr"]
)
def test_a_url_that_says_nonsense_does_no_harm(seen: Seen, address: str, fragment: str) -> None:
    seen.page.goto(f"{address}#{fragment}")
    settle(seen.page)
    assert seen.page.locator("main").inner_text()


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
