"""The page in a real Chromium. Skipped, with the reason, only where there is none."""

import itertools
import json
import os
import shutil
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshkit.view import command, export
from meshkit.view.choices import choices
from meshkit.view.page_file import Boot, Preset
from meshkit.view.server import server
from meshkit.view.setting import PRESETS_OF_THE_PAGE, Setting, resolve
from meshkit.view.world import World

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
Page = sync_api.Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium")

MODES = ("architecture", "data", "state", "performance", "learn")
SIZES = {"desktop": (1440, 900), "laptop": (1024, 768), "phone": (390, 844)}
SMALL = Setting("tiny", data=2, tensor=2, pipe=2, microbatches=4, batch=16, sequence=128, recompute="none")
WORLD = World.of()
SHOTS = Path(os.environ.get("MESHKIT_SHOTS", ".cache/view"))
REDRAW_MS = 100
"""Of 4,096 devices, in the median: what still feels immediate."""


@pytest.fixture(scope="module")
def browser() -> Iterator["sync_api.Browser"]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    world, boot = command.prepare(None, "h100")
    serving = server(world, boot)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}/"
    serving.shutdown()
    serving.server_close()


def settle(page: "sync_api.Page") -> None:
    """Until what is shown is the answer to what was asked."""
    page.wait_for_function("window.meshkit?.settled()")


class Watched:
    """A page, and whatever its console complained about."""

    def __init__(self, browser: "sync_api.Browser", size: str = "desktop", **options: object) -> None:
        width, height = SIZES[size]
        options = {"reduced_motion": "reduce", "locale": "en-US"} | options
        self.page = browser.new_page(viewport={"width": width, "height": height}, **options)
        self.page.set_default_timeout(60_000)
        self.faults: list[str] = []
        complain = ("error", "warning")
        self.page.on("console", lambda said: said.type in complain and self.faults.append(said.text))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))

    def open(self, address: str, **said: object) -> "sync_api.Page":
        fragment = "&".join(f"{key}={value}" for key, value in said.items())
        self.page.goto(f"{address}#{fragment}" if said else address)
        settle(self.page)
        return self.page


@pytest.fixture
def watched(browser: "sync_api.Browser") -> Iterator[Watched]:
    opened = Watched(browser)
    yield opened
    opened.page.close()
    assert opened.faults == []


def layout(setting: Setting) -> str:
    """As the fragment says it."""
    return setting.query.replace("&", "%26").replace("=", "%3D")


def pick(page: "sync_api.Page", control: str, value: object) -> None:
    """Choose a value from a control's list."""
    page.click(f"#value-{control}")
    page.click(f'[data-control={control}] [role=option][data-value="{value}"]')
    settle(page)


# --- every mode, at every preset -------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "preset"), list(itertools.product(MODES, PRESETS_OF_THE_PAGE)))
def test_every_mode_renders_every_preset(watched: Watched, address: str, mode: str, preset: str) -> None:
    page = watched.open(address, mode=mode, layout=layout(PRESETS_OF_THE_PAGE[preset]))
    page.wait_for_function("[...document.querySelectorAll('canvas')].every((c) => c.width > 0 && c.height > 0)")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("main").inner_text() or page.locator("main canvas").count()


@pytest.mark.parametrize(("size", "theme", "lang"), list(itertools.product(SIZES, ("light", "dark"), ("en", "zh"))))
def test_screenshots(browser: "sync_api.Browser", address: str, size: str, theme: str, lang: str) -> None:
    """For people to look at: each mode, nothing wider than the window, nothing said in the console."""
    opened = Watched(browser, size)
    SHOTS.mkdir(parents=True, exist_ok=True)
    for mode in MODES:
        page = opened.open(address, mode=mode, theme=theme, lang=lang)
        page.evaluate("document.fonts.ready")
        page.screenshot(path=SHOTS / f"{mode}-{size}-{theme}-{lang}.png")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), mode
    opened.page.close()
    assert opened.faults == []


# --- controls --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("control", "value"), [("tensor", 8), ("pipe", 4), ("microbatches", 16), ("zero", 3), ("schedule", "gpipe")]
)
def test_a_control_changes_what_is_shown_to_what_python_says(
    watched: Watched, address: str, control: str, value: int | str
) -> None:
    page = watched.open(address, mode="performance")
    pick(page, control, value)
    found = resolve(WORLD, Setting().but({control: value})).estimate
    shown = page.locator(".waterfall .sum .num").first.inner_text()
    assert float(shown.removesuffix(" s")) == pytest.approx(found.step, rel=6e-3)
    memory = page.locator(".headline .row .num").inner_text()
    assert float(memory.split()[0]) == pytest.approx((found.peak_memory + 2 * 2**30) / 2**30, abs=0.06)
    page.keyboard.press("Control+z")
    settle(page)
    assert page.locator(f"#value-{control}").inner_text() == str(getattr(Setting(), control))


