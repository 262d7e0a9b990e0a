"""An interrupted run goes on as if it had not been: what is restored, refused, kept, repaired and said."""

import asyncio
import errno
import fcntl
import gc
import json
import resource
import shutil
import threading
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath

import meshkit
from meshkit import assemble, run_folder, trainer
from meshkit.checkpoint import find, seal, store
from meshkit.checkpoint.record import Record
from meshkit.cli import main
from meshkit.config import CheckpointConfig, RunConfig
from meshkit.data.loader import Loader
from meshkit.errors import MeshkitError
from meshkit.train_step import TrainStep
from meshkit.trainer import Result
from tests.small_run import BATCH, CONFIG, STEPS, curve, logged, saved, write_text

OF_A_RUN = {"run_dir", "resume", "checkpoint", "evaluate_every", "log_every"}
"""Keys that the compiled step does not depend on."""

Train = Callable[..., Result]


@pytest.fixture(scope="module")
def one_step_for_all() -> Iterator[None]:
    """Runs with the same config, whatever their folders, share the jitted functions of one TrainStep."""
    made: dict[str, TrainStep] = {}
    make, compile_step = assemble.train_step, TrainStep.compile
    compiled: dict[int, Any] = {}

    def train_step(config: RunConfig, *rest: Any) -> TrainStep:
        key = config.model_dump_json(exclude=OF_A_RUN) + repr(rest[1:])
        if key not in made:
            made[key] = make(config, *rest)
        return made[key]

    def compile_once(step: TrainStep, *arguments: Any) -> Any:
        if id(step) not in compiled:
            compiled[id(step)] = compile_step(step, *arguments)
        return compiled[id(step)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "train_step", train_step)
        patch.setattr(TrainStep, "compile", compile_once)
        yield


