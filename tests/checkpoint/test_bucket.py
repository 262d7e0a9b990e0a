"""Checkpoints in a bucket: a real client, and a server of Google's protocol on this machine."""

import http.server
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from gcp_storage_emulator.server import create_server

from meshkit.checkpoint import find, seal, store
from meshkit.checkpoint.place import children, place
from meshkit.checkpoint.record import Record
from meshkit.checkpoint.slices import arrays_of
from meshkit.cli import main
from meshkit.config import CheckpointConfig, RunConfig
from meshkit.errors import MeshkitError
from meshkit.run_folder import RunFolder

HOME = "gs://bucket/a run/checkpoints"


@pytest.fixture(scope="module")
def bucket() -> Iterator[None]:
    """An empty bucket named "bucket", where gcsfs, Orbax and TensorStore look for all of them."""
    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
    with pytest.MonkeyPatch.context() as patch:  # one request at a time would wait for connections that are kept open
        patch.setattr(http.server, "HTTPServer", http.server.ThreadingHTTPServer)
        server.start()
    at = f"http://127.0.0.1:{server._api._httpd.server_port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", at)
        patch.setenv("TENSORSTORE_GCS_HTTP_URL", at)
        patch.setenv("GOOGLE_CLOUD_PROJECT", "test")
        patch.setenv("NO_GCE_CHECK", "true")
        yield
    server.stop()


def test_a_bucket_holds_checkpoints_as_a_folder_does(bucket: None, tmp_path: Path, capfd: Any) -> None:
    said: list[str] = []
    folder = place(HOME)
    config = CheckpointConfig(keep=["last 2"])
    assert find.steps_of(folder) == []
    for steps in ([1, 2], [3]):
        with store.Checkpoints(folder, config, said.append) as checkpoints:
            for step in steps:
                record = Record(step, step, {}, {}, {})
                checkpoints.save({"params": {"a": jax.numpy.arange(4.0) + step}}, record, [])
    assert [line for line in said if "saved to" not in line] == []
    assert find.steps_of(folder) == [2, 3]
    assert find.newest_whole(folder, said.append) == place(f"{HOME}/3")
    assert arrays_of(place(f"{HOME}/3"))[("params", "a")].shape == (4,)

    for words in (["list", HOME], ["show", "gs://bucket/a run"], ["verify", HOME]):
        assert main(["checkpoint", *words]) == 0
        assert f"{HOME}/3" in capfd.readouterr().out
    assert main(["checkpoint", "convert", HOME, "--out", f"{HOME}-2"]) == 0
    assert main(["checkpoint", "convert", f"{HOME}-2", "--out", str(tmp_path / "back")]) == 0
    assert seal.damage(place(str(tmp_path / "back" / "3"))) == []

    (place(HOME) / "3" / "record" / "metadata").write_text("{}")
    assert main(["checkpoint", "verify", HOME]) == 1
    for half_set_aside in (False, True):  # and then set aside again, as where a process ended while it was
        said.clear()
        assert find.newest_whole(folder, said.append) == place(f"{HOME}/2")
        assert ["it is set aside as 3.damaged" in line for line in said] == [True]
        assert [path.name for path in children(folder)] == ["2", "3.damaged"]
        assert (folder / "3.damaged" / "record" / "metadata").read_text() == "{}"
        if not half_set_aside:
            (folder / "3" / "record").mkdir(parents=True)
            (folder / "3" / "record" / "metadata").write_text("{}")
    assert not [path for path in Path().iterdir() if path.name.endswith(":")]


@pytest.mark.parametrize("path", ["s3://b/x", "az://b/x", "memory://x", "file:///x", "xyz://a/b", "gs://", "gs:/b/x"])
def test_a_bucket_of_another_kind_is_refused_by_name(path: str, tmp_path: Path, capsys: Any) -> None:
    with store.Checkpoints(place(str(tmp_path / "c")), CheckpointConfig(), lambda line: None) as checkpoints:
        checkpoints.save({"params": {"a": jax.numpy.zeros(4)}}, Record(3, 3, {}, {}, {}), [])
    taken = ": it is a folder of a file system (a mounted one too), or gs://BUCKET/FOLDER, of Google Cloud Storage"
    capsys.readouterr()
    for said, words in (
        (path, ["checkpoint", "list", path]),
        (path, ["checkpoint", "verify", path]),
        (f"--out {path}", ["checkpoint", "convert", str(tmp_path / "c"), "--out", path]),
    ):
        assert main(words) == 1
        assert capsys.readouterr().err.startswith(f"error: {said}{taken}")


def test_keys_that_name_a_bucket_are_named(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for config, message in (
        (RunConfig(checkpoint=CheckpointConfig(folder="xyz://b/x")), "checkpoint.folder = 'xyz://b/x': it is a folder"),
        (RunConfig(resume="memory://b/x"), "resume = 'memory://b/x': it is a folder"),
    ):
        with pytest.raises(MeshkitError, match=message):
            find.find(config, lambda line: None)
    with pytest.raises(MeshkitError, match="run_dir = 'gs://b/x': its files take a file system"):
        RunFolder.create(RunConfig(run_dir="gs://b/x"), fresh=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MeshkitError, match="folder = 'gs://b/x': takes the package gcsfs, which is not installed"):
        find.find(RunConfig(checkpoint=CheckpointConfig(folder="gs://b/x")), lambda line: None)
    assert list(tmp_path.iterdir()) == []
