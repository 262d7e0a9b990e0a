"""What the page's controls may say, and what happens to a choice."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.errors import MeshkitError
from meshkit.pipeline import builders, grid
from meshkit.view import devices
from meshkit.view.choices import VALUES, adapted, choices
from meshkit.view.payload import PARTS, plain
from meshkit.view.performance import diagnosis, figures
from meshkit.view.schedules import table
from meshkit.view.setting import LESSONS, PRESETS_OF_THE_PAGE, Case, Setting, parse, resolve
from meshkit.view.world import World

WORLD = World.of()
SINGLE = Setting("tiny", data=1, tensor=1, pipe=1, microbatches=1, batch=8, sequence=128)
NAMED = PRESETS_OF_THE_PAGE | LESSONS | {"single": SINGLE}


def any_setting() -> st.SearchStrategy[Setting]:
    return st.builds(
        Setting,
        **{name: st.sampled_from(values) for name, values in VALUES.items()},
        model=st.sampled_from(list(WORLD.models)),
        schedule=st.sampled_from(WORLD.schedules),
        cluster=st.sampled_from(list(WORLD.clusters)),
    )


@given(any_setting())
def test_a_query_says_the_whole_setting(setting: Setting) -> None:
    assert parse(setting.query) == setting


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("date=8", "no such control; did you mean 'data'"),
        ("data=two", "it is a whole number"),
        ("data=-1", "it is a whole number up to 1000000"),
        ("data=", "it is a whole number"),
        ("overlaps=true", "no such control; did you mean 'overlap'"),
        ("data=4&data=8", "data = 8: it is said twice"),
    ],
)
def test_a_wrong_query_is_said(query: str, message: str) -> None:
    with pytest.raises(MeshkitError, match=message):
        parse(query)


def test_a_table_too_long_to_draw_is_said() -> None:
    long = dataclasses.replace(Setting(), pipe=2, data=8, tensor=4, microbatches=40_000, batch=320_000)
    with pytest.raises(MeshkitError, match="draws 65536 forwards at most, and these are 80000"):
        table(resolve(WORLD, long))


@pytest.mark.parametrize("name", NAMED)
def test_named_settings_are_legal(name: str) -> None:
    case = resolve(WORLD, NAMED[name])
    assert case.cluster.devices == case.setting.mesh.devices
    assert case.layout.microbatch * case.layout.microbatches * case.setting.data == case.setting.batch


@pytest.mark.parametrize("name", PRESETS_OF_THE_PAGE)
def test_presets_fit(name: str) -> None:
    assert resolve(WORLD, NAMED[name]).estimate.fits


@pytest.mark.parametrize("name", NAMED)
def test_every_choice_is_legal_or_has_its_reason(name: str) -> None:
    setting = NAMED[name]
    for control, offered in choices(WORLD, setting).items():
        assert getattr(setting, control) in [choice.value for choice in offered]
        for choice in offered:
            if choice.reason:
                with pytest.raises(MeshkitError) as refused:
                    resolve(WORLD, setting.but({control: choice.value}))
                # The reason is the plain change's own, unless another control had to follow first.
                assert control in ("schedule", "virtual", "model") or choice.reason.en == str(refused.value)
                assert not choice.change
            else:
                new = resolve(WORLD, setting.but(choice.change))
                assert getattr(new.setting, control) == choice.value
                assert choice.fits == new.estimate.fits


@settings(deadline=None, max_examples=60)
@given(any_setting(), st.sampled_from(list(VALUES)), st.data())
def test_a_change_changes_no_more_than_it_must(setting: Setting, control: str, data: st.DataObject) -> None:
    value = data.draw(st.sampled_from(VALUES[control]))
    try:
        before = resolve(WORLD, setting).setting
        after = adapted(WORLD, setting, control, value).setting
    except MeshkitError:
        return
    assert getattr(after, control) == value
    may_follow = {"microbatches", "schedule", "virtual", control}
    differing = {f.name for f in dataclasses.fields(after) if getattr(after, f.name) != getattr(before, f.name)}
    assert differing <= may_follow
    try:
        resolve(WORLD, before.but({control: value}))
    except MeshkitError:
        return
    # What is legal as it is stays as it is; but a schedule of chunks comes with chunks, and takes them along.
    assert differing <= {control} | ({"virtual", "schedule"} if control in ("schedule", "virtual") else set())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tensor": 16}, "model.kv_heads = 8 does not split into mesh.tensor = 16"),
        ({"pipe": 81}, "model.layers = 80 are too few for mesh.pipe = 81"),
        ({"microbatches": 48}, "data.batch = 512 does not split"),
        ({"schedule": "interleaved", "virtual": 2, "pipe": 3, "batch": 512}, "not a multiple of mesh.pipe = 3"),
        ({"tensor": 1, "pipe": 3, "data": 4, "microbatches": 32}, "take 8 or 16 devices"),
        ({"zero": 4}, "zero = 4: it is one of 0, 1, 2, 3"),
        ({"data": 0}, "data = 0: it is at least 1"),
        ({"data": 100_000}, "takes 800000 devices: this page draws 65536 at most"),
        ({"model": "llama9"}, "no such model; known: "),
        ({"schedule": "mine.txt"}, "no such schedule; known: "),
        ({"overlap": "yes"}, "overlap = yes: it is one of false, true"),
        ({"overlap": "true", "pipe": 4, "schedule": "interleaved", "virtual": 2}, "does not go with the interleaved"),
        ({"layers": "40;40"}, "layers = 40;40: it is balanced, or layers of each stage, as 3,2,2,1"),
        ({"layers": "40,41"}, r"layers_per_stage = \[40, 41\]: it takes 2 numbers .* add up to model.layers = 80"),
    ],
)
def test_what_is_not_legal_says_why(change: dict[str, int | str], reason: str) -> None:
    with pytest.raises(MeshkitError, match=reason):
        resolve(WORLD, Setting().but(change))


# --- a schedule, a cut and an overlap of the user's own -----------------------------------------------


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A grid's file of 4 stages, 6 microbatches and hops of two ticks, with layers cut by hand."""
    file = tmp_path_factory.mktemp("grids") / "mine.txt"
    file.write_text(grid.unparse(builders.build("zero-bubble", 4, 6, hop=2)))
    setting = Setting("tiny", data=2, tensor=1, pipe=4, schedule=str(file), microbatches=6, batch=24, sequence=128)
    world = World.of(dataclasses.replace(WORLD.models["tiny"], layers=6), schedules=[str(file)], layers=["2,1,1,2"])
    return resolve(world, setting.but({"model": "config", "overlap": "true", "layers": "2,1,1,2"}))


