"""The device mesh: three named axes, and who sits where. The only file that builds a Mesh.

Placement: tensor peers talk most, so they sit next to each other inside a node; then the
stages of a pipeline, node by node; data replicas, which talk once a step, are farthest apart. In
order of devices that is data outermost, then pipe, tensor innermost; in the Mesh the axes are
named in the order ('data', 'tensor', 'pipe').
"""

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshkit.config import MeshShape
from meshkit.errors import MeshkitError

if TYPE_CHECKING:
    import numpy as np
    from jax.sharding import Mesh

DATA, TENSOR, PIPE = "data", "tensor", "pipe"
AXES = (DATA, TENSOR, PIPE)


def resolve(shape: MeshShape, devices: int, simulated: bool = False) -> MeshShape:
    """`shape` with its -1 filled in, so that data × tensor × pipe = `devices`; if `simulated`, there could be more.

    Raises MeshkitError naming the numbers and the nearest meshes that fit.
    """
    known = 1
    for size in shape.sizes.values():
        known *= max(size, 1)
    free = [axis for axis, size in shape.sizes.items() if size == -1]
    if free and devices % known == 0:
        return shape.model_copy(update={free[0]: devices // known})
    if not free and known == devices:
        return shape
    has = " × ".join(f"{axis} {'?' if size == -1 else size}" for axis, size in shape.sizes.items())
    choices = "; ".join(str(s) for s in nearest_shapes(shape, devices))
    raise MeshkitError(
        f"mesh {has} takes {'a multiple of ' if free else ''}{known} devices and there are {devices}: "
        f"set mesh.data, mesh.tensor, mesh.pipe to one of: {choices}"
        + (f"; or simulate {known} with devices = {known}" if simulated and not free else "")
    )


def nearest_shapes(shape: MeshShape, devices: int, most: int = 3) -> list[MeshShape]:
    """The meshes of exactly `devices` devices that change `shape` least (tensor and pipe first kept)."""

    def distance(candidate: MeshShape) -> tuple[float, ...]:
        # Changing data costs nothing in memory or placement; changing the others does.
        ratio = {a: max(c / w, w / c) for (a, c), w in zip(candidate.sizes.items(), wanted, strict=True)}
        return (ratio[TENSOR] * ratio[PIPE], ratio[DATA])

    wanted = [max(size, 1) for size in shape.sizes.values()]
    divisors = [k for k in range(1, devices + 1) if devices % k == 0]
    candidates = [
        MeshShape(data=devices // (t * p), tensor=t, pipe=p)
        for t, p in itertools.product(divisors, divisors)
        if devices % (t * p) == 0
    ]
    return sorted(candidates, key=distance)[:most]


def place(shape: MeshShape, nodes: "Sequence[Any]") -> "np.ndarray":
    """Positions into `nodes` for every mesh coordinate: int array [data, tensor, pipe].

    `nodes[i]` tells the node of device i (any hashable, sortable value). Devices are taken node by
    node, in the given order inside a node.
    """
    import numpy as np

    order = sorted(range(len(nodes)), key=lambda i: (nodes[i], i))
    return np.array(order).reshape(shape.data, shape.pipe, shape.tensor).transpose(0, 2, 1)


def crossings(shape: MeshShape, nodes: "Sequence[Any]") -> dict[str, int]:
    """Axis -> how many of its groups have members on more than one node."""
    import numpy as np

    grid = np.array(nodes, dtype=object)[place(shape, nodes)]
    crossed = {}
    for dim, axis in enumerate(AXES):
        groups = np.moveaxis(grid, dim, -1).reshape(-1, grid.shape[dim])
        crossed[axis] = sum(len(set(group)) > 1 for group in groups)
    return crossed


def build(shape: MeshShape, devices: "Sequence[Any] | None" = None) -> "Mesh":
    """The `jax.sharding.Mesh` with axes ('data', 'tensor', 'pipe') over `devices` (default: all).

    Warns when a tensor group leaves its node. Raises MeshkitError when the numbers do not multiply.
    """
    import jax
    import numpy as np
    from jax.sharding import AxisType, Mesh

    devices = jax.devices() if devices is None else list(devices)
    shape = resolve(shape, len(devices), simulated=devices[0].platform == "cpu")
    nodes = [node_of(d) for d in devices]
    warning = placement_warning(shape, nodes)
    if warning:
        warnings.warn(warning, stacklevel=2)
    grid = np.array(devices, dtype=object)[place(shape, nodes)]
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 3)


def placement_warning(shape: MeshShape, nodes: "Sequence[Any]") -> str | None:
    """A sentence about tensor groups that span nodes, or None when every one sits inside a node."""
    crossed = crossings(shape, nodes)[TENSOR]
    if not crossed:
        return None
    sizes = sorted({list(nodes).count(node) for node in set(nodes)})
    fit = max(t for t in range(1, shape.tensor + 1) if math.gcd(*sizes) % t == 0)
    return (
        f"{crossed} of {shape.data * shape.pipe} tensor groups (mesh.tensor = {shape.tensor}) have members on "
        f"more than one node ({' or '.join(map(str, sizes))} devices a node): their all-reduces, several a "
        f"layer, cross the network between nodes instead of NVLink. Set mesh.tensor to {fit} or a divisor of it."
    )


def node_of(device: Any) -> int:
    """A number for the node a device sits in: the devices that share the fastest links.

    On GPU one process may own one GPU, so processes are not nodes. The runtime's slice index is: as
    processes connect, XLA gives one to each kernel boot id, so to each host whatever its containers
    and processes, and one to hosts that share an NVLink fabric. (JAX_PARTITION_INDEX overrides it.)
    Devices without a slice index, as simulated ones, are on a node for each process.
    """
    slice_index: int | None = getattr(device, "slice_index", None) if device.platform == "gpu" else None
    return device.process_index if slice_index is None else slice_index
