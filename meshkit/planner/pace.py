"""What a framework waits for that is neither arithmetic nor bandwidth: its host, and pipelines that stand still."""

import dataclasses

from meshkit.config import MeshShape
from meshkit.planner.cluster import Group


@dataclasses.dataclass(frozen=True)
class Host:
    """Seconds in which the host launches the forward of a layer; its backward takes two of them.

    layer: alone. Where stages lie in several nodes, every exchange between tensor peers waits for the slowest of their
    hosts: a share `peer` of it more for each further peer, and `square` for the square of their number.
    """

    layer: float = 0.0
    peer: float = 0.0
    square: float = 0.0

    def seconds(self, tensor: Group, pipe: Group) -> float:
        """Of a layer's forward, with these groups."""
        others = tensor.size - 1 if pipe.level > 0 else 0
        return self.layer * (1 + self.peer * others + self.square * others**2)


@dataclasses.dataclass(frozen=True)
class Stall:
    """Seconds a microbatch that a pipeline stands still: `replicated`, for each neighbour that a stage has, where
    replicas hold all moments and every hop leaves its node; `many`, on more than MANY devices, half of it where there
    are two stages."""

    replicated: float = 0.0
    many: float = 0.0

    def seconds(self, mesh: MeshShape, pipe: Group, microbatches: int, zero: int) -> float:
        """Of a microbatch."""
        neighbours = min(mesh.pipe - 1, 2)
        is_replicated = zero == 0 and mesh.data > 1 and pipe.in_node == 1 and microbatches > FEW
        replicated = self.replicated * neighbours if is_replicated else 0.0
        many = self.many * (0.5 if mesh.pipe == 2 else 1.0) if mesh.devices > MANY else 0.0
        return max(replicated, many)


FEW, MANY = 8, 256
"""Microbatches up to which replicas were not seen to stand still, and devices up to which most runs do not."""

AT_ONCE, NEVER = Host(), Stall()
"""A host that takes no time, and a pipeline that does not stand still."""