@pytest.fixture(scope="module")
def train(one_step_for_all: None, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """`meshkit.train` of the config above, on 8 replicas, with other values for some keys."""
    text = write_text(tmp_path_factory.mktemp("text"))

    def run(folder: Path, **overrides: Any) -> Result:
        base = tomllib.loads(CONFIG) | {"mesh": {"data": 8}}
        return meshkit.train(base, run_dir=str(folder), **({"data.text": [str(text)]} | overrides))

    return run


@pytest.fixture(scope="module")
def whole(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run that nothing interrupted, with the checkpoints 4, 8 and 12."""
    return train(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def cut(whole: Result, tmp_path: Path) -> Path:
    """The folder of that run as if it had ended after step 10: it logged until then, and its last checkpoint is 8."""
    folder = tmp_path / "run"
    shutil.copytree(whole.run_dir, folder)
    shutil.rmtree(folder / "checkpoints" / "12")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:10]) + lines[10][:7])
    return folder


def assert_goes_on_like(result: Result, whole: Result) -> None:
    """The same curve and state to the last bit, each step logged once."""
    assert curve(result.history) == curve(whole.history) == curve(logged(result.run_dir))
    for got, want in zip(jax.tree.leaves(result.state), jax.tree.leaves(whole.state), strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


# --- going on -----------------------------------------------------------------------------------


def test_on_the_same_mesh_to_the_last_bit(train: Train, cut: Path, whole: Result, capfd: Any) -> None:
    result = train(cut)
    assert_goes_on_like(result, whole)
    assert result.saved
    assert saved(cut) == [4, 8, 12]
    assert f"goes on after step 8 from {cut}/checkpoints/8\n" in capfd.readouterr().out


def test_on_another_mesh_and_schedule_to_rounding(train: Train, cut: Path, whole: Result, capfd: Any) -> None:
    mesh, pipeline = {"data": 2, "tensor": 2, "pipe": 2}, {"microbatches": 4, "schedule": "gpipe"}
    result = train(cut, mesh=mesh, pipeline=pipeline, zero=3)
    for record, expected in zip(curve(result.history), curve(whole.history), strict=True):
        assert record == pytest.approx(expected, rel=1e-5)
    assert "mesh.data = 8 then and 2 now" in capfd.readouterr().out


def test_more_steps_of_another_batch_size_go_on_where_the_data_were_left(
    train: Train, cut: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    asked, read = set(), Loader.read

    def noticed(self: Loader, number: int, rows: range) -> Any:
        if self.samples > 100:  # of training
            asked.update(self._start + number * 2 * BATCH + row for row in rows)
        return read(self, number, rows)

    monkeypatch.setattr(Loader, "read", noticed)
    result = train(cut, steps=STEPS + 2, **{"data.batch": 2 * BATCH})
    assert [record["step"] for record in result.history] == list(range(1, STEPS + 3))
    end = 8 * BATCH + 6 * 2 * BATCH
    assert Record.read(epath.Path(cut) / "checkpoints" / "14").samples == end
    # Read ahead by some batches, but from where the run of the other batch size had come to.
    assert asked >= set(range(8 * BATCH, end))
    assert min(asked) == 8 * BATCH
    out = capfd.readouterr().out
    assert "steps = 12 then and 14 now" in out
    assert "data.batch = 16 then and 32 now" in out


def test_a_finished_run_has_nothing_left_to_do(train: Train, whole: Result, capfd: Any) -> None:
    before = saved(whole.run_dir)
    result = train(whole.run_dir)
    assert_goes_on_like(result, whole)
    assert result.saved
    assert result.summary["held_out_loss"] == whole.summary["held_out_loss"]
    assert "nothing is left to do: 12 steps are done and steps = 12; raise it" in capfd.readouterr().out
    assert saved(whole.run_dir) == before


def test_never_begins_anew_beside(train: Train, cut: Path, whole: Result) -> None:
    result = train(cut, resume="never")
    assert result.run_dir == cut.with_name("run-2")
    assert_goes_on_like(result, whole)
    assert saved(cut) == [4, 8]


def test_another_runs_checkpoint_is_a_place_to_begin(train: Train, cut: Path, whole: Result, tmp_path: Path) -> None:
    result = train(tmp_path / "other", resume=str(cut / "checkpoints" / "4"))
    assert_goes_on_like(result, whole)
    assert result.run_dir == tmp_path / "other"
    # The run's own checkpoints count from then on, as after a requeue.
    shutil.rmtree(tmp_path / "other" / "checkpoints" / "12")
    assert_goes_on_like(train(tmp_path / "other", resume=str(cut / "checkpoints" / "4")), whole)
    assert saved(cut) == [4, 8]


def test_weights_alone_begin_a_new_training(train: Train, cut: Path, whole: Result, tmp_path: Path) -> None:
    assert main(["checkpoint", "convert", str(whole.run_dir), "--out", str(tmp_path / "w"), "--weights"]) == 0
    result = train(tmp_path / "run2", resume=str(tmp_path / "w"))
    assert int(result.state["step"]) == STEPS
    assert [record["step"] for record in result.history] == list(range(1, STEPS + 1))
    assert result.history[0]["loss"] == pytest.approx(whole.history[-1]["loss"], rel=0.1)


def test_what_shall_stay_is_saved(train: Train, tmp_path: Path) -> None:
    train(tmp_path / "run", checkpoint={"every": ["30 min"], "keep": ["best 1", "every 5"]}, evaluate_every=3)
    assert saved(tmp_path / "run") == [5, 10, 12], "multiples of 5, and the last, which is the best too"


def test_when_a_save_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(store, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    config = CheckpointConfig(every=["2 min", "10 steps"], keep=["last 1", "every 7"])
    with store.Checkpoints(epath.Path(tmp_path), config, lambda text: None) as checkpoints:
        assert [step for step in range(1, 31) if checkpoints.due(step, logged=True)] == [7, 10, 14, 20, 21, 28, 30]
        now[0] = 119.0
        assert not checkpoints.due(1, logged=True)
        now[0] = 120.0
        assert checkpoints.due(1, logged=True)
        assert not checkpoints.due(1, logged=False), "the clock is looked at when the host waits anyway"
        checkpoints.save({"x": np.zeros(2)}, Record(step=1, samples=0, model={}, data={}, config={}), [])
        assert not checkpoints.due(2, logged=True)
        now[0] = 240.0
        assert checkpoints.due(2, logged=True)


# --- what does not go together ------------------------------------------------------------------

DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "size": ({"model.mlp_width": 32}, "model.mlp_width = 16 then and 32 now"),
    "tied": ({"model.tied": True}, "model.tied = False then and True now"),
    "what shapes do not show": ({"model.rope_theta": 5e5}, "model.rope_theta = 10000.0 then and 500000.0 now"),
    "optimizer": ({"optimizer.name": "muon"}, "optimizer.name = 'adamw' then and 'muon' now"),
    "seed": ({"seed": 1}, "seed = 0 then and 1 now"),
    "sequence": ({"data.sequence": 8}, "data.sequence = 16 then and 8 now"),
    "held out": ({"data.held_out": 0.3}, "the training data = .* then and .* now"),
    "precision": ({"precision": "float64"}, r"is float32 \[.*\] then and float64 \[.*\] now"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_another_model_optimizer_or_data_is_refused_by_name(what: str, train: Train, cut: Path) -> None:
    overrides, message = DIFFERENT[what]
    before = (cut / "metrics.jsonl").read_text(), (cut / "config.toml").read_text()
    with pytest.raises(MeshkitError, match=message) as caught:
        train(cut, **overrides)
    assert "set them back, choose another run_dir, or set resume = 'never'" in str(caught.value)
    assert (before, saved(cut)) == (((cut / "metrics.jsonl").read_text(), (cut / "config.toml").read_text()), [4, 8])


def test_a_path_without_checkpoints_is_named(train: Train, tmp_path: Path) -> None:
    with pytest.raises(MeshkitError, match="nowhere: no checkpoint, no folder of checkpoints and no run that has any"):
        train(tmp_path / "run", resume=str(tmp_path / "nowhere"))


# --- damage -------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def linked_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


DAMAGE = {
    "flipped": flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
    "removed": lambda path: path.unlink(),
    "a folder": made_a_folder,
    "a dead link": linked_to_nothing,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_no_damaged_file_is_loaded(damage: str, whole: Result, tmp_path: Path) -> None:
    """Every file of a checkpoint in turn: found and shown, and the checkpoint before it taken."""
    original = whole.run_dir / "checkpoints"
    names = [path.relative_to(original / "12") for path in sorted((original / "12").rglob("*")) if path.is_file()]
    assert len(names) > 10
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        for step in ("8", "12"):
            shutil.copytree(original / step, folder / step)
        DAMAGE[damage](folder / "12" / name)
        said: list[str] = []
        found = find.newest_whole(epath.Path(folder), said.append)
        assert found == epath.Path(folder) / "8", name
        assert len(said) == 1
        assert str(name) in said[0]
        assert f"{folder}/12 is damaged" in said[0]
        assert seal.size(epath.Path(folder) / "12.damaged") > 0
        assert sorted(path.name for path in folder.iterdir()) == ["12.damaged", "8"]
        shutil.rmtree(folder)


def test_a_commit_that_was_not_sealed_is_no_damage(train: Train, cut: Path, whole: Result) -> None:
    """As where the process ended between Orbax's commit and its seal; nothing is loaded from what it guards."""
    folder = epath.Path(cut / "checkpoints" / "8")
    for name in {*seal.OF_ORBAX, seal.MANIFEST}:
        (folder / name).unlink()
    seal.seal(folder)
    assert_goes_on_like(train(cut), whole)


def test_what_another_run_is_writing_is_not_judged(train: Train, cut: Path) -> None:
    (cut / "checkpoints" / "8" / seal.MANIFEST).unlink()
    with (cut / run_folder.LOCK_FILE).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(MeshkitError, match="trains there, and two runs would mix their files"):
            train(cut)
    assert saved(cut) == [4, 8]


def test_a_checkpoint_under_the_name_of_another_step_is_not_taken(cut: Path) -> None:
    folder = cut / "checkpoints"
    (folder / "8").rename(folder / "20")
    said: list[str] = []
    assert find.newest_whole(epath.Path(folder), said.append) == epath.Path(folder) / "4"
    assert "20 is damaged (its name is 20, and it holds step 8): it is set aside as 20.damaged" in said[0]


def test_a_run_falls_back_to_the_newest_whole_checkpoint(train: Train, cut: Path, whole: Result, capfd: Any) -> None:
    victim = max((cut / "checkpoints" / "8" / "state").rglob("*"), key=lambda path: path.stat().st_size)
    flip(victim)
    assert_goes_on_like(train(cut), whole)
    out = capfd.readouterr().out
    assert "checkpoints/8 is damaged (state/" in out
    assert "has other content than was written): it is set aside as 8.damaged" in out
    assert "goes on after step 4 from" in out
    assert saved(cut) == [4, 8, 12]


def test_a_damaged_checkpoint_that_cannot_be_moved_is_passed_over(cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    folder = epath.Path(cut / "checkpoints")
    (folder / "8" / seal.COMMITTED).unlink()
    monkeypatch.setattr(type(folder), "rename", refuse)
    said: list[str] = []
    assert find.newest_whole(folder, said.append) == folder / "4"
    [line] = said
    assert line.endswith("committed.json is missing): it is passed over, and stays where it is (Read-only file system)")


def test_metrics_that_cannot_be_written_at_the_start_are_an_error(cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_folder, "MetricsWriter", full)
    with pytest.raises(MeshkitError, match=r"metrics cannot be written \(No space left on device\): make room"):
        run_folder.RunFolder(cut, mine=True, lock=None).metrics([])


def test_a_run_without_a_whole_checkpoint_does_not_begin_anew_by_itself(train: Train, cut: Path) -> None:
    for step in saved(cut):
        (cut / "checkpoints" / str(step) / "record" / "metadata").unlink()
    for _ in range(2):  # not on the second try either, when they are set aside already
        with pytest.raises(MeshkitError, match=r"no checkpoint is whole; .* Set resume = 'never' to begin anew"):
            train(cut)
    assert sorted(path.name for path in (cut / "checkpoints").iterdir()) == ["4.damaged", "8.damaged"]


# --- saving that fails --------------------------------------------------------------------------


LARGEST = 10_000  # bytes: more than pytest's own files have, less than a checkpoint's largest, however it is split


@pytest.fixture
def full_disk_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """From the save of one step to that of another, no file can grow beyond some bytes, as on a full disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    save = store.Checkpoints.save

    def between(start: int, end: int) -> None:
        def limited(self: store.Checkpoints, tree: Any, record: Record, history: Any) -> None:
            self.wait()
            resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST if start <= record.step < end else hard, hard))
            save(self, tree, record, history)
            self.wait()
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

        monkeypatch.setattr(store.Checkpoints, "save", limited)

    yield between
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def test_a_full_disk_stops_no_training(
    train: Train,
    whole: Result,
    tmp_path: Path,
    full_disk_at: Any,
    capfd: Any,
) -> None:
    full_disk_at(8, 12)
    result = train(tmp_path / "run")
    assert_goes_on_like(result, whole)
    assert saved(tmp_path / "run") == [4, 12]
    assert result.saved
    assert not [path for path in (tmp_path / "run" / "checkpoints").iterdir() if not path.name.isdecimal()]
    for step in ("4", "12"):
        assert seal.damage(epath.Path(tmp_path / "run" / "checkpoints" / step)) == []
    out, err = capfd.readouterr()
    assert "error: the checkpoint of step 8 could not be written" in out
    assert f"to {tmp_path}/run/checkpoints; the one of step 4 is whole. The reason: " in out
    assert "Traceback" not in out + err


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("ABORTED")])
def test_what_a_failed_save_leaves_behind_says_nothing_more(error: Exception, caplog: Any) -> None:
    """Orbax's tasks whose errors nobody asks for: asyncio would show each with a traceback."""

    async def left() -> None:
        asyncio.get_running_loop().create_future().set_exception(error)

    asyncio.run(left())
    gc.collect()
    assert caplog.records == []


def test_a_run_whose_last_checkpoint_fails_says_so_and_returns_its_state(
    train: Train,
    whole: Result,
    tmp_path: Path,
    full_disk_at: Any,
) -> None:
    full_disk_at(12, 13)
    result = train(tmp_path / "run")
    assert not result.saved
    assert_goes_on_like(result, whole)
    assert saved(tmp_path / "run") == [4, 8]


def test_training_goes_on_while_a_checkpoint_is_written(
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The writing of step 4 is held up until step 7 has been logged."""
    reached, write = threading.Event(), seal.seal

    def slowly(folder: epath.Path) -> None:
        if folder.name.startswith("4"):
            assert reached.wait(60)
        write(folder)

    read = trainer._Run._read

    def noticed(self: Any, number: int, *rest: Any, **more: Any) -> None:
        read(self, number, *rest, **more)
        if number == 7:
            reached.set()

    monkeypatch.setattr(seal, "seal", slowly)
    monkeypatch.setattr(trainer._Run, "_read", noticed)
    train(tmp_path / "run", checkpoint={"every": ["4 steps"], "keep": ["last 9"]})
    assert saved(tmp_path / "run") == [4, 8, 12]


# --- what stays ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "stay"),
    [
        (["last 2"], [8, 10]),
        (["last 1", "every 4"], [4, 8, 10]),
        (["best 2"], [2, 6, 10]),
        (["last 2", "best 1", "every 5"], [2, 5, 8, 10]),
        (["last 9"], [2, 4, 5, 6, 8, 10]),
    ],
)
def test_what_stays(keep: list[str], stay: list[int], tmp_path: Path) -> None:
    """Losses are 1.0, 3.0, None, 2.0, 4.0, 5.0; a second process goes on by the same rules."""
    losses = {2: 1.0, 4: 3.0, 5: None, 6: 2.0, 8: 4.0, 10: 5.0}
    record = Record(step=0, samples=0, model={}, data={}, config={})
    for some in ([2, 4, 5], [6, 8, 10]):
        with store.Checkpoints(epath.Path(tmp_path), CheckpointConfig(keep=keep), lambda text: None) as checkpoints:
            for step in some:
                values = {"step": step, "samples": step, "held_out_loss": losses[step]}
                checkpoints.save({"x": np.zeros(2)}, Record(**(vars(record) | values)), [])
    assert find.steps_of(epath.Path(tmp_path)) == stay


# --- the commands -------------------------------------------------------------------------------


def output(capfd: Any, *words: str, code: int = 0) -> Any:
    capfd.readouterr()
    assert main(["checkpoint", *words, "--json"]) == code
    return json.loads(capfd.readouterr().out)


def test_list_show_and_verify(whole: Result, tmp_path: Path, capfd: Any) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole.run_dir, folder)
    rows = output(capfd, "list", str(folder))
    assert [(row["step"], row["samples"], row["holds"]) for row in rows] == [
        (step, step * BATCH, "state") for step in (4, 8, 12)
    ]
    assert rows[-1]["held_out_loss"] == whole.summary["held_out_loss"]
    shown = output(capfd, "show", str(folder / "checkpoints" / "8"))
    assert shown["step"] == 8
    assert shown["config"]["optimizer"]["learning_rate"] == 1e-2
    assert shown["model"]["model.width"] == 16
    assert shown["arrays"]["params/embed/table"] == ["float32", [257, 16]]
    assert output(capfd, "verify", str(folder)) == {
        "ok": True,
        "checkpoints": {f"{folder}/checkpoints/{step}": [] for step in (4, 8, 12)},
    }
    flip(folder / "checkpoints" / "8" / "history" / "metadata")
    report = output(capfd, "verify", str(folder), code=1)
    assert report["checkpoints"][f"{folder}/checkpoints/8"] == ["history/metadata has other content than was written"]
    assert not report["ok"]
    for command in ("list", "show", "verify"):
        main(["checkpoint", command, str(folder)])
        assert f"{folder}/checkpoints/" in capfd.readouterr().out


def test_what_is_damaged_is_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "checkpoints"
    with store.Checkpoints(epath.Path(folder), CheckpointConfig(), lambda line: None) as checkpoints:
        checkpoints.save({"params": {"a": jax.numpy.zeros(4)}}, Record(3, 3, {}, {}, {}), [])
    (folder / "3" / "state" / "_METADATA").unlink()
    for wrong in ("show", "verify"):
        assert main(["checkpoint", wrong, str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert err == (
        f"error: {folder}/3 is damaged: what its arrays are cannot be read; `meshkit checkpoint verify {folder}/3` "
        "names the files\n"
    )
    assert "state/_METADATA is missing" in out
    with pytest.raises(MeshkitError, match="no checkpoint is whole"):
        find.newest_whole(epath.Path(folder), lambda line: None)
    for command in ("list", "show", "verify"):
        for path in (tmp_path, folder):
            assert main(["checkpoint", command, str(path)]) == 1
            assert f"any; set aside as damaged: {folder}/3.damaged\n" in capsys.readouterr().err


def test_convert_copies_casts_and_refuses(whole: Result, tmp_path: Path, capfd: Any) -> None:
    source = str(whole.run_dir)
    copy = output(capfd, "convert", source, "--out", str(tmp_path / "copy"))
    assert copy == {"path": f"{tmp_path}/copy/12"}
    arrays = output(capfd, "show", copy["path"])["arrays"]
    assert arrays == output(capfd, "show", source)["arrays"]
    words = ["convert", source, "--out", str(tmp_path / "half"), "--weights", "--dtype", "bfloat16"]
    half = output(capfd, "show", output(capfd, *words)["path"])
    assert half["holds"] == "weights"
    assert half["arrays"] == {name: ["bfloat16", shape] for name, (_, shape) in arrays.items() if "params/" in name}
    assert output(capfd, "verify", str(tmp_path / "half"))["ok"]
    (tmp_path / "file").write_text("")
    for wrong, message in (
        (["convert", source, "--out", str(tmp_path / "half")], "holds checkpoints already"),
        (["convert", source, "--out", str(tmp_path / "file")], "file: no checkpoint can be written there (Not a dir"),
        (["convert", source, "--out", source], "holds checkpoints already"),
        (["convert", source, "--out", str(tmp_path / "new"), "--dtype", "bfloat16"], "takes --weights"),
        (["show", str(tmp_path)], "no checkpoint, no folder of checkpoints and no run"),
    ):
        assert main(["checkpoint", *wrong]) == 1
        assert message in capfd.readouterr().err
