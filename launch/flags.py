"""Settings of XLA, JAX and NCCL that matter on a cluster of GPUs, each with its reason. No JAX.

The scripts for SLURM and Kubernetes set them where the user has not; nothing else in meshkit does. What a site's
network needs (NCCL_SOCKET_IFNAME, NCCL_IB_HCA …) only the site knows: set it in the environment, it is passed on.
XLA refuses to start with a flag that it does not know, so every one here is tested against the installed version.
"""

from typing import NamedTuple


class Setting(NamedTuple):
    """One flag of XLA (`--xla_…`) or one environment variable, its value, and why."""

    name: str
    value: str
    reason: str


SETTINGS = (
    Setting(
        "--xla_gpu_enable_latency_hiding_scheduler",
        "true",
        "starts exchanges early and ends them late, so that compute hides the gather of the next layer's weights",
    ),
    Setting(
        "--xla_gpu_nccl_terminate_on_error",
        "true",
        "an error of NCCL, as of a broken link, ends the process, and a restart mends it, instead of a silent hang",
    ),
    Setting(
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
        "0.9",
        "JAX takes 75 % of a GPU by itself; the rest is for NCCL's buffers and the CUDA context, which need less",
    ),
    Setting("NCCL_DEBUG", "WARN", "NCCL says why it fails; silent by default, and quiet when all is well"),
)


def environment() -> dict[str, tuple[str, list[str]]]:
    """Variable -> (value, reasons); the flags of XLA are one variable."""
    flags = [setting for setting in SETTINGS if setting.name.startswith("--")]
    xla = " ".join(f"{setting.name}={setting.value}" for setting in flags)
    others = {setting.name: (setting.value, [setting.reason]) for setting in SETTINGS if setting not in flags}
    return {"XLA_FLAGS": (xla, [f"{flag.name}: {flag.reason}" for flag in flags]), **others}
