"""Clusters: what is refused, which links an axis crosses, how long an exchange takes."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit import mesh
from meshkit.config import MeshShape
from meshkit.errors import MeshkitError
from meshkit.planner.cluster import Cluster, Group, from_toml, groups, parse
from meshkit.planner.collectives import EXCHANGES
from meshkit.planner.hardware import CATALOGUE, FLOAT32, GIGA, TERA

sizes = st.sampled_from([1, 2, 3, 4, 8])


@given(data=sizes, tensor=sizes, pipe=sizes, per_node=st.sampled_from([1, 2, 4, 8, 12]))
def test_an_axis_crosses_nodes_where_its_mesh_does(data: int, tensor: int, pipe: int, per_node: int) -> None:
    """Against the placement that `mesh.py` makes, group by group."""
    shape = MeshShape(data=data, tensor=tensor, pipe=pipe)
    nodes = [device // per_node for device in range(shape.devices)]
    crossed = mesh.crossings(shape, nodes)
    whole = -(-shape.devices // per_node)
    kind = CATALOGUE["h100"]
    found = groups(shape, Cluster(kind, whole, per_node, whole, (kind.link, kind.network, kind.network)))
    for axis in mesh.AXES:
        assert (found[axis].level > 0) == (crossed[axis] > 0), axis
        assert found[axis].size == shape.sizes[axis]


def test_with_pipe_outermost_replicas_are_neighbours_and_stages_far_apart() -> None:
    """As nanotron counts ranks: pipe, data, tensor; every hop then leaves its node, and four replicas share one."""
    mesh, cluster = MeshShape(data=8, tensor=2, pipe=4), parse("64xh100")
    found = groups(mesh, cluster, pipe_outermost=True)
    ranks = np.arange(64).reshape(4, 8, 2)
    in_node = {"data": ranks[0, :, 0], "pipe": ranks[:, 0, 0], "tensor": ranks[0, 0]}
    for axis, members in in_node.items():
        assert found[axis].in_node == len(members) / len(set(members // 8)), axis
    assert found["pipe"].level == 1
    assert groups(mesh, cluster)["pipe"].in_node == 4


def test_the_book_case_sits_as_the_rule_says() -> None:
    """64 GPUs in nodes of 8, D=8 T=4 P=2: tensor and pipe inside a node, data across all eight."""
    found = groups(MeshShape(data=8, tensor=4, pipe=2), parse("64xh100"))
    assert [found[axis].level for axis in ("tensor", "pipe", "data")] == [0, 0, 1]
    assert found["data"].in_node == 1


@pytest.mark.parametrize("how", EXCHANGES)
@given(volume=st.floats(1e3, 1e10), size=st.integers(2, 64), more=st.floats(1, 10))
def test_more_bandwidth_is_never_slower_and_more_bytes_never_faster(
    how: str, volume: float, size: int, more: float
) -> None:
    cluster, faster = parse("64xh100"), parse("64xb200")
    group = Group(size, min(size, 8), size)
    exchange = EXCHANGES[how]
    slow, quick = exchange(volume, group, cluster), exchange(volume, group, faster)
    assert quick.transfer <= slow.transfer
    assert exchange(volume * more, group, cluster).seconds >= slow.seconds


@pytest.mark.parametrize(
    ("kind", "payload", "measured"),
    [("a100-80", 2**28, 2420e-6), ("a100-80", 2**30, 8204e-6), ("b200", 2**28, 727e-6), ("h200", 2**28, 1077e-6)],
)
def test_an_all_reduce_in_a_node_takes_what_was_measured(kind: str, payload: int, measured: float) -> None:
    """ml-engineering's tables; a ring is assumed, so NVLink's own sums (H200, B200) are faster by a third."""
    cost = EXCHANGES["all-reduce"](payload, Group(8, 8, 8), parse(f"8x{kind}"))
    assert measured * 0.9 < cost.seconds < measured * 1.45


def test_catalogue_entries_say_where_they_are_from() -> None:
    for entry in CATALOGUE.values():
        assert entry.source
        assert entry.flops["bfloat16"] > 1e13
        assert entry.memory > 15 * GIGA
        assert entry.network.bandwidth <= entry.link.bandwidth


SHEETS = {  # TFLOP/s as the data sheets print them, and how many of them are without sparsity
    "v100": (15.7, 1),
    "a100-40": (156, 1),
    "a100-80": (156, 1),
    "h100": (989, 1 / 2),
    "h100-pcie": (756, 1 / 2),
    "h200": (989, 1 / 2),
    "b200": (2200, 1 / 2),
    "gb200": (2500, 1 / 2),
    "mi300x": (163.4, 1),
    "l40s": (183, 1),
    "rtx4090": (82.6, 1),
}


def test_float32_rates_are_those_of_the_data_sheets() -> None:
    """And where no sheet has one, there is none."""
    for name, entry in CATALOGUE.items():
        if name not in SHEETS:
            assert "float32" not in entry.flops, name
            continue
        printed, dense = SHEETS[name]
        assert entry.flops["float32"] == pytest.approx(printed * dense * TERA), name
        assert "sheet" in FLOAT32[name][1] or "whitepaper" in FLOAT32[name][1], name


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("64", "as 64xh100"),
        ("0xh100", "as 64xh100"),
        ("64xh10", "h100"),
        ("12xh100", "8 or 16 devices"),
        ("nowhere.toml", "no such config file"),
    ],
)
def test_a_cluster_that_is_none_says_what_would_be(text: str, words: str) -> None:
    with pytest.raises(MeshkitError, match=words):
        parse(text)


OWN = """
nodes = 4
per_node = 4
per_rack = 2
[device]
name = "mine"
tflops = 100
float32 = 30
memory = 32
bandwidth = 1.0
[device.efficiency]
matmul = 0.6
[links.node]
bandwidth = 100
[links.network]
bandwidth = 25
[links.spine]
bandwidth = 5
latency = 20
"""


def test_a_cluster_of_your_own_with_racks(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    cluster = from_toml(path)
    assert cluster.devices == 16
    assert cluster.accelerator.efficiency.matmul == 0.6
    assert cluster.accelerator.flops == {"bfloat16": 100e12, "float32": 30e12}
    found = groups(MeshShape(data=2, tensor=4, pipe=2), cluster)
    assert [found[axis].level for axis in ("tensor", "pipe", "data")] == [0, 1, 2]
    exchange = EXCHANGES["all-gather"]
    assert exchange(1e9, found["data"], cluster).seconds > exchange(1e9, found["pipe"], cluster).seconds


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("nodes = 4", "nodez = 4"), "nodez"),
        (("matmul = 0.6", "matmul = 1.6"), "at most 1"),
        (("matmul", "matmool"), "matmool"),
        (("[links.node]", "[links.nodes]"), "nodes"),
        (("[links.network]", "[links.spine2]"), "spine2"),
        (('name = "mine"', 'name = "mine"\naccelerator = "h100"'), "accelerator"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN.replace(*change))
    with pytest.raises(MeshkitError, match=words) as error:
        from_toml(path)
    assert "mine.toml" in str(error.value)
