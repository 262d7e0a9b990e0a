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
    """What a kind of device reaches of its peaks, 0 … 1. Fitted on published runs by `planner.evidence.fit`.

    matmul: of peak FLOP/s, in large products; float8: of that again, in float8. attention: of peak FLOP/s, in a flash
    kernel. memory: of memory bandwidth, in elementwise work. node, network: of the bandwidth of the links in a node,
    between nodes.
    """

    matmul: float = 0.75
    float8: float = 0.88
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


NVLINK = ("NVLink", 7.0)
NVLINK3, NVLINK5 = ("NVLink", 16.0), ("NVLink", 12.0)
XGMI = ("Infinity Fabric", 3.0)
PCIE = ("PCIe", 5.0)
ICI = ("ICI", 1.0)
"""Links in a node, and µs of one step of an exchange over them. NVLink: all-reduces of 32 … 256 MB by 8 H200 take
95 µs, by 8 A100 150 … 300 µs, by 8 B200 110 … 170 µs beyond their volume, 14 steps (ml-engineering, network). ICI:
about 1 µs a hop (scaling-book). The others are assumed."""

INFINIBAND = ("InfiniBand", 8.0)
EFA = ("EFA", 45.0)
DCN = ("DCN", 10.0)
"""Networks between nodes, and µs of one step of an exchange over them. EFA: all-gathers of 256 MB by 16 … 512 H100
take 30 … 45 µs a step beyond their volume, on average over a year of a cluster's jobs (Ultra-Scale Playbook); the
best of them 9 µs, which is taken for InfiniBand."""

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
    rates = {"bfloat16": tflops, "float8": float8}
    return dict(
        flops={dtype: rate * TERA for dtype, rate in rates.items() if rate},
        memory=memory * GIB,
        bandwidth=bandwidth * TERA,
        node=node,
        link=Link(link[0], link_bandwidth * GIGA, link[1] * MICRO),
        network=Link(between[0], network * GIGA, between[1] * MICRO),
        source=source,
        efficiency=efficiency or Efficiency(),
    )


AMPERE = Efficiency(matmul=0.80, attention=0.45, memory=0.9, node=0.78, network=0.9)
HOPPER = Efficiency(matmul=0.70, attention=0.40, memory=0.85, node=0.81, network=0.9)
BLACKWELL = Efficiency(matmul=0.53, attention=0.40, memory=0.8, node=0.76, network=0.9)
"""node: of a ring over large payloads, 234 of 300 GB/s, 365 of 450, 682 of 900 (ml-engineering); network: 365 GB/s for
8 × 50 GB/s (there too, H200 with EFA); float8: 70.9 of 80.3 % of H100's peaks (there too, MAMF). matmul and memory are
fitted, attention is FlashAttention 2's (arXiv 2307.08691)."""

FLOAT32 = {
    "v100": (15.7, "NVIDIA V100 data sheet; it has no TF32"),
    "a100-40": (156.0, "TF32, NVIDIA A100 data sheet"),
    "a100-80": (156.0, "TF32, NVIDIA A100 data sheet"),
    "h100": (494.5, "TF32, NVIDIA H100 data sheet, half of its 989 with sparsity"),
    "h100-pcie": (378.0, "TF32, NVIDIA H100 data sheet, half of its 756 with sparsity"),
    "h200": (494.5, "TF32, NVIDIA H200 data sheet, half of its 989 with sparsity"),
    "b200": (1100.0, "TF32, NVIDIA HGX B200 data sheet, half of its 2,200 with sparsity"),
    "gb200": (1250.0, "TF32, NVIDIA GB200 NVL72 data sheet, half of its 2,500 with sparsity"),
    "mi300x": (163.4, "matrix, AMD MI300X data sheet; its TF32 is not what float32 products use by default"),
    "l40s": (183.0, "TF32, NVIDIA L40S data sheet"),
    "rtx4090": (82.6, "TF32, NVIDIA Ada whitepaper"),
}
"""TFLOP/s, without sparsity, of what float32 products become on a kind of device, and where they are printed. A kind
that is absent has no such figure."""


def _float32(name: str) -> dict[str, float]:
    return {"float32": FLOAT32[name][0] * TERA} if name in FLOAT32 else {}


CATALOGUE: dict[str, Accelerator] = {
    name: Accelerator(name, **values | {"flops": values["flops"] | _float32(name)})
    for name, values in {
        "v100": _device(125, 32, 0.9, 8, NVLINK3, 150, 12.5, f"{LLM_ANALYSIS}; its rate is float16's"),
        "a100-40": _device(312, 40, 1.555, 8, NVLINK3, 300, 25, LLM_ANALYSIS, efficiency=AMPERE),
        "a100-80": _device(
            312, 80, 2.0, 8, NVLINK3, 300, 25, f"{ML_ENGINEERING}; network: {LLM_ANALYSIS}", efficiency=AMPERE
        ),
        "h100": _device(989, 80, 3.35, 8, NVLINK, 450, 50, ML_ENGINEERING + NETWORK, 1979, efficiency=HOPPER),
        "h100-pcie": _device(756, 80, 2.0, 8, PCIE, 63, 25, ML_ENGINEERING, 1513, efficiency=HOPPER),
        "h200": _device(989, 141, 4.8, 8, NVLINK, 450, 50, ML_ENGINEERING + NETWORK, 1979, efficiency=HOPPER),
        "b200": _device(2250, 180, 8.0, 8, NVLINK5, 900, 50, ML_ENGINEERING + NETWORK, 4500, efficiency=BLACKWELL),
        "gb200": _device(2500, 186, 8.0, 72, NVLINK5, 900, 50, ML_ENGINEERING + NETWORK, 5000, efficiency=BLACKWELL),
        "mi300x": _device(1300, 192, 5.3, 8, XGMI, 448, 50, ML_ENGINEERING + NETWORK, 2610),
        "l40s": _device(362, 48, 0.86, 8, PCIE, 31, 25, ML_ENGINEERING, 733),
        "rtx4090": _device(165.2, 24, 1.008, 8, PCIE, 31, 12.5, "NVIDIA Ada whitepaper; no NVLink"),
        "tpu-v5e": _device(197, 16, 0.81, 256, ICI, 90, 6.25, f"{SCALING_BOOK}; 2 links of 45 GB/s", between=DCN),
        "tpu-v5p": _device(459, 96, 2.8, 8960, ICI, 270, 6.25, f"{SCALING_BOOK}; 3 links of 90 GB/s", between=DCN),
    }.items()
}
"""Accelerators by name. Of SXM boards where there are several; a TPU's node is its pod."""


NETWORKS = {
    "efa": Link(EFA[0], 50 * GIGA, EFA[1] * MICRO),  # AWS P5: 3200 Gb/s a node of 8
    "omni-path": Link("Omni-Path", 6.25 * GIGA, 8 * MICRO),  # Jean Zay: 4 × 100 Gb/s a node of 8 (arXiv 2211.05100)
}
"""Networks that some clusters have instead of their accelerator's usual one."""


def accelerator(name: str) -> Accelerator:
    """The catalogue's entry, in capitals or not. Raises MeshkitError for an unknown name."""
    if name.lower() not in CATALOGUE:
        raise MeshkitError(f"accelerator {name!r}: not in the catalogue; {nearest(name.lower(), CATALOGUE)}")
    return CATALOGUE[name.lower()]