def test_what_is_not_legal_cannot_be_chosen_and_says_why(watched: Watched, address: str) -> None:
    page = watched.open(address)
    before = page.evaluate("location.hash")
    page.click("#value-tensor")
    refused = page.locator('[data-control=tensor] [role=option][data-value="16"]')
    [reason] = [choice.reason for choice in choices(WORLD, Setting())["tensor"] if choice.value == 16]
    assert refused.get_attribute("aria-disabled") == "true"
    assert refused.locator("small").inner_text() == reason
    refused.click(force=True)
    assert page.locator("#value-tensor").inner_text() == "4"
    assert page.evaluate("location.hash") == before


def test_a_setting_that_is_not_legal_is_said(browser: "sync_api.Browser", address: str) -> None:
    opened = Watched(browser)
    opened.page.goto(f"{address}#layout=tensor%3D16")
    assert "kv_heads" in opened.page.locator("[role=alert] p").inner_text()
    opened.page.close()


def test_controls_work_from_the_keyboard_and_by_dragging(watched: Watched, address: str) -> None:
    page = watched.open(address)
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


def test_the_url_holds_what_is_seen(watched: Watched, address: str) -> None:
    page = watched.open(address, mode="state", lang="zh", theme="dark")
    pick(page, "pipe", 4)
    page.select_option("[data-compare]", "gpipe")
    page.wait_for_function("location.hash.includes('against=gpipe') && location.hash.includes('pipe%3D4')")
    again = Watched(page.context.browser)
    again.open(page.url)
    assert again.page.locator("#value-pipe").inner_text() == "4"
    assert again.page.locator("[data-compare]").input_value() == "gpipe"
    assert again.page.evaluate("document.documentElement.lang") == "zh-CN"
    again.page.close()


# --- modes -----------------------------------------------------------------------------------------


def test_a_device_says_what_it_holds(watched: Watched, address: str) -> None:
    from meshkit.view import weights

    page = watched.open(address, mode="architecture", layout=layout(SMALL), device="1.1.1")
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


def test_a_tensor_group_on_two_nodes_is_flagged(watched: Watched, address: str) -> None:
    case = Setting("gpt3-175b", data=1, tensor=16, pipe=2, batch=64, microbatches=64, sequence=2048)
    page = watched.open(address, mode="architecture", layout=layout(case))
    assert "2 of 2 tensor groups (mesh.tensor = 16) have members on more than one node" in page.locator(".flag").inner_text()


def test_the_schedule_plays_to_its_end(watched: Watched, address: str) -> None:
    page = watched.open(address, mode="state", layout=layout(SMALL))
    ticks = int(page.locator(".player input").get_attribute("max") or 0)
    for _ in range(ticks):
        page.click(".player button:nth-of-type(4)")
    assert page.locator(".player output").inner_text() == f"tick {ticks + 1}/{ticks + 1}"
    page.click(".player button:nth-of-type(1)")
    page.click(".player .main")
    page.wait_for_function(f"document.querySelector('.player input').value === '{ticks}'")


def test_the_story_reaches_its_end(watched: Watched, address: str) -> None:
    page = watched.open(address, mode="data", layout=layout(SMALL))
    steps = page.locator("[data-step]").count()
    for k in range(1, steps):
        page.click(".player button:nth-of-type(4)")
        assert page.locator(".player output").inner_text() == f"{k + 1}/{steps}"
        assert page.locator("[data-step][aria-current=step] .num").inner_text() == str(k + 1)


def test_a_row_of_the_best_layouts_is_loaded(watched: Watched, address: str) -> None:
    page = watched.open(address, mode="performance", layout=layout(SMALL))
    row = page.locator(".best tbody tr").first
    row.wait_for()
    step = row.locator("td").nth(8).inner_text()
    row.click()
    settle(page)
    assert page.locator(".waterfall .sum .num").first.inner_text() == step


