"""`meshkit plan --calibrate FILE`: measures the devices that are here and writes them as a cluster's file.

What is written are rates that were reached, as the device's peaks, and the shares of them that a layer's own shapes
reach; of links, bandwidth and latency as in `collectives.py`, fitted to all-gathers of several sizes.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshkit.errors import MeshkitError
from meshkit.planner.hardware import GIB, GIGA, MICRO, TERA

ENOUGH = 0.01
"""Seconds that one measured call shall last at least."""

REPEATS = 5

THIN = 16
"""A layer's products under tensor parallelism are this much thinner in one dim than the ones that reach the peak."""

PAYLOADS = [2**k for k in (18, 20, 22, 24)]
"""Bytes that each device ends up with after an all-gather."""


class Links(NamedTuple):
    """Bytes/s that a device receives, and seconds of one step of a ring."""

    bandwidth: float
    latency: float


def calibrate(path: Path) -> dict[str, Any]:
    """Measures all devices, writes `path`, and returns what it wrote.

    Raises MeshkitError when the file cannot be written.
    """
    import jax
    import tomli_w

    from meshkit.mesh import node_of

    devices = jax.devices()
    nodes: dict[int, list[Any]] = {}
    for device in devices:
        nodes.setdefault(node_of(device), []).append(device)
    peak, thin = _products(devices[0])
    wide, narrow = _bandwidth(devices[0])
    file: dict[str, Any] = {
        "nodes": len(nodes),
        "per_node": len(next(iter(nodes.values()))),
        "device": {
            "name": devices[0].device_kind.lower().replace(" ", "-"),
            "tflops": peak / TERA,
            "memory": _memory(devices[0], len(devices)) / GIB,
            "bandwidth": wide / TERA,
            "source": f"measured by meshkit plan --calibrate on {len(devices)} devices",
            "efficiency": {
                "matmul": min(1.0, thin / peak),
                "memory": min(1.0, narrow / wide),
                "attention": min(1.0, thin / peak),
                "node": 1.0,
                "network": 1.0,
            },
        },
        "links": {"node": _link("node", measured_links(next(iter(nodes.values()))))},
    }
    if len(nodes) > 1:
        file["links"]["network"] = _link("network", measured_links([members[0] for members in nodes.values()]))
    try:
        path.write_text(tomli_w.dumps(file), encoding="utf-8")
    except OSError as error:
        raise MeshkitError(f"--calibrate {path}: cannot be written: {error}") from None
    return file


def fit_links(times: Sequence[float], payloads: Sequence[int], members: int) -> Links:
    """Bandwidth and latency from seconds of all-gathers: t = V·(n−1)/n / bandwidth + (n−1)·latency."""
    volume = np.asarray(payloads) * (members - 1) / members
    # Weighed by their inverse: small payloads tell the latency, large ones the bandwidth.
    weights = 1 / np.asarray(times)
    columns = np.stack([volume, np.full(len(payloads), members - 1.0)], axis=1) * weights[:, None]
    slope, step = np.linalg.lstsq(columns, np.asarray(times) * weights, rcond=None)[0]
    # Noise may leave no slope: then the links are at least as fast as the fastest of these calls.
    fastest = float((volume / np.asarray(times)).max())
    return Links(1 / slope if slope > 0 else fastest, max(0.0, float(step)))


def measured_links(devices: Sequence[Any]) -> Links:
    """What joins some devices; a single one is its own neighbour, at the speed of its memory."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    from meshkit import mesh
    from meshkit.config import MeshShape
    from meshkit.mesh import DATA
    from meshkit.pipeline.collectives import all_gather

    if len(devices) == 1:
        return Links(_bandwidth(devices[0])[0], 0.0)
    peers = mesh.build(MeshShape(data=len(devices)), devices)
    times = []
    for payload in PAYLOADS:
        size = payload // 4 // len(devices) * len(devices)
        gather = jax.shard_map(
            lambda x: all_gather(x, DATA, 0), mesh=peers, in_specs=P(DATA), out_specs=P(), check_vma=False
        )
        values = jax.device_put(jnp.zeros(size), jax.NamedSharding(peers, P(DATA)))
        times.append(_seconds(jax.jit(gather), values))
    return fit_links(times, PAYLOADS, len(devices))


def _products(device: Any) -> tuple[float, float]:
    """FLOP/s of a square product that lasts long enough, and of one that is THIN in one dim."""
    import jax
    import jax.numpy as jnp

    def rate(size: int, inner: int) -> tuple[float, float]:
        a, b = (jax.device_put(jnp.ones(shape, jnp.bfloat16), device) for shape in ((size, inner), (inner, size)))
        seconds = _seconds(jax.jit(jnp.matmul), a, b)
        return 2 * size * size * inner / seconds, seconds

    size = 256
    while True:
        peak, seconds = rate(size, size)
        if seconds > ENOUGH or size >= 16384:
            return peak, rate(size, max(1, size // THIN))[0]
        size *= 2


def _bandwidth(device: Any) -> tuple[float, float]:
    """Bytes/s of memory, read and written, by a large and by a small elementwise operation."""
    import jax
    import jax.numpy as jnp

    def rate(count: int) -> tuple[float, float]:
        seconds = _seconds(jax.jit(lambda x: x + 1), jax.device_put(jnp.zeros(count), device))
        return 2 * 4 * count / seconds, seconds

    count = 2**18
    while True:
        large, seconds = rate(count)
        if seconds > ENOUGH or count >= 2**30:
            return large, min(large, rate(count // THIN)[0])
        count *= 2


def _seconds(call: Callable[..., Any], *arguments: Any) -> float:
    """The fastest of several calls, after one that compiles."""
    call(*arguments).block_until_ready()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call(*arguments).block_until_ready()
        times.append(time.perf_counter() - start)
    return min(times)


def _memory(device: Any, devices: int) -> float:
    """Bytes of a device; of simulated ones, their share of the machine's."""
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return float(limit or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / devices)


def _link(name: str, links: Links) -> dict[str, Any]:
    return {"name": name, "bandwidth": links.bandwidth / GIGA, "latency": links.latency / MICRO}
