"""What a script for a cluster asks for: nodes, processes a node, devices; checked against the config. No JAX."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from meshkit.config import NEVER, RunConfig
from meshkit.errors import MeshkitError, counted
from meshkit.launch import elastic
from meshkit.mesh import resolve


@dataclasses.dataclass(frozen=True)
class Nodes:
    """count: nodes. processes, devices: of one node. simulated: the devices are CPU ones.

    least: nodes that are enough, for `--elastic`; None: all.
    """

    count: int
    processes: int
    devices: int
    simulated: bool
    least: int | None = None

    @property
    def spelled(self) -> str:
        """For SLURM: "8", or "4-8"."""
        return str(self.count) if self.least is None else f"{self.least}-{self.count}"


def nodes(config: RunConfig, count: int, gpus: int | None, per: str, least: int | None) -> tuple[Nodes, RunConfig]:
    """What to ask for, and the config with the mesh that it makes.

    gpus: of a node. per: "gpu" or "node", what a process is started for. least: devices that are enough.
    Raises MeshkitError for numbers that do not go together.
    """
    total = config.devices  # simulated
    if total is not None and gpus:
        raise MeshkitError(f"--gpus-per-node {gpus} and devices = {total} (simulated): remove one of them")
    if total is not None and total % count:
        raise MeshkitError(f"devices = {total} do not split over --nodes {count}: choose a divisor")
    a_node = gpus if total is None else total // count
    if a_node is None:
        raise MeshkitError("--gpus-per-node N is missing: the GPUs of a node (or set devices to simulate them)")
    config = config.model_copy(update={"mesh": resolve(config.mesh, count * a_node)})
    config.microbatch_size(config.mesh.data)
    if least is not None and not a_node <= least <= count * a_node:
        raise MeshkitError(
            f"--elastic min={least}: {counted(count, 'node')} of {a_node} have {count * a_node} devices: choose from "
            f"{a_node} to {count * a_node}"
        )
    if least is not None:
        _check_elastic(config, count, a_node, least)
    processes = a_node if per == "gpu" and total is None else 1
    return Nodes(count, processes, a_node, total is not None, None if least is None else -(-least // a_node)), config


def _check_elastic(config: RunConfig, count: int, devices: int, least: int) -> None:
    """Raises MeshkitError when a run that loses a node could not go on."""
    fewest = -(-least // devices)
    if elastic.fit(config, [n * devices for n in range(fewest, count)]) is not None:
        return
    smaller = elastic.fit(config, [n * devices for n in range(1, fewest)])
    way = "leave --elastic out" if smaller is None else f"choose min={smaller.mesh.devices} or less"
    raise MeshkitError(
        f"--elastic min={least}: with a node lost {(count - 1) * devices} devices are left, and no mesh of {least} or "
        f"more of them is legal: {way}"
    )


def overrides_on(nodes: Nodes, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Of one process on these nodes."""
    return {**overrides, **({"devices": nodes.devices // nodes.processes} if nodes.simulated else {})}


def check_restarts(config: RunConfig, restarts: int, least: int | None) -> None:
    """A restart goes on from a checkpoint, and `--elastic` (least: of devices) is for restarts; else MeshkitError."""
    if least is not None and not restarts:
        raise MeshkitError("--elastic needs --restarts N: it chooses the mesh of a restart")
    if restarts and config.resume == NEVER:
        raise MeshkitError("resume = 'never' and --restarts: every restart would begin anew; set resume = 'auto'")


def fit(config: RunConfig, nodes: int, devices: int, least: int) -> tuple[int, dict[str, Any]]:
    """How many of `nodes` to use, and the overrides for the mesh on them. Raises MeshkitError when none is legal."""
    fitted = elastic.fit(config, [n * devices for n in range(least, nodes + 1)])
    if fitted is None:
        raise MeshkitError(f"{counted(nodes, 'node')} of {devices}: no mesh on {least} or more of them is legal")
    return fitted.mesh.devices // devices, elastic.changes(fitted)
