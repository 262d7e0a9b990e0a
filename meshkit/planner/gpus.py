"""What XLA's CUDA compiler must know of a GPU that is not there: one entry a kind.

The figures are those that the driver reports (`cudaGetDeviceProperties`), as vendors' data sheets, deviceQuery
listings and OpenXLA's own descriptions of these GPUs give them. Memory is what a program can address, some less
than the size on the box; bandwidth is memory clock × bus width.
"""

import dataclasses

from meshkit.errors import MeshkitError, nearest

TERA, KIB, MIB = 10**12, 2**10, 2**20


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU kind. capability: of CUDA, (major, minor). memory, bandwidth, l2, shared: bytes and bytes/s.

    cores: multiprocessors; fpus: float32 units of one; threads: most on one; shared: its shared memory, of which
    a block may have all but 1 KiB. clock: GHz.
    """

    description: str
    capability: tuple[int, int]
    cores: int
    fpus: int
    threads: int
    shared: int
    l2: int
    memory: int
    bandwidth: int
    clock: float

    def target_config(self, cudnn: tuple[int, int, int]) -> str:
        """XLA's GpuTargetConfigProto as text. cudnn: the version at hand, which runs in the compiler."""
        major, minor = self.capability
        return f"""
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  core_count: {self.cores}
  fpus_per_core: {self.fpus}
  clock_rate_ghz: {self.clock}
  device_memory_size: {self.memory}
  memory_bandwidth: {self.bandwidth}
  l2_cache_size: {self.l2}
  shared_memory_per_block: {48 * KIB}
  shared_memory_per_block_optin: {self.shared - KIB}
  shared_memory_per_core: {self.shared}
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: {self.threads}
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}}
platform_name: "CUDA"
dnn_version_info {{ major: {cudnn[0]} minor: {cudnn[1]} patch: {cudnn[2]} }}
device_description_str: "{self.description}"
"""


def _ampere(description: str, memory: int, bandwidth: float) -> Gpu:
    return Gpu(description, (8, 0), 108, 64, 2048, 164 * KIB, 40 * MIB, memory, round(bandwidth * TERA), 1.41)


def _hopper(description: str, cores: int, memory: int, bandwidth: float, clock: float) -> Gpu:
    return Gpu(description, (9, 0), cores, 128, 2048, 228 * KIB, 50 * MIB, memory, round(bandwidth * TERA), clock)


def _blackwell(description: str, cores: int, l2: int, memory: int, bandwidth: float, clock: float) -> Gpu:
    return Gpu(description, (10, 0), cores, 128, 2048, 228 * KIB, l2, memory, round(bandwidth * TERA), clock)


def _ada(description: str, cores: int, l2: int, memory: int, bandwidth: float) -> Gpu:
    return Gpu(description, (8, 9), cores, 128, 1536, 100 * KIB, l2, memory, round(bandwidth * TERA), 2.52)


GPUS = {
    "a100-40": _ampere("NVIDIA A100-SXM4-40GB", 42_298_834_944, 1.5552),
    "a100-80": _ampere("NVIDIA A100-SXM4-80GB", 85_100_068_864, 2.03904),
    "h100": _hopper("NVIDIA H100 80GB HBM3", 132, 84_942_979_072, 3.35232, 1.98),
    "h100-pcie": _hopper("NVIDIA H100 PCIe", 114, 84_942_979_072, 2.03904, 1.755),
    "h200": _hopper("NVIDIA H200", 132, 151_397_597_184, 4.8, 1.98),
    "b200": _blackwell("NVIDIA B200", 148, 132_644_864, 191_514_411_008, 7.67232, 1.965),
    "gb200": _blackwell("NVIDIA GB200", 152, 135_528_448, 197_897_748_480, 7.928064, 2.062),
    "l40s": _ada("NVIDIA L40S", 142, 96 * MIB, 47_697_362_944, 0.864096),
    "rtx4090": _ada("NVIDIA GeForce RTX 4090", 128, 72 * MIB, 25_386_352_640, 1.008096),
}
"""By the names of the planner's catalogue."""


def gpu(name: str) -> Gpu:
    """The entry of a kind. Raises MeshkitError for one that the CUDA compiler, or this table, does not know."""
    if name not in GPUS:
        raise MeshkitError(
            f"the CUDA compiler cannot be told about {name!r}; {nearest(name, GPUS)}; --backend cpu checks that the "
            "step is legal on any cluster, without its memory"
        )
    return GPUS[name]
