"""What the page in a real Chromium writes and reads: saved drawings and traces, exported pages, files of one's own."""

import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image, ImageChops, ImageStat

from meshkit.pipeline import builders, grid
from meshkit.view import command, export, schedules
from meshkit.view.page_file import Boot, Preset
from meshkit.view.setting import resolve
from meshkit.view.world import World
from tests.view.chromium import MODES, SMALL, WORLD, Seen, address, browser, pick, seen, serve, shared

__all__ = ["address", "browser", "seen", "shared"]  # fixtures


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
