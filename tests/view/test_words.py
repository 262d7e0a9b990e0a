"""Every sentence of Python's that can reach the page is there in both of its languages."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.errors import MeshkitError
from meshkit.mesh import MeshShape, placement_warning
from meshkit.pipeline import builders, grid
from meshkit.planner import explain, search
from meshkit.planner.hardware import CATALOGUE
from meshkit.planner.layout import Job
from meshkit.view import payload
from meshkit.view.choices import VALUES, choices
from meshkit.view.setting import LESSONS, PRESETS_OF_THE_PAGE, Setting, parse, resolve
from meshkit.view.words import SENTENCES, Text, said
from meshkit.view.world import Kind, World

WORLD = World.of(clusters={"own.toml": Kind.own(World.of().clusters["h100"].take(64))})
CHINESE = re.compile(r"[\u4e00-\u9fff]")
ANY = {name: st.sampled_from(values) for name, values in VALUES.items()}
ODD = {name: st.integers(0, 200) for name in ("data", "tensor", "pipe", "virtual", "microbatches", "zero", "batch")}
WRONG = ("date=8", "data=two", "dta=8", "zzz=8", "data=", "data=2&data=4")


def is_told(text: Text) -> bool:
    """In Chinese, with every number of the English."""
    numbers = lambda words: sorted(re.findall(r"\d+", words))
    return bool(CHINESE.search(text.zh)) and numbers(text.en) == numbers(text.zh)


@pytest.mark.parametrize("name", PRESETS_OF_THE_PAGE | LESSONS)
@pytest.mark.parametrize("cluster", ["h100", "own.toml"])
def test_reasons_of_refused_choices(name: str, cluster: str) -> None:
    setting = (PRESETS_OF_THE_PAGE | LESSONS)[name].but({"cluster": cluster})
    for offered in choices(WORLD, setting).values():
        for choice in offered:
            assert choice.reason is None or is_told(choice.reason), choice.reason


@settings(deadline=None, max_examples=400)
@given(
    st.builds(
        Setting,
        model=st.sampled_from([*WORLD.models, "llama9"]),
        cluster=st.sampled_from([*WORLD.clusters, "h1000"]),
        schedule=st.sampled_from([*WORLD.schedules, "mine.txt"]),
        layers=st.sampled_from(["balanced", "40,40", "1,2,3", "a"]),
        **ANY | {name: ANY[name] | odd for name, odd in ODD.items()},
    )
)
def test_reasons_of_any_setting(setting: Setting) -> None:
    reason = ""
    try:
        resolve(WORLD, setting)
    except MeshkitError as error:
        reason = str(error)
    assert not reason or is_told(said(reason))


@pytest.mark.parametrize("query", WRONG)
def test_reasons_of_a_wrong_query(query: str) -> None:
    with pytest.raises(MeshkitError) as refused:
        parse(query)
    assert is_told(said(str(refused.value)))


def test_the_warning_of_a_placement() -> None:
    warning = placement_warning(MeshShape(data=1, tensor=16, pipe=1), [k // 8 for k in range(16)])
    assert warning is not None
    assert is_told(said(warning))


def test_why_there_is_no_best_layout() -> None:
    job = Job("tiny", WORLD.models["tiny"], 8, 128)
    with pytest.raises(MeshkitError) as refused:
        search.search(job, WORLD.clusters["h100"].take(8 * 37))
    assert is_told(said(str(refused.value)))


TERMS = re.compile(r"(recompute|zero|overlap) \w+|1f1b|zero-bubble|interleaved v=\d|D=\d+, T=\d+, P=\d+")
"""What would help, in words that are the field's own."""


BY_HAND = Setting(pipe=4, overlap="true", layers="19,20,20,21", microbatches=16, batch=128)


@pytest.mark.parametrize("setting", [*PRESETS_OF_THE_PAGE.values(), *LESSONS.values(), BY_HAND])
def test_what_would_help_and_the_arithmetic(setting: Setting) -> None:
    found = resolve(WORLD, setting).estimate
    for what, _ in explain.neighbours(found):
        assert TERMS.fullmatch(what) or is_told(said(what)), what
    *terms, (_, _, bubble, _) = explain.arithmetic(found)
    assert is_told(said(bubble))
    for name, _, how, _ in terms:
        assert "hidden" not in how or is_told(said(how)), name


def test_reasons_around_a_grid_and_layers_of_ones_own(tmp_path: Path) -> None:
    file = str(tmp_path / "mine.txt")
    Path(file).write_text(grid.unparse(builders.build("1f1b", 2, 64, hop=2)))
    world = World.of(schedules=[file], layers=["30,50"])
    own = Setting(schedule=file, overlap="true", layers="30,50")
    away = Setting(pipe=4, schedule="interleaved", virtual=2, microbatches=16)
    reasons = [c.reason for setting in (own, away) for offered in choices(world, setting).values() for c in offered]
    assert sum(reason is not None and file in reason.en for reason in reasons) > len(VALUES["microbatches"])
    for reason in reasons:
        assert reason is None or is_told(reason), reason


def test_where_figures_come_from() -> None:
    for device in CATALOGUE.values():
        assert "; " not in device.source or is_told(said(device.source)), device.source


def test_what_is_in_no_sentence_stays_as_it_is() -> None:
    assert said("something else: 3") == Text("something else: 3", "something else: 3")


def test_chinese_takes_over_the_blanks_of_the_english() -> None:
    blanks = lambda words: set(re.findall(r"\{(\w+)\}", words))
    for sentence in SENTENCES:
        for english, chinese in sentence:
            assert blanks(chinese) <= blanks(english), english


def test_a_part_has_no_text_in_one_language_only() -> None:
    story = payload.plain(payload.PARTS["story"](resolve(WORLD, Setting())))
    for step in story:
        words = re.findall(r"[a-z]\w\w+", step["shape"]["en"])
        assert set(words) <= {"tokens", "float32", "bfloat16"} or CHINESE.search(step["shape"]["zh"]), step