def test_a_grid_of_ones_own_is_in_every_part_of_the_page(mine: Case) -> None:
    alike = resolve(mine.world, mine.setting.but({"schedule": "zero-bubble"}))
    assert parse(mine.setting.query) == mine.setting
    named = lambda case: plain(table(case)) | {"name": ""}
    assert named(mine) == named(alike)
    assert figures(mine.estimate) == figures(alike.estimate)
    for name in ("mesh", "weights", "story"):
        assert PARTS[name](mine) == PARTS[name](alike), name
    drawn = table(mine)
    assert str(mine.layout.table.schedule) == Path(mine.setting.schedule).read_text().partition("\n")[2].rstrip("\n")
    assert (drawn.stages, drawn.microbatches, drawn.ticks) == (4, 6, 18)
    assert [len(range(*chunk)) for [chunk] in devices.mesh(mine).layers] == [2, 1, 1, 2]


def test_what_a_grid_has_not_cannot_be_chosen(mine: Case) -> None:
    offered = choices(mine.world, mine.setting)
    file = mine.setting.schedule
    for control, said in (
        ("pipe", f"{file} has 4 stages and mesh.pipe = 2: set mesh.pipe to 4"),
        ("microbatches", f"{file} has 6 microbatches and pipeline.microbatches = 12: set pipeline.microbatches to 6"),
        ("virtual", f"{file} has 1 chunks a stage and pipeline.virtual = 2: set pipeline.virtual to 1"),
        ("overlap", f"{file} has 2 ticks a hop ('# hop') and pipeline.overlap = false: set pipeline.overlap to true"),
    ):
        reasons = [choice.reason.en for choice in offered[control] if choice.reason]
        others = [choice.value for choice in offered[control] if not choice.reason]
        assert others == [getattr(mine.setting, control)]
        assert said in reasons
    by_value = {choice.value: choice for choice in offered["schedule"]}
    assert by_value["1f1b"].change == {"schedule": "1f1b"}
    away = resolve(mine.world, mine.setting.but({"schedule": "gpipe", "overlap": "false", "microbatches": 3}))
    [back] = [choice for choice in choices(mine.world, away.setting)["schedule"] if choice.value == file]
    assert back.change == {"schedule": file, "overlap": "true", "microbatches": 6}
    fewer = away.setting.but({"pipe": 2, "layers": "balanced"})
    [lost] = [choice for choice in choices(mine.world, fewer)["schedule"] if choice.value == file]
    assert lost.reason is not None
    assert "has 4 stages and mesh.pipe = 2" in lost.reason.en


def test_layers_by_hand_can_be_chosen_and_left(mine: Case) -> None:
    by_value = {choice.value: choice for choice in choices(mine.world, mine.setting)["layers"]}
    assert by_value["balanced"].change == {"layers": "balanced"}
    assert diagnosis(mine).kind
