"""Calibration: what it writes is a cluster; a run's forecast."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit.config import load
from meshkit.errors import MeshkitError
from meshkit.models.presets import sizes
from meshkit.planner.calibrate import calibrate, fit_links
from meshkit.planner.cluster import from_toml
from meshkit.planner.counts import parameters
from meshkit.planner.forecast import forecast


def test_what_is_written_is_a_cluster_of_these_devices(tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    calibrate(path)
    file = tomllib.loads(path.read_text())
    cluster = from_toml(path)
    assert cluster.devices == 8
    assert cluster.accelerator.flops["bfloat16"] == pytest.approx(file["device"]["tflops"] * 1e12)
    assert cluster.rate(0) > 0
    assert "measured" in cluster.accelerator.source


def test_a_file_that_cannot_be_written_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_products", (1e12, 1e12)), ("_bandwidth", (1e12, 1e12))):
        monkeypatch.setattr(f"meshkit.planner.calibrate.{name}", lambda device, value=value: value)
    monkeypatch.setattr("meshkit.planner.calibrate.measured_links", lambda devices: fit_links([1.0, 2.0], [1, 2], 2))
    with pytest.raises(MeshkitError, match="cannot be written"):
        calibrate(tmp_path / "nowhere" / "here.toml")


@given(bandwidth=st.floats(1e8, 1e12), latency=st.floats(1e-7, 1e-3), members=st.integers(2, 64))
def test_links_are_found_again_from_times_they_make(bandwidth: float, latency: float, members: int) -> None:
    payloads = [2**k for k in (10, 16, 22, 28)]
    times = [v * (members - 1) / members / bandwidth + (members - 1) * latency for v in payloads]
    found = fit_links(times, payloads, members)
    assert found.bandwidth == pytest.approx(bandwidth, rel=1e-3)
    assert found.latency == pytest.approx(latency, rel=1e-3)


# --- what a run is expected to take ---------------------------------------------------------------


def expected(kind: str, known: int | None = None, **keys: object):
    config = load({"model.preset": "llama3-8b", "mesh": {"data": 4, "tensor": 2, "pipe": 1}, "data.batch": 64} | keys)
    count = parameters(sizes(config.model, None)) if known is None else known
    return forecast(config, 128256, count, kind, [0] * 8)


@pytest.mark.parametrize(
    ("runtime", "entry"),
    [("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100-80"), ("NVIDIA B200", "b200")],
)
def test_a_known_gpu_has_a_time_and_a_memory(runtime: str, entry: str) -> None:
    found = expected(runtime)
    assert found.why == ""
    assert found.step_seconds is not None
    assert found.step_seconds > 0
    assert found.memory_bytes is not None


def test_another_device_has_a_memory_and_says_how_to_get_a_time() -> None:
    found = expected("cpu")
    assert found.step_seconds is None
    assert found.memory_bytes == expected("NVIDIA H100 80GB HBM3").memory_bytes
    assert "--calibrate" in found.why


@pytest.mark.parametrize(
    ("keys", "words"), [({"offload": True}, "offload"), ({"optimizer.name": "lion"}, "optimizer.name = lion")]
)
def test_what_the_planner_does_not_know_it_says(keys: dict, words: str) -> None:
    found = expected("NVIDIA H100 80GB HBM3", **keys)
    assert (found.step_seconds, found.memory_bytes) == (None, None)
    assert words in found.why


def test_a_model_of_ones_own_is_none_of_the_presets() -> None:
    assert "a model of one's own" in expected("NVIDIA H100 80GB HBM3", known=12345).why
