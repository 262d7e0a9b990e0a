"""What the planner expects of a run that starts: to be set beside what came out. No JAX."""

import dataclasses
from collections.abc import Sequence

from meshkit.config import RunConfig
from meshkit.errors import MeshkitError
from meshkit.models.presets import sizes
from meshkit.planner import cluster, memory
from meshkit.planner.counts import parameters
from meshkit.planner.estimate import estimate
from meshkit.planner.hardware import CATALOGUE, Accelerator
from meshkit.planner.layout import Job, beyond, of_config
from meshkit.planner.profile import MESHKIT
from meshkit.planner.workload import Workload


@dataclasses.dataclass(frozen=True)
class Forecast:
    """step_seconds: None where `why` says that the device is not known; memory_bytes: of a device of the fullest
    stage, None where it says that the run is not."""

    step_seconds: float | None
    memory_bytes: float | None
    why: str


def forecast(config: RunConfig, vocab: int, model_parameters: int, device_kind: str, nodes: Sequence[int]) -> Forecast:
    """The forecast of a config whose mesh is resolved.

    vocab: the model's; model_parameters: how many it really has; device_kind: as the runtime calls it; nodes: of
    each device, as `mesh.node_of` numbers them.
    """
    chosen = sizes(config.model, vocab)
    unknown = beyond(config, chosen)
    if not unknown and model_parameters != parameters(chosen):  # a model given to `train`, not named in the config
        unknown.append("a model of one's own")
    if unknown:
        return Forecast(None, None, f"the planner does not know {', '.join(unknown)}")
    job = Job(config.model.preset, chosen, config.data.batch, config.data.sequence, config.precision)
    layout = of_config(config, config.mesh)
    kind = kind_of(device_kind)
    on = cluster.regular(kind or CATALOGUE["h100"], config.mesh.devices, len(nodes) // len(set(nodes)))
    if kind is None:
        # Memory does not depend on the kind of device.
        work = Workload(chosen, job.sequence, on, MESHKIT, job.precision)
        held = max(sum(stage.values()) for stage in memory.stages(work, layout))
        return Forecast(None, held, f"no rates of {device_kind} are known: meshkit plan --calibrate measures them")
    try:
        found = estimate(job, layout, on)
    except MeshkitError as error:
        return Forecast(None, None, str(error))
    return Forecast(found.step, found.peak_memory, "")


def kind_of(device_kind: str) -> Accelerator | None:
    """The catalogue's entry whose name the runtime's name has in it: NVIDIA H100 80GB HBM3 is h100."""
    words = device_kind.lower().replace("-", " ").split()
    names = {name: name.replace("-", " ").split() for name in CATALOGUE}
    if any(word.startswith("a100") for word in words):
        return CATALOGUE["a100-80" if "80gb" in "".join(words) else "a100-40"]
    found = [name for name, parts in names.items() if all(part in words for part in parts)]
    return CATALOGUE[max(found, key=len)] if found else None
