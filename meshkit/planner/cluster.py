"""A cluster: nodes, racks and the links between; and which links a mesh axis crosses.

Devices are numbered node by node, nodes rack by rack, and a mesh is laid on them as `mesh.place` does:
data outermost, then pipe, tensor innermost.
"""

import dataclasses
import functools
import math
import re
from pathlib import Path

from pydantic import Field, ValidationError

from meshkit.config import MeshShape, Positive, Section
from meshkit.errors import MeshkitError
from meshkit.planner.hardware import GIB, GIGA, MICRO, TERA, Accelerator, Efficiency, Link, accelerator
from meshkit.reading import read_toml

LEVELS = ("node", "network", "spine")
"""Where a link lies: in a node, between the nodes of a rack, between racks."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """nodes × per_node devices; `per_rack` nodes stand in a rack (by default all). links: one for each of LEVELS."""

    accelerator: Accelerator
    nodes: int
    per_node: int
    per_rack: int
    links: tuple[Link, Link, Link]

    @property
    def devices(self) -> int:
        """All of them."""
        return self.nodes * self.per_node

    def __str__(self) -> str:
        racks = "" if self.per_rack >= self.nodes else f", racks of {self.per_rack}"
        return f"{self.devices} × {self.accelerator.name}, nodes of {self.per_node}{racks}"

    def rate(self, level: int) -> float:
        """Bytes/s that a device reaches over the links of a level."""
        efficiency = self.accelerator.efficiency
        return self.links[level].bandwidth * (efficiency.node if level == 0 else efficiency.network)


@dataclasses.dataclass(frozen=True)
class Group:
    """Peers of an axis, as far as their exchanges care: members, and how many of them share a node, a rack.

    Of the group that is spread most, where groups differ.
    """

    size: int
    in_node: float
    in_rack: float

    @property
    def level(self) -> int:
        """The widest level (of LEVELS) that the group's traffic crosses."""
        return 0 if self.size <= self.in_node else 1 if self.size <= self.in_rack else 2


@functools.lru_cache(maxsize=4096)
def group(size: int, stride: int, devices: int, per_node: int, per_rack: int) -> Group:
    """The group of `size` devices that are `stride` apart, among `devices`. per_rack: devices of a rack."""
    return Group(size, *(size / _most_units(size, stride, devices, unit) for unit in (per_node, per_rack)))