@pytest.mark.parametrize("what", ["saveSvg", "savePng", "saveTrace"])
def test_a_drawing_is_saved(watched: Watched, address: str, tmp_path: Path, what: str) -> None:
    page = watched.open(address, mode="state", layout=layout(SMALL))
    with page.expect_download() as saved:
        page.select_option("[data-save]", what)
    path = tmp_path / saved.value.suggested_filename
    saved.value.save_as(path)
    content = path.read_bytes()
    if what == "saveTrace":
        spans = [event for event in json.loads(content)["traceEvents"] if event["ph"] == "X"]
        assert len(spans) == 2 * SMALL.pipe * SMALL.microbatches
    else:
        assert content.startswith({"saveSvg": b"<svg", "savePng": b"\x89PNG"}[what])


def test_a_and_b_are_compared(watched: Watched, address: str) -> None:
    page = watched.open(address, mode="performance", layout=layout(SMALL))
    page.click("[data-pin]")
    pick(page, "pipe", 1)
    page.wait_for_selector("table.compare")
    assert "pipe 2 → 1" in " ".join(page.locator(".difference").all_inner_texts())


# --- languages, accessibility, size ------------------------------------------------------------------


def test_both_languages_have_every_text(watched: Watched, address: str) -> None:
    texts = watched.open(address).evaluate("meshkit.texts")
    blanks = lambda text: sorted(part.split("}")[0] for part in text.split("{")[1:])
    for key, (english, chinese) in texts.items():
        assert english, key
        assert chinese, key
        assert blanks(english) == blanks(chinese), key


@pytest.mark.parametrize(("mode", "theme"), list(itertools.product(MODES, ("light", "dark"))))
def test_axe_finds_no_serious_fault(watched: Watched, address: str, mode: str, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed")
    page = watched.open(address, mode=mode, theme=theme)
    found = axe.Axe().run(page).response["violations"]
    serious = [v for v in found if v["impact"] in ("serious", "critical")]
    assert [(v["id"], [node["html"][:120] for node in v["nodes"][:4]]) for v in serious] == []


def test_4096_devices_stay_responsive(watched: Watched, address: str, record_property: pytest.FixtureRequest) -> None:
    large = Setting("llama3-405b", data=32, tensor=8, pipe=16, batch=2048, microbatches=64)
    page = watched.open(address, mode="architecture", layout=layout(large))
    for view in (0, 1):
        page.locator(".toolbar .segmented button").nth(view).click()
        times = []
        page.focus("canvas")
        for k in range(12):
            page.keyboard.press(("ArrowDown", "ArrowRight")[k % 2])
            times.append(float(page.locator("canvas").get_attribute("data-redraw-ms") or "nan"))
        record_property(f"redraw_ms_{view}", statistics.median(times))  # type: ignore[operator]
        assert statistics.median(times) < REDRAW_MS


def test_an_exported_page_needs_no_network(browser: "sync_api.Browser", tmp_path: Path) -> None:
    page_file = tmp_path / "page.html"
    boot = Boot(SMALL.query, [Preset("small", SMALL.query)], {})
    export.write(WORLD, boot, page_file)
    opened = Watched(browser, offline=True)
    for mode in MODES[:4]:
        opened.open(page_file.as_uri(), mode=mode)
    pick(opened.page, "microbatches", 8)
    found = resolve(WORLD, SMALL.but({"microbatches": 8})).estimate
    shown = opened.page.evaluate("meshkit.figures.value.step_seconds")
    assert shown == pytest.approx(found.step, rel=1e-5)
    opened.page.click("#value-model")
    away = opened.page.locator('[data-control=model] [role=option][data-value="llama3-8b"]')
    assert "not in this exported file" in away.inner_text()
    opened.page.close()
    assert opened.faults == []


def test_a_recorded_timeline_is_drawn_under_the_plan(browser: "sync_api.Browser", tmp_path: Path) -> None:
    names = [f"device {k}: data 0 tensor 0 pipe {k}" for k in range(2)]
    events: list[dict[str, object]] = [
        {"ph": "M", "pid": k, "name": "process_name", "args": {"name": name}} for k, name in enumerate(names)
    ]
    span = {"ph": "X", "cat": "actions", "tid": 1, "dur": 900.0}
    events += [span | {"pid": k, "name": f"F{k}", "ts": 1000.0 * k, "args": {"step": 0, "tick": k}} for k in range(2)]
    boot = Boot(SMALL.query, [], {}, {"traceEvents": events})
    serving = server(WORLD, boot)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    opened = Watched(browser)
    page = opened.open(f"http://127.0.0.1:{serving.server_port}/", mode="state")
    assert page.locator("[data-measured]").is_checked()
    assert json.loads(page.evaluate("JSON.stringify(meshkit.measured)"))["to"] == pytest.approx(1.9)
    opened.page.close()
    serving.shutdown()
    assert opened.faults == []
