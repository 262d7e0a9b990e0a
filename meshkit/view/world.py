"""What there is to choose from: models, kinds of devices with the links between them, schedules and cuts."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

from meshkit.config import ModelConfig
from meshkit.errors import MeshkitError, nearest
from meshkit.models.presets import PRESETS, Sizes, sizes
from meshkit.planner.cluster import Cluster, parse, regular
from meshkit.planner.hardware import CATALOGUE, GIGA, MICRO, Accelerator, Link
from meshkit.planner.layout import SCHEDULES

NODES_OF_A_RACK = 4
"""Of 8 devices of 700 W with their host: what a rack of 40 kW cools."""

ETHERNET = Link("Ethernet", 12.5 * GIGA, 20 * MICRO)
"""100 Gb/s a device between racks. Latency assumed: a routed fabric of a few switches."""

BALANCED = "balanced"
"""Layers of the groups, as even as can be."""

OWN_MODEL = "config"
"""The name of the user's own model, and of the preset that is their config."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """Devices of a kind. per_node, per_rack: devices of a node, nodes of a rack. links: one for each of LEVELS.

    most: how many there are, None for as many as are wanted.
    """

    device: Accelerator
    per_node: int
    per_rack: int
    links: tuple[Link, Link, Link]
    most: int | None = None

    @classmethod
    def catalogued(cls, device: Accelerator, between_racks: Link | None = None) -> "Kind":
        """One of the catalogue, in racks of NODES_OF_A_RACK."""
        links = (device.link, device.network, between_racks or device.network)
        return cls(device, device.node, NODES_OF_A_RACK, links)

    @classmethod
    def own(cls, cluster: Cluster) -> "Kind":
        """That of a cluster's file: its nodes and no more."""
        return cls(cluster.accelerator, cluster.per_node, cluster.per_rack, cluster.links, cluster.devices)

    def take(self, devices: int) -> Cluster:
        """The first so many. Raises MeshkitError when there are fewer, or when they do not fill their nodes."""
        if self.most is not None and devices > self.most:
            raise MeshkitError(f"the mesh takes {devices} devices and the cluster has {self.most}")
        size = min(self.per_node, devices)
        if devices % size:
            low = devices // size * size
            raise MeshkitError(f"{devices} devices do not fill nodes of {size}: take {low} or {low + size} devices")
        cluster = regular(self.device, devices, size)
        return dataclasses.replace(cluster, per_rack=min(self.per_rack, cluster.nodes), links=self.links)


@dataclasses.dataclass(frozen=True, eq=False)
class World:
    """Models and kinds of devices by name; schedules by name or by a grid's file; layers of each group, as Setting
    says them."""

    models: Mapping[str, Sizes]
    clusters: Mapping[str, Kind]
    schedules: tuple[str, ...] = SCHEDULES
    layers: tuple[str, ...] = (BALANCED,)

    @classmethod
    def of(
        cls,
        own: Sizes | None = None,
        clusters: Mapping[str, Kind] | None = None,
        schedules: Iterable[str] = (),
        layers: Iterable[str] = (),
    ) -> "World":
        """All presets, the catalogue's devices, the builders' schedules and balanced layers; and the user's own: a
        config's model, `clusters` of files, `schedules` and `layers` of a config."""
        models = {name: sizes(ModelConfig(preset=name)) for name in PRESETS}
        kinds = {name: Kind.catalogued(device) for name, device in CATALOGUE.items()}
        kinds["h100-ethernet"] = Kind.catalogued(CATALOGUE["h100"], ETHERNET)
        return cls(
            ({OWN_MODEL: own} if own else {}) | models,
            dict(clusters or {}) | kinds,
            tuple(dict.fromkeys([*schedules, *SCHEDULES])),
            tuple(dict.fromkeys([*layers, BALANCED])),
        )


def named(text: str) -> tuple[str, int | None, dict[str, Kind]]:
    """What `--cluster` says: the name of a kind, how many devices if it says so, and the kind if it is the user's own.

    `h100`, `64xh100` as in `meshkit plan`, or a cluster's TOML file. Raises MeshkitError for anything else.
    """
    if text in World.of().clusters:
        return text, None, {}
    if not text.endswith(".toml") and not text[:1].isdigit():
        raise MeshkitError(f"--cluster {text}: no such kind of devices; {nearest(text, World.of().clusters)}")
    cluster = parse(text)
    if not text.endswith(".toml"):
        return cluster.accelerator.name, cluster.devices, {}
    name = Path(text).name
    return name, cluster.devices, {name: Kind.own(cluster)}
