"""A cluster by its word: `64xh100`, in nodes of 8."""

import dataclasses
import re

from meshkit.errors import MeshkitError

NODE = 8


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A kind of device."""

    name: str


@dataclasses.dataclass(frozen=True)
class Cluster:
    """nodes × per_node devices."""

    accelerator: Accelerator
    nodes: int
    per_node: int

    @property
    def devices(self) -> int:
        """All of them."""
        return self.nodes * self.per_node

    def __str__(self) -> str:
        return f"{self.devices} × {self.accelerator.name}, nodes of {self.per_node}"


def parse(text: str, per_node: int | None = None) -> Cluster:
    """`64xh100`. per_node: devices of a node. Raises MeshkitError for anything else."""
    match = re.fullmatch(r"(\d+)\s*[x×]\s*([\w.-]+)", text)
    if match is None or int(match[1]) == 0:
        raise MeshkitError(f"--cluster {text}: write a number of devices and their kind, as 64xh100")
    devices = int(match[1])
    size = min(per_node or NODE, devices)
    if size < 1 or devices % size:
        raise MeshkitError(f"{devices} devices do not fill nodes of {size}")
    return Cluster(Accelerator(match[2]), devices // size, size)
