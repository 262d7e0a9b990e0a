"""How long an exchange takes: volume over bandwidth first, then the algorithm's steps times their latency.

V is what one device ends up with (all-gather), starts from (reduce-scatter, all-reduce, all-to-all) or
hands on (a hop), in bytes. Peers in a node share what crosses its border: a node with k members of a
group has k network cards for it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from meshkit.planner.cluster import Cluster, Group


class Cost(NamedTuple):
    """Seconds: of the bytes at the links' bandwidth, V/B, and of the algorithm's steps."""

    transfer: float
    latency: float

    @property
    def seconds(self) -> float:
        """Both."""
        return self.transfer + self.latency


NOTHING = Cost(0.0, 0.0)


def one_way(volume: float, group: Group, cluster: Cluster) -> Cost:
    """An all-gather or a reduce-scatter: each device receives (n−1)/n of V, over a ring through all nodes.

    The rings of a node's members run side by side; the slowest level of links sets the pace.
    """
    n = group.size
    if n == 1 or volume == 0:
        return NOTHING
    times = [volume * (n - 1) / n / cluster.rate(0)] if group.in_node > 1 else []
    for level, members in ((1, group.in_node), (2, group.in_rack)):
        if n > members:
            times.append(volume * (n - members) / n / (group.in_node * cluster.rate(level)))
    return Cost(max(times), _ring_latency(group, cluster))


def all_reduce(volume: float, group: Group, cluster: Cluster) -> Cost:
    """A reduce-scatter, then an all-gather; between nodes a tree, whose steps grow with their logarithm."""
    transfer, _ = one_way(volume, group, cluster)
    if transfer == 0:
        return NOTHING
    inside = math.ceil(group.in_node) - 1
    across = math.ceil(math.log2(math.ceil(group.size / group.in_node)))
    latency = inside * cluster.links[0].latency + across * cluster.links[group.level].latency
    return Cost(2 * transfer, 2 * latency)


def all_to_all(volume: float, group: Group, cluster: Cluster) -> Cost:
    """Each device sends an n-th of V to each other, through its own card where that leaves the node."""
    n = group.size
    if n == 1 or volume == 0:
        return NOTHING
    times = [volume * max(0.0, group.in_node - 1) / n / cluster.rate(0)]
    for level, members in ((1, group.in_node), (2, group.in_rack)):
        times.append(volume * max(0.0, n - members) / n / cluster.rate(level))
    return Cost(max(times), _ring_latency(group, cluster))


def hop(volume: float, pipe: Group, cluster: Cluster) -> Cost:
    """From a stage to the next, over the widest link that any two neighbours cross."""
    if pipe.size == 1:
        return NOTHING
    return Cost(volume / cluster.rate(pipe.level), cluster.links[pipe.level].latency)


Exchange = Callable[[float, Group, Cluster], Cost]

EXCHANGES: dict[str, Exchange] = {
    "all-gather": one_way,
    "reduce-scatter": one_way,
    "all-reduce": all_reduce,
    "all-to-all": all_to_all,
    "hop": hop,
}
"""By the name of the collective: (bytes, group, cluster) -> Cost."""


def _ring_latency(group: Group, cluster: Cluster) -> float:
    """n − 1 steps, each as long as the slowest link of the ring takes."""
    return (group.size - 1) * cluster.links[group.level].latency
