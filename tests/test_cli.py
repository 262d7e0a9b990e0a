"""The command line: what it parses, what it prints, and its exit codes."""

import dataclasses
import io
import json
import logging
import os
import re
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
from rich.console import Console
from rich.style import Style
from rich.text import Text

from meshkit import __version__, cli
from meshkit.cli import main
from meshkit.config import RunConfig, keys, load
from meshkit.errors import MeshkitError
from meshkit.overrides import parse_value, split_overrides
from meshkit.overrides import words as spelled
from meshkit.pipeline.builders import build
from meshkit.pipeline.grid import parse
from meshkit.show.draw import STYLES, draw


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text('steps = 7\n[mesh]\ndata = 4\n[data]\ntext = ["here"]\n')
    return str(path)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[RunConfig]:
    """The configs that reached the trainer, which here trains nothing."""
    seen: list[RunConfig] = []

    def train(config: RunConfig, profile: int) -> types.SimpleNamespace:
        seen.append(config)
        print("progress")
        return types.SimpleNamespace(run_dir=tmp_path, history=[], summary={"loss": 1.5}, saved=True, preempted=False)

    monkeypatch.setitem(sys.modules, "meshkit.trainer", types.SimpleNamespace(train=train))
    return seen


@dataclasses.dataclass
class Report:
    ok: bool

    def print(self) -> None:
        print("a table")

    def to_json(self) -> str:
        return json.dumps({"ok": self.ok})


def meshkit(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "import sys; from meshkit.cli import main; sys.exit(main())", *words]
    return subprocess.run(program, capture_output=True, text=True, env=os.environ | env, timeout=200)


# --- overrides ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("mesh.data", "2", 2),
        ("mesh.data", "-1", -1),
        ("model.preset", "gpt2", "gpt2"),
        ("model.preset", '"gpt2"', "gpt2"),
        ("model.tied", "true", True),
        ("optimizer.clip_norm", "0.5", 0.5),
        ("optimizer.learning_rate", "3e-4", 3e-4),
        ("zero", "0", 0),
        ("pipeline.layers_per_stage", "even", "even"),
        ("pipeline.layers_per_stage", "[3, 1]", [3, 1]),
        ("run_dir", "2026", "2026"),
        ("run_dir", "2026-01-01", "2026-01-01"),
        ("data.text", "a.txt", ["a.txt"]),
        ("data.text", '["a.txt", "b.txt"]', ["a.txt", "b.txt"]),
        ("model.rope_scaling", "{factor = 4.0}", {"factor": 4.0}),
        ("model.rope_scaling.factor", "4.0", 4.0),
        ("model.options.anything", "[1, 2]", [1, 2]),
        ("model.preset", "gpt2\nx = 1", "gpt2\nx = 1"),
    ],
)
def test_values_are_toml_or_text(key: str, text: str, value: object) -> None:
    assert parse_value(key, text) == value
    assert type(parse_value(key, text)) is type(value)


def test_overrides_stand_anywhere_in_both_spellings(config: str, trained: list[RunConfig]) -> None:
    assert main(["train", "--mesh.data", "2", config, "--mesh.pipe=-1", "--model.rope_scaling.factor", "4"]) == 0
    [seen] = trained
    assert (seen.mesh.data, seen.mesh.pipe) == (2, -1)
    assert seen.model.rope_scaling is not None
    assert seen.model.rope_scaling.factor == 4


def test_defaults_then_file_then_overrides(config: str, trained: list[RunConfig]) -> None:
    main(["train", config, "--mesh.data", "2"])
    assert trained[0].mesh.data == 2
    assert trained[0].steps == 7
    assert trained[0].seed == RunConfig().seed


