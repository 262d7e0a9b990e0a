"""A schedule as text: what is printed parses back, and a bad grid is refused where it is bad."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshkit.config import PipelineConfig
from meshkit.errors import MeshkitError
from meshkit.pipeline.builders import BUILDERS, build, from_config, one_f_one_b, zero_bubble
from meshkit.pipeline.grid import is_path, parse, read, unparse
from meshkit.pipeline.schedule import Schedule
from meshkit.pipeline.slots import allocate

GRIDS = Path(__file__).parents[1] / "grids"
schedules = st.from_type(Schedule)


# --- there and back ---------------------------------------------------------------------------


@given(schedules)
def test_text_is_the_whole_schedule(schedule: Schedule) -> None:
    assert parse(unparse(schedule), schedule.name) == schedule


@given(schedules)
def test_what_is_printed_parses(schedule: Schedule) -> None:
    """Without its header a table of long hops is one of short hops."""
    assert parse(str(schedule), schedule.name) == dataclasses.replace(schedule, hop=1)


@given(schedules, st.randoms(use_true_random=False))
def test_order_in_a_cell_blanks_and_comments_do_not_matter(schedule: Schedule, random: object) -> None:
    lines = []
    for line in unparse(schedule).splitlines():
        cells = ["+".join(reversed(cell.split("+"))) for cell in line.split()]
        lines += ["", "  # a remark", line if line.startswith("#") else "\t ".join(cells) + " # a stage"]
    assert parse("\r\n".join(lines), schedule.name) == schedule


@pytest.mark.parametrize("path", sorted(GRIDS.glob("*.txt")), ids=lambda path: path.name)
def test_example_grids_train(path: Path) -> None:
    table = read(path)
    config = PipelineConfig(
        schedule=str(path), microbatches=table.microbatches, virtual=table.chunks, overlap=table.hop > 1
    )
    assert from_config(config, table.stages) == table
    assert table.trains


def test_the_zigzag_keeps_two_microbatches_whatever_their_number() -> None:
    zigzag = read(GRIDS / "zigzag.txt")
    assert (zigzag.stages, zigzag.microbatches, zigzag.ticks) == (2, 4, 12)
    assert zigzag.in_flight().max(axis=0).tolist() == [2, 2]
    assert allocate(zigzag).kept == 2


# --- what is refused, and where ----------------------------------------------------------------

GOOD = "F0 F1    B0 B1\n.  F0+B0 F1+B1 .\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "g.txt: no rows: a schedule has a row of cells for each stage"),
        ("# only a remark\n", "g.txt: no rows"),
        (". .\n. .\n", "g.txt: it has no action: a table has F, or F and B, or F, I and W"),
        ("F0 B0 I0\n", "g.txt: line 1 (stage 0), column 3 (tick 2), cell 'I0': I0: a table that has B, F has no I"),
        (
            "\nF0 F1 B0 B1\n# between\n. F0+B0 F1+B1\n",
            "g.txt: line 4 has 3 cells and line 2 has 4: every stage has a cell for every tick",
        ),
        (
            GOOD.replace("F1+B1", "F1+C1"),
            "g.txt: line 2 (stage 1), column 3 (tick 2), cell 'F1+C1': 'C1' is no action: write F, B, I or W",
        ),
        (GOOD.replace("F1+B1", "F1B1"), "cell 'F1B1': 'F1B1' is no action"),
        (GOOD.replace("F1+B1", "F1+"), "cell 'F1+': '' is no action"),
        (GOOD.replace("F1 ", "F-1 "), "cell 'F-1': 'F-1' is no action"),
        (GOOD.replace("F1 ", "F1.x "), "cell 'F1.x': 'F1.x' is no action"),
        (GOOD.replace("F1 ", "F² "), "cell 'F²': 'F²' is no action"),
        (
            GOOD.replace("F0 F1 ", "F1 F0 "),
            "g.txt: line 2 (stage 1), column 2 (tick 1), cell 'F0+B0': F0: needs F0 of stage 0, chunk 0, at least",
        ),
        (
            "F0 B0 .\n.  F0 B0\n",
            "g.txt: line 1 (stage 0), column 2 (tick 1), cell 'B0': B0: needs B0 of stage 1, chunk 0, at least 1 tick",
        ),
        ("B0 F0\n", "g.txt: line 1 (stage 0), column 1 (tick 0), cell 'B0': B0: needs F0 of stage 0, chunk 0 first"),
        (
            "# hop 2\n" + GOOD,
            "cell 'F0+B0': F0: needs F0 of stage 0, chunk 0, at least 2 ticks before",
        ),
        (
            "F0+F1 B0 B1\n",
            "g.txt: line 1 (stage 0), column 1 (tick 0), cell 'F0+F1': F0: a cell has at most one action of a kind",
        ),
        ("F0 F0 B0\n", "g.txt: line 1 (stage 0), column 2 (tick 1), cell 'F0': F0: this action was done before"),
        ("F0 F1 B1\n", "g.txt: line 1 (stage 0): B0 is missing"),
        ("F0 F999999999\n", "g.txt: line 1 (stage 0): F1 is missing"),
        ("F0 F0.999999999\n", "cell 'F0.999999999': F0.999999999: needs F0 of stage 0, chunk 999999998, at least 1"),
        ("F0 F1000000000\n", "'F1000000000' is no action"),
        ("# hop 2\n" + GOOD + "\n# hop 1", "'# hop 1': line 1 says it already: say it once"),
        ("# hop 3\n" + GOOD, "g.txt: line 1: '# hop 3': write '# hop 1' or '# hop 2'"),
        ("#hop\n" + GOOD, "g.txt: line 1: '#hop': write '# hop 1' or '# hop 2'"),
    ],
)
def test_a_bad_grid_is_refused_at_its_cell(text: str, said: str) -> None:
    with pytest.raises(MeshkitError, match=f"^{re.escape(said)}" if said.startswith("g.txt") else re.escape(said)):
        parse(text, "g.txt")


@given(schedules, st.data())
def test_a_deleted_action_is_refused_with_its_name_or_a_place(schedule: Schedule, data: st.DataObject) -> None:
    tick, stage, action = data.draw(st.sampled_from(list(schedule)))
    others = {(s, a.kind, a.microbatch, a.chunk) for _, s, a in schedule} - {(stage, *action)}
    # Without it the rest is still a table of as many microbatches and chunks, and of the same kinds.
    assume({kind for _, kind, _, _ in others} == set(schedule.kinds))
    assume(max(i for _, _, i, _ in others) == schedule.microbatches - 1)
    assume(max(chunk for *_, chunk in others) == schedule.chunks - 1)
    rows = [row.split() for row in str(schedule).splitlines()]
    rows[stage][tick] = "+".join(word for word in rows[stage][tick].split("+") if word != str(action)) or "."
    where = r"g\.txt: line \d+ \(stage \d+\)(: \w+(\.\d+)? is missing$|, column \d+ \(tick \d+\), cell '.+': .+ needs )"
    with pytest.raises(MeshkitError, match=where):
        parse("\n".join(map(" ".join, rows)), "g.txt")


# --- from the config ---------------------------------------------------------------------------


def written(tmp_path: Path, schedule: Schedule) -> str:
    path = tmp_path / "grid.txt"
    path.write_text(unparse(schedule), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_builders_table_from_a_file_is_the_same_table(name: str, tmp_path: Path) -> None:
    built = build(name, 2, 4, 2 if name == "interleaved" else 1)
    config = PipelineConfig(schedule=written(tmp_path, built), microbatches=4, virtual=built.chunks)
    assert dataclasses.replace(from_config(config, 2), name=built.name) == built


@pytest.mark.parametrize(
    ("asked", "stages", "said"),
    [
        ({}, 4, "has 2 stages and mesh.pipe = 4: set mesh.pipe to 2"),
        ({"microbatches": 8}, 2, "has 4 microbatches and pipeline.microbatches = 8: set pipeline.microbatches to 4"),
        ({"virtual": 2}, 2, "has 1 chunks a stage and pipeline.virtual = 2: set pipeline.virtual to 1"),
        (
            {"overlap": True},
            2,
            "has 1 ticks a hop ('# hop') and pipeline.overlap = true: set pipeline.overlap to false",
        ),
    ],
)
def test_a_table_for_another_mesh_is_refused_with_the_numbers(
    asked: dict, stages: int, said: str, tmp_path: Path
) -> None:
    file = written(tmp_path, one_f_one_b(2, 4))
    with pytest.raises(MeshkitError, match=re.escape(f"{file} {said}")):
        from_config(PipelineConfig(**{"schedule": file, "microbatches": 4} | asked), stages)


def test_long_hops_want_the_configs_word(tmp_path: Path) -> None:
    config = PipelineConfig(schedule=written(tmp_path, zero_bubble(2, 4, hop=2)), microbatches=4)
    assert from_config(config.model_copy(update={"overlap": True}), 2).hop == 2
    with pytest.raises(MeshkitError, match="set pipeline.overlap to true"):
        from_config(config, 2)


def test_forwards_alone_do_not_train(tmp_path: Path) -> None:
    file = tmp_path / "forward.txt"
    file.write_text("F0 F1\n")
    with pytest.raises(MeshkitError, match=r"forward.txt has no backwards"):
        from_config(PipelineConfig(schedule=str(file), microbatches=2), 1)


def test_a_missing_or_unreadable_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "zigzag.txt").write_text(GOOD)
    (tmp_path / "zigzg2.txt").write_text("This is no schedule, and not offered as one.")
    said = (
        r"pipeline.schedule = '.*zigzg.txt': no such file; schedules without one: gpipe, 1f1b, interleaved, zero-bubble"
    )
    with pytest.raises(MeshkitError, match=rf"{said}; did you mean 'zigzag.txt'\? \(in .*\)$"):
        from_config(PipelineConfig(schedule=str(tmp_path / "zigzg.txt")), 2)
    with pytest.raises(MeshkitError, match=r"none/grid.txt': no such file; schedules without one: .*zero-bubble$"):
        from_config(PipelineConfig(schedule=str(tmp_path / "none" / "grid.txt")), 2)
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(MeshkitError, match=r"bytes.txt: cannot be read as a schedule"):
        read(tmp_path / "bytes.txt")
    with pytest.raises(MeshkitError, match=r"cannot be read as a schedule"):
        read(tmp_path)


def test_names_and_paths() -> None:
    assert [name for name in BUILDERS if is_path(name)] == []
    assert all(map(is_path, ["grid.txt", "grids/zigzag", "./1f1b", "C:\\grid"]))
