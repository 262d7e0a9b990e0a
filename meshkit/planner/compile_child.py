"""The child process of `compile.py`: compiles one train step and writes what came out. Run as a module.

Standard input is a JSON object, `Request`; the file named by the first argument gets a JSON object: the fields of
`Answer`, or {"error": a sentence}. It runs by itself because JAX must be told its platform before it is imported,
and because a compiler for devices that are not there may crash, or never return.
"""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshkit.config import RunConfig, load
from meshkit.errors import MeshkitError
from meshkit.planner.figures import Figures, figures

if TYPE_CHECKING:
    from meshkit.train_step import TrainStep


@dataclasses.dataclass(frozen=True)
class Request:
    """config: what `config.load` takes. vocab: the data's, if known. nodes, per_node: of GPUs.

    target: text of a GpuTargetConfig; None: simulated CPU devices. hlo: a file for the compiled program's text.
    """

    config: dict[str, Any]
    vocab: int | None
    nodes: int
    per_node: int
    target: str | None
    hlo: str | None


@dataclasses.dataclass(frozen=True)
class Answer:
    """memory: bytes of one device, by XLA's names. figures: None on CPU, whose programs differ from a GPU's."""

    jax: str
    seconds: float
    vocab: int
    memory: dict[str, int]
    figures: Figures | None


def run(request: Request) -> Answer:
    """Compile what `request` asks for. Raises MeshkitError for a config that does not fit its devices."""
    import jax

    config = load(request.config)
    devices = _devices(request)
    with jax.enable_x64(config.precision == "float64"):
        return _compiled(config, devices, request)


def _devices(request: Request) -> Any:
    if request.target is None:
        from meshkit.equality.verify import cpu_devices

        return cpu_devices(request.nodes * request.per_node)
    from jax.experimental import topologies

    # Partitions × hosts × GPUs a host. Devices come numbered host by host, all of slice 0 however they are cut into
    # partitions (jax 0.10.2, 0.12.0.1). `mesh.build` therefore takes them for one node, and lays them out in order,
    # which is how it lays out devices numbered node by node.
    shape = f"1x{request.nodes}x{request.per_node}"
    return topologies.get_topology_desc("", "cuda", target_config=request.target, topology=shape).devices


def _compiled(config: RunConfig, devices: Any, request: Request) -> Answer:
    import jax

    from meshkit import assemble, hlo, mesh
    from meshkit.pipeline.trips import Trips
    from meshkit.simulate import QUICK

    step = assemble.train_step(config, mesh.build(config.mesh, devices), request.vocab)
    started = time.perf_counter()
    # What a CPU's code is like does not matter; that the partitioner and the check of gates let it pass does.
    compiled = step.compile(*arguments(step), QUICK if request.target is None else None)
    seconds = time.perf_counter() - started
    text = compiled.as_text()
    if request.hlo is not None:
        Path(request.hlo).write_text(text, encoding="utf-8")
    stats = compiled.memory_analysis()
    names = ("argument", "output", "alias", "temp", "host_temp")
    memory = {name: int(getattr(stats, f"{name}_size_in_bytes")) for name in names}
    found = None
    if request.target is not None:
        nodes = [device.process_index for device in step.mesh.devices.flat]
        trips = Trips(step.schedule, step.stages.placement)
        found = figures(hlo.read(text), trips, dict(step.mesh.shape), nodes)
    return Answer(jax.__version__, seconds, step.stages.vocab, memory, found)


def arguments(step: "TrainStep") -> tuple[Any, dict[str, Any]]:
    """Shapes of the state and of a batch, with the layouts that `train` gives them."""
    import jax

    from meshkit.data.loader import DTYPES, SEGMENTS

    config, data = step.config, step.config.mesh.data
    state = jax.tree.map(
        lambda a, sharding: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding),
        jax.eval_shape(step.init, config.seed),
        step.state_shardings,
    )
    shape = config.pipeline.microbatches, config.microbatch_size(data) * data, config.data.sequence
    dtypes = DTYPES | (SEGMENTS if config.data.documents == "apart" else {})
    return state, {k: jax.ShapeDtypeStruct(shape, d, sharding=step.batch_sharding) for k, d in dtypes.items()}


def main(answer: Path) -> None:
    """Answer the request on standard input."""
    try:
        said = dataclasses.asdict(run(Request(**json.load(sys.stdin))))
    except MeshkitError as error:
        said = {"error": str(error)}
    answer.write_text(json.dumps(said), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