def _most_units(size: int, stride: int, devices: int, unit: int) -> int:
    """How many nodes (or racks) of `unit` devices such a group touches at most."""
    period = min(devices, math.lcm(size * stride, unit))
    if stride >= unit:
        return size  # no two share one
    # Fewer than a unit lies between neighbours, so that from the first to the last none is left out.
    starts = range(0, period, size * stride)
    firsts = (first for start in starts for first in (start, start + stride - 1))
    return max((first + (size - 1) * stride) // unit - first // unit + 1 for first in firsts)


def groups(mesh: MeshShape, cluster: Cluster, pipe_outermost: bool = False) -> dict[str, Group]:
    """Axis -> its group; "vocab": the pipe × tensor devices that share a table.

    pipe_outermost: replicas of a stage are neighbours, and its stages far apart; else as `mesh.place` does.
    """
    per_rack = cluster.per_node * cluster.per_rack
    of = lambda size, stride: group(size, stride, mesh.devices, cluster.per_node, per_rack)
    inner = mesh.tensor * (mesh.data if pipe_outermost else 1)
    return {
        "data": of(mesh.data, mesh.tensor if pipe_outermost else mesh.tensor * mesh.pipe),
        "pipe": of(mesh.pipe, inner),
        "tensor": of(mesh.tensor, 1),
        "vocab": of(mesh.tensor * mesh.pipe, 1),
    }


# --- where clusters come from ---------------------------------------------------------------------


def parse(text: str, per_node: int | None = None) -> Cluster:
    """`64xh100`, or the path of a TOML file (see `ClusterFile`).

    per_node: devices of a node, instead of the accelerator's usual. Raises MeshkitError for anything else.
    """
    if per_node is not None and per_node < 1:
        raise MeshkitError(f"--nodes-of {per_node}: a node has at least 1 device")
    if text.endswith(".toml"):
        return from_toml(Path(text), per_node)
    match = re.fullmatch(r"(\d+)\s*[x×]\s*([\w.-]+)", text)
    if match is None or int(match[1]) == 0:
        raise MeshkitError(f"--cluster {text}: write a number of devices and their kind, as 64xh100, or a .toml file")
    return regular(accelerator(match[2]), int(match[1]), per_node)


def regular(kind: Accelerator, devices: int, per_node: int | None = None, network: Link | None = None) -> Cluster:
    """`devices` of one kind in equal nodes of one rack; network: instead of the kind's usual.

    Raises MeshkitError when they do not fill their nodes.
    """
    size = min(per_node or kind.node, devices)
    if size < 1 or devices % size:
        raise MeshkitError(
            f"{devices} devices do not fill nodes of {size}: take {devices // size * size} or "
            f"{-(-devices // size) * size} devices, or another size of node (--nodes-of)"
        )
    between = network or kind.network
    return Cluster(kind, devices // size, size, devices // size, (kind.link, between, between))


class LinkFile(Section):
    """A link, as a file says it."""

    name: str = Field("link", description="What it is.")
    bandwidth: float = Field(gt=0, description="GB/s that one device sends in one direction.")
    latency: float = Field(5.0, ge=0, description="µs of one step of an exchange.")


class DeviceFile(Section):
    """An accelerator that the catalogue lacks, or one that was measured (`meshkit plan --calibrate`)."""

    name: str = Field("own", description="What it is called.")
    tflops: float = Field(gt=0, description="Peak bfloat16 TFLOP/s.")
    float32: float | None = Field(None, gt=0, description="Peak float32 TFLOP/s; absent: float32 is not planned.")
    memory: float = Field(gt=0, description="GiB of memory.")
    bandwidth: float = Field(gt=0, description="TB/s of memory.")
    source: str = Field("the user's file", description="Where the figures come from.")
    efficiency: dict[str, float] = Field({}, description="Shares of the peaks that are reached: see Efficiency.")


class ClusterFile(Section):
    """A cluster's TOML file: nodes, what is in them, links in a node, between nodes and between racks."""

    accelerator: str | None = Field(None, description="A kind of the catalogue; absent: [device] says it.")
    device: DeviceFile | None = Field(None, description="A kind of your own.")
    nodes: Positive = Field(1, description="Nodes.")
    per_node: Positive = Field(8, description="Devices of a node.")
    per_rack: Positive | None = Field(None, description="Nodes of a rack; absent: one rack.")
    links: dict[str, LinkFile] = Field({}, description="node, network (between nodes), spine (between racks).")


def from_toml(path: Path, per_node: int | None = None) -> Cluster:
    """The cluster that a TOML file describes. Raises MeshkitError that names the file and the key."""
    values = read_toml(path)
    try:
        file = ClusterFile.model_validate(values)
    except ValidationError as error:
        item = error.errors()[0]
        key = ".".join(map(str, item["loc"]))
        raise MeshkitError(f"{path}: {key}: {item['msg']}; keys: {', '.join(ClusterFile.model_fields)}") from None
    if (file.accelerator is None) == (file.device is None):
        raise MeshkitError(f"{path}: it takes one of accelerator (a kind of the catalogue) and [device] (your own)")
    if set(file.links) - set(LEVELS):
        raise MeshkitError(f"{path}: links are called {', '.join(LEVELS)}, not {', '.join(file.links)}")
    given = {k: Link(v.name, v.bandwidth * GIGA, v.latency * MICRO) for k, v in file.links.items()}
    if file.device is not None:
        missing = {"node"} | ({"network"} if file.nodes > 1 else set()) - set(given)
        if missing - set(given):
            raise MeshkitError(f"{path}: [device] needs its links: write [links.{'], [links.'.join(sorted(missing))}]")
        kind = _device(file.device, per_node or file.per_node, given, path)
    else:
        kind = accelerator(str(file.accelerator))
    links = (given.get("node", kind.link), given.get("network", kind.network))
    spine = given.get("spine", links[1])
    return Cluster(kind, file.nodes, per_node or file.per_node, file.per_rack or file.nodes, (*links, spine))


def _device(file: DeviceFile, node: int, links: dict[str, Link], path: Path) -> Accelerator:
    known = {field.name for field in dataclasses.fields(Efficiency)}
    if set(file.efficiency) - known:
        raise MeshkitError(
            f"{path}: device.efficiency has {', '.join(sorted(known))}, not {', '.join(file.efficiency)}"
        )
    if not all(0 < share <= 1 for share in file.efficiency.values()):
        raise MeshkitError(f"{path}: device.efficiency: a share is above 0 and at most 1")
    rates = {"bfloat16": file.tflops * TERA} | ({"float32": file.float32 * TERA} if file.float32 else {})
    network = links.get("network", links["node"])
    efficiency = Efficiency(**file.efficiency)
    memory, bandwidth = file.memory * GIB, file.bandwidth * TERA
    return Accelerator(file.name, rates, memory, bandwidth, node, links["node"], network, file.source, efficiency)
