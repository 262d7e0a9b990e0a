"""The catalogue of accelerators: peak rates, memories and links, each with its source, and what they reach.

Units: FLOP/s (dense), bytes, bytes/s of one device in one direction, seconds.
"""

import dataclasses

from meshkit.errors import MeshkitError, nearest

TERA, GIGA, MICRO, GIB = 1e12, 1e9, 1e-6, 2**30


@dataclasses.dataclass(frozen=True)
class Link:
    """What joins devices: bandwidth, bytes/s that one device sends; latency, seconds of one step of an exchange."""

    name: str
    bandwidth: float
    latency: float


@dataclasses.dataclass(frozen=True)
class Efficiency:
    """What a kind of device reaches of its peaks, 0 … 1. Fitted on published runs by `tests/planner/fit.py`.

    matmul: of peak FLOP/s, in large products. attention: of peak FLOP/s, in a flash kernel. memory: of memory
    bandwidth, in elementwise work. node, network: of the bandwidth of the links in a node, between nodes.
    """

    matmul: float = 0.75
    attention: float = 0.45
    memory: float = 0.8
    node: float = 0.75
    network: float = 0.75


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A kind of device. flops: dtype -> peak FLOP/s. memory: bytes. bandwidth: of memory, bytes/s.

    node: devices that `link` joins; network: what joins nodes, for one device.
    """

    name: str
    flops: dict[str, float]
    memory: float
    bandwidth: float
    node: int
    link: Link
    network: Link
    source: str
    efficiency: Efficiency = Efficiency()


NVLINK = ("NVLink", 3.0)
XGMI = ("Infinity Fabric", 3.0)
PCIE = ("PCIe", 5.0)
ICI = ("ICI", 1.0)
"""Links in a node, and µs of one step of an exchange over them. NVLink: 32 KiB all-reduced by 8 A100 in 44 µs,
14 steps (ml-engineering, network). ICI: about 1 µs a hop (scaling-book). The others are assumed."""

INFINIBAND = ("InfiniBand", 8.0)
DCN = ("DCN", 10.0)
"""Links between nodes, likewise. Calculon's systems have 10 … 20 µs for a whole exchange."""

ML_ENGINEERING = "stas00/ml-engineering 744d01e1, compute/accelerator and network READMEs"
LLM_ANALYSIS = "cli99/llm-analysis d841e40a, gpu_configs"
SCALING_BOOK = "jax-ml/scaling-book 0819a7d8, tpus.md"
NETWORK = "; network: one 400 Gb/s NIC a GPU"


def _device(
    tflops: float,
    memory: float,
    bandwidth: float,
    node: int,
    link: tuple[str, float],
    link_bandwidth: float,
    network: float,
    source: str,
    float8: float | None = None,
    between: tuple[str, float] = INFINIBAND,
    efficiency: Efficiency | None = None,
) -> dict:
    """From TFLOP/s, GB of memory (vendors' GB of HBM is 2^30), TB/s, GB/s a direction, GB/s a device."""
    rates = {"bfloat16": tflops * TERA, "float32": tflops * TERA / 2}
    return dict(
        flops=rates | ({"float8": float8 * TERA} if float8 else {}),
        memory=memory * GIB,
        bandwidth=bandwidth * TERA,
        node=node,
        link=Link(link[0], link_bandwidth * GIGA, link[1] * MICRO),
        network=Link(between[0], network * GIGA, between[1] * MICRO),
        source=source,
        efficiency=efficiency or Efficiency(),
    )


HOPPER = Efficiency(matmul=0.76, attention=0.45, memory=0.8, node=0.75, network=0.75)
AMPERE = Efficiency(matmul=0.83, attention=0.5, memory=0.8, node=0.75, network=0.75)
BLACKWELL = Efficiency(matmul=0.74, attention=0.4, memory=0.8, node=0.75, network=0.75)

CATALOGUE: dict[str, Accelerator] = {
    name: Accelerator(name, **values)
    for name, values in {
        "v100": _device(125, 32, 0.9, 8, NVLINK, 150, 12.5, f"{LLM_ANALYSIS}; its rate is float16's"),
        "a100-40": _device(312, 40, 1.555, 8, NVLINK, 300, 25, LLM_ANALYSIS, efficiency=AMPERE),
        "a100-80": _device(
            312, 80, 2.0, 8, NVLINK, 300, 25, f"{ML_ENGINEERING}; network: {LLM_ANALYSIS}", efficiency=AMPERE
        ),
        "h100": _device(989, 80, 3.35, 8, NVLINK, 450, 50, ML_ENGINEERING + NETWORK, 1979, efficiency=HOPPER),
        "h100-pcie": _device(756, 80, 2.0, 8, PCIE, 63, 25, ML_ENGINEERING, 1513, efficiency=HOPPER),
        "h200": _device(989, 141, 4.8, 8, NVLINK, 450, 50, ML_ENGINEERING + NETWORK, 1979, efficiency=HOPPER),
        "b200": _device(2250, 180, 8.0, 8, NVLINK, 900, 50, ML_ENGINEERING + NETWORK, 4500, efficiency=BLACKWELL),
        "gb200": _device(2500, 186, 8.0, 72, NVLINK, 900, 50, ML_ENGINEERING + NETWORK, 5000, efficiency=BLACKWELL),
        "mi300x": _device(1300, 192, 5.3, 8, XGMI, 448, 50, ML_ENGINEERING + NETWORK, 2610),
        "l40s": _device(362, 48, 0.86, 8, PCIE, 31, 25, ML_ENGINEERING, 733),
        "rtx4090": _device(165.2, 24, 1.008, 8, PCIE, 31, 12.5, "NVIDIA Ada whitepaper; no NVLink"),
        "tpu-v5e": _device(197, 16, 0.81, 256, ICI, 90, 6.25, f"{SCALING_BOOK}; 2 links of 45 GB/s", between=DCN),
        "tpu-v5p": _device(459, 96, 2.8, 8960, ICI, 270, 6.25, f"{SCALING_BOOK}; 3 links of 90 GB/s", between=DCN),
    }.items()
}
"""Accelerators by name. Of SXM boards where there are several; a TPU's node is its pod."""


def accelerator(name: str) -> Accelerator:
    """The catalogue's entry. Raises MeshkitError for an unknown name."""
    if name not in CATALOGUE:
        raise MeshkitError(f"accelerator {name!r}: not in the catalogue; {nearest(name, CATALOGUE)}")
    return CATALOGUE[name]