def test_a_wrong_key_gets_the_answer_of_a_wrong_file(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MeshkitError) as in_file:
        load(config, {"mehs": {"data": 2}})
    assert main(["train", config, "--mehs.data", "2"]) == 1
    assert capsys.readouterr().err == f"error: {in_file.value}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mesh.data", "two"], "mesh.data = 'two'"),
        (["--mesh.data", "0"], "mesh.data = 0: an axis has at least 1 device"),
        (["--mesh.dta", "2"], "did you mean 'mesh.data'"),
        (["--mesh.data"], "--mesh.data needs a value: --mesh.data VALUE\n"),
        (["--mesh.data", "--seed", "1"], "--mesh.data needs a value"),
        (["--jsn"], "did you mean '--json'"),
        (["--seed", "1", "--seed=2"], "--seed is given twice"),
    ],
)
def test_mistakes_say_what_to_mend(
    config: str, trained: list[RunConfig], capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["train", config, *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert said in err
    assert trained == []


def test_a_reader_that_leaves_ends_a_command_quietly() -> None:
    words = ["schedule", "1f1b", "--stages", "2", "--microbatches", "4", "--json"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "meshkit", *words], stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (cli.UNREAD, b"")


def test_own_options_are_no_overrides() -> None:
    assert split_overrides(["verify", "--full", "c.toml", "--json", "--seed", "1"]) == (
        ["verify", "--full", "c.toml", "--json"],
        {"seed": 1},
    )


# --- commands -----------------------------------------------------------------------------------


def test_help_of_train_lists_every_key_with_its_default_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for key, field in keys().items():
        assert f" --{key} " in text
        assert field.description
        assert field.description in text
    assert "--zero 0|1|2|3 " in text
    assert "--mesh.data INT Replicas" in text
    assert "(default: 0.0003)" in text


@pytest.mark.parametrize(
    "words",
    [
        *([], ["verify"], ["schedule"], ["demo"], ["data"], ["data", "prepare"], ["data", "show"]),
        *(["launch"], ["launch", "local"], ["launch", "slurm"], ["launch", "k8s"], ["launch", "fit"]),
    ],
)
def test_every_command_has_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {' '.join(['meshkit', *words])} ")


@pytest.mark.parametrize("words", [[], ["trian"], ["train"], ["data"], ["demo", "extra"], ["train", "c", "--full"]])
def test_wrong_usage_is_exit_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "usage: meshkit" in capsys.readouterr().err


def test_train_with_json_prints_only_json(
    config: str, trained: list[RunConfig], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", config, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"run_dir": str(tmp_path), "loss": 1.5}
    assert "progress" in err


@pytest.mark.parametrize("ok", [True, False])
def test_verify_exits_with_its_verdict(
    config: str, ok: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def verify(config: RunConfig, full: bool) -> Report:
        asked.append((config.mesh.data, full))
        return Report(ok)

    monkeypatch.setitem(sys.modules, "meshkit.equality.verify", types.SimpleNamespace(verify=verify))
    assert main(["verify", config, "--full", "--json", "--mesh.data", "2"]) == (0 if ok else 1)
    assert json.loads(capsys.readouterr().out) == {"ok": ok}
    assert main(["verify", config]) == (0 if ok else 1)
    assert capsys.readouterr().out == "a table\n"
    assert asked == [(2, True), (4, False)]


def test_demo_exits_1_when_a_cut_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshkit.demo.run_demo", lambda: Report(False))
    assert main(["demo"]) == 1


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_warning_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def warn() -> Report:
        warnings.warn("a tensor group leaves its node", stacklevel=2)
        return Report(True)

    monkeypatch.setattr("meshkit.demo.run_demo", warn)
    assert main(["demo"]) == 0
    assert capsys.readouterr().err == "warning: a tensor group leaves its node\n"


SIZE = ["--stages", "4", "--microbatches", "8"]


def test_a_plugin_that_finds_no_gpu_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["schedule", "1f1b", *SIZE])
    jax_says = logging.getLogger("jax._src.xla_bridge")
    try:
        raise RuntimeError("Unable to load CUDA. Is it installed?")
    except RuntimeError:
        jax_says.exception("Jax plugin configuration error: Exception when calling %s.initialize()", "xla_cuda12")
    said = "warning: JAX goes on without the devices of xla_cuda12: Unable to load CUDA. Is it installed?\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("words", "time", "slots"),
    [
        (["gpipe", *SIZE, "--costs", "F=1,B=2"], 33, {"inputs": 1, "kept": 8, "gradients": 8, "held": 0}),
        (["1f1b", *SIZE, "--costs", "F=2,B=4"], 33, {"inputs": 1, "kept": 7, "gradients": 1, "held": 0}),
        (["1f1b", *SIZE, "--overlap", "--recompute", "none"], 42, {"inputs": 1, "kept": 8, "gradients": 1, "held": 0}),
        (["1f1b", *SIZE, "--costs", "F=2,B=4,hop=1"], 40, None),
        (["1f1b", *SIZE, "--costs", "F=1,B=2,hop=0.5", "--overlap"], 42, None),
        (["interleaved", *SIZE, "--virtual", "2", "--recompute", "none"], 28.5, None),
        (["zero-bubble", *SIZE, "--costs", "F=1,I=1,W=1"], 30, {"inputs": 1, "kept": 7, "gradients": 1, "held": 4}),
        (["tests/grids/zigzag.txt", "--recompute", "none"], 22, {"inputs": 1, "kept": 2, "gradients": 2, "held": 0}),
    ],
)
def test_schedule_says_time_and_slots(
    words: list[str], time: float, slots: dict[str, int] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schedule", *words, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["lock_step"]["time"] == time
    assert shown["asynchronous"]["time"] <= time
    assert slots in (None, shown["slots"])
    assert len(shown["grid"]) == shown["stages"]
    assert main(["schedule", *words]) == 0
    printed = capsys.readouterr().out
    table = parse("\n".join(line for line in printed.splitlines() if re.match(r"[.F]\d* ", line)), "printed")
    assert [row.split() for row in str(table).splitlines()] == shown["grid"]
    assert f" {time:g} " in printed


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zero-bubble"])
def test_a_schedule_that_may_beat_the_ideal_says_of_what_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    virtual = ["--virtual", "2"] if name == "interleaved" else []
    assert main(["schedule", name, *SIZE, *virtual, "--recompute", "none"]) == 0
    printed = capsys.readouterr().out
    assert "ideal of 1F1B, m/(m+P−1)" in printed
    assert ("split no backward and do not interleave" in printed) == (name != "1f1b")


def test_schedule_says_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tick = tmp_path / "tick.txt"
    tick.write_text("F0+B0\n")
    assert main(["schedule", str(tick), "--model", "tiny", "--sequence", "64"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 stage, 1 microbatch; 1 tick F0+B0" in printed
    assert "meshkit plan --model tiny --cluster 64xh100 --mesh D,T,1 shows them" in printed


def test_schedule_counts_the_memory_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["--model", "llama3-8b", "--sequence", "2048", "--microbatch-size", "2", "--precision", "float32"]
    trace = tmp_path / "trace.json"
    assert main(["schedule", "1f1b", *SIZE, *model, "--trace", str(trace), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    memory, one = shown["memory"], 2 * 2048 * 4096 * 4
    assert shown["layers"] == [8] * 4
    assert memory["slot_bytes"]["kept"] == one
    assert memory["bytes"] == {"inputs": one, "kept": 7 * one, "gradients": one, "held": 0}
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 4 * 8 * 2


def test_uneven_layers_make_a_stage_slower(capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--stages", "3", "--microbatches", "16"]
    assert main(["schedule", "1f1b", *size, "--model", "tiny", "--sequence", "64", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["layers"] == [1, 1, 2]
    busy = shown["lock_step"]["busy"]
    assert busy[2] == pytest.approx(2 * busy[0])
    assert shown["lock_step"]["imbalance"][0] > 0


def test_layers_by_hand_change_ticks_bubble_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """Two stages of 3 and 1 layers, a layer's F = 1/2 of a mean stage's: the columns by hand."""

    def shown(*words: str) -> dict:
        size = ["--stages", "2", "--microbatches", "3"]
        assert main(["schedule", "1f1b", *size, "--costs", "F=1,B=2", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    even, uneven = shown(), shown("--layers-per-stage", "3,1")
    # F0 | F1 beside F0+B0 | F2+B0 beside F1+B1 | B1 beside F2+B2 | B2
    assert uneven["lock_step"]["time"] == 1.5 * (1 + 1 + 3 + 2 + 2)
    assert uneven["lock_step"]["bubble"] == pytest.approx(1 - 9 / 13.5)
    assert uneven["ideal_bubble"] == pytest.approx(1 - 9 / 13.5)  # the first stage is never idle
    assert even["ideal_bubble"] == 0.25
    assert (even["layers"], uneven["layers"]) == (None, [3, 1])
    model = ("--model", "tiny", "--sequence", "64", "--recompute", "none")
    peak = [shown(*model, *more)["memory"]["slot_bytes"]["kept"] for more in ((), ("--layers-per-stage", "3,1"))]
    assert peak[1] == 3 / 2 * peak[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["1f1c", *SIZE], "did you mean '1f1b'?"),
        (["1f1b"], "meshkit schedule 1f1b --stages 4 --microbatches 8"),
        (["1f1b", "--stages", "0", "--microbatches", "8"], "--stages 0: it is at least 1"),
        (["interleaved", "--stages", "4", "--microbatches", "6"], "set pipeline.microbatches to 4 or 8"),
        (["tests/grids/zigzag.txt", "--stages", "2", "--overlap"], "leave out --stages, --overlap"),
        (["tests/grids/zigzg.txt"], "meshkit schedule 'tests/grids/zigzg.txt': no such file; schedules without one: g"),
        (["tests/grids/zigzg.txt"], "did you mean 'zigzag.txt'? (in tests/grids)"),
        (["1f1b", *SIZE, "--costs", "F=1"], "has the kinds F, B: write, for example, F=1,B=1"),
        (["zero-bubble", *SIZE, "--costs", "F=1,B=2"], "has the kinds F, I, W"),
        (["1f1b", *SIZE, "--costs", "F=1,B=x"], "'B=x' is no cost"),
        (["1f1b", *SIZE, "--costs", "F=1,B=-1"], "'B=-1': a cost is from 1e-09 to 1e+09"),
        (["1f1b", *SIZE, "--costs", "F=1,B=nan"], "'B=nan': a cost is from"),
        (["1f1b", *SIZE, "--costs", "F=1,B=2,B=3"], "B has two costs"),
        (["1f1b", *SIZE, "--sequence", "64"], "--sequence is of a model: name one"),
        (["1f1b", *SIZE, "--layers-per-stage", "3,2"], "1f1b has 4 stages: write 4 numbers from 1 on, as 2,2,2,2"),
        (["1f1b", *SIZE, "--layers-per-stage", "3,2,2,x"], "write 4 numbers"),
        (["1f1b", *SIZE, "--layers-per-stage", "3,2,2,0"], "write 4 numbers"),
        (
            ["1f1b", *SIZE, "--layers-per-stage", "3,2,2,2", "--model", "tiny", "--sequence", "64"],
            "add up to model.layers = 4; for example [1, 1, 1, 1]",
        ),
        (["1f1b", *SIZE, "--grid", "mine"], "--grid mine: a grid's name ends in .txt"),
        (["gpipe", "--stages", "99999", "--microbatches", "99999"], "over 1,000,000 actions of a kind"),
        (
            ["mine"],
            "no such schedule, and a grid's file would end in .txt; known: 1f1b, gpipe, interleaved, zero-bubble",
        ),
        (["1f1b", *SIZE, "--model", "lama3-8b"], "did you mean 'llama3-8b'"),
        (["1f1b", *SIZE, "--model", "gpt2", "--sequence", "2048"], "exceeds the context of gpt2: 1024"),
        (["1f1b", *SIZE, "--model", "gpt2", "--microbatch-size", "0"], "--microbatch-size 0: it is at least 1"),
        (["1f1b", "--stages", "8", "--microbatches", "8", "--model", "tiny", "--sequence", "64"], "are too few for"),
        (["1f1b", *SIZE, "--trace", "no/such/folder.json"], "--trace no/such/folder.json: cannot be written"),
    ],
)
def test_mistakes_in_a_schedule_say_what_to_mend(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schedule", *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert said in err


@pytest.mark.parametrize("more", [[], ["--overlap"]])
def test_a_written_grid_is_read_as_the_same_schedule(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.txt"
    assert main(["schedule", "zero-bubble", *SIZE, *more, "--grid", str(file), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert main(["schedule", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) | {"schedule": "zero-bubble"} == made


@pytest.mark.parametrize("width", [30, 60, 200])
@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zero-bubble"])
def test_a_schedule_in_colour_fits_the_terminal_and_shows_every_action(name: str, width: int) -> None:
    table = build(name, 4, 12, 2 if name == "interleaved" else 1)
    out = io.StringIO()
    draw(table, Console(file=out, force_terminal=True, color_system="truecolor", width=width))
    lines = [Text.from_ansi(line) for line in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    styles = {Style.parse(style) for kind in table.kinds for style in STYLES[kind]}
    for stage in range(4):
        blocks = [
            line.plain[span.start : span.end].strip()
            for line in lines
            if line.plain.startswith(f"stage {stage} ")
            for span in line.spans
            if span.style in styles
        ]
        assert blocks == [str(action.microbatch) for _, s, action in table if s == stage]


def test_data_is_prepared_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"some text of {name}\n" * 20)
    out = str(tmp_path / "tokens")
    assert main(["data", "prepare", str(tmp_path), "--out", out, "--held-out", "0.5", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["files"] == 2
    assert main(["data", "show", out, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"folder": out, **made["header"]}
    assert main(["data", "show", out]) == 0
    tokens = shown["splits"]["train"]["tokens"]
    assert f"{tokens:,} tokens" in capsys.readouterr().out


def test_damaged_data_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("text " * 100)
    out = tmp_path / "tokens"
    assert main(["data", "prepare", str(tmp_path / "a.txt"), "--out", str(out)]) == 0
    (out / "train.bin").write_bytes(b"")
    assert main(["data", "show", str(out)]) == 1
    assert "train.bin" in capsys.readouterr().err


def test_ctrl_c_is_exit_130(config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*_: object) -> RunConfig:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load", stop)
    assert main(["train", config]) == 130
    assert capsys.readouterr().err == "interrupted: steps after the last checkpoint are lost; a SIGTERM saves\n"


# --- as a program -------------------------------------------------------------------------------


def test_program_says_its_version_without_jax() -> None:
    program = (
        "import sys; from meshkit.cli import main\ntry: main(['--version'])\nfinally: assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"meshkit {__version__}\n")


def test_program_draws_a_schedule_without_jax() -> None:
    words = ["schedule", "1f1b", *SIZE, "--model", "llama3-70b"]
    program = f"import sys; from meshkit.cli import main; main({words}); assert 'jax' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_program_has_no_traceback_for_a_mistake() -> None:
    done = meshkit("train", "nowhere.toml")
    assert done.returncode == 1
    assert done.stderr.startswith("error: nowhere.toml: no such config file")
    assert "Traceback" not in done.stderr


def test_program_simulates_the_devices_it_needs() -> None:
    done = meshkit("demo", "--json", JAX_NUM_CPU_DEVICES="1")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"]
    assert len(report["rows"][-1]["held"]) == 8


def test_train_says_that_devices_are_simulated(
    config: str, trained: list[RunConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", config, "--devices", "8"]) == 0
    assert "simulating 8 CPU devices" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--mesh.data=2", "--data.text=a b.txt", "--model.tied=true", "--optimizer.learning_rate=0.0003"],
        ['--data.text=["it\'s", "\\"here\\""]', "--run_dir=2026", "--model.rope_scaling.factor=4.0"],
    ],
)
def test_overrides_are_written_as_they_are_read(words: list[str]) -> None:
    _, overrides = split_overrides(words)
    assert split_overrides(spelled(overrides)) == ([], overrides)
