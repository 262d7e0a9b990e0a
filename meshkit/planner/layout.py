"""What is trained, and how it is cut: a job and a layout of it."""

import dataclasses
import functools

from meshkit.config import MeshShape, RunConfig
from meshkit.models.presets import Sizes
from meshkit.pipeline.closed_forms import TIME
from meshkit.pipeline.costs import uncounted
from meshkit.pipeline.placement import Placement, place
from meshkit.planner.flow import Table

BFLOAT16, FLOAT32 = 2, 4

SCHEDULES = tuple(TIME)
"""Those that there are closed forms for."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A model, tokens of a sample, samples of a step (the global batch), and the dtype of its arithmetic."""

    model: str
    sizes: Sizes
    batch: int
    sequence: int
    precision: str = "bfloat16"

    # An unhashable field of Sizes (options) must not keep jobs out of caches: a job is its identity.
    def __hash__(self) -> int:
        return hash((self.model, self.sizes.layers, self.sizes.width, self.batch, self.sequence))


@dataclasses.dataclass(frozen=True)
class Layout:
    """One way to cut a job. microbatch: samples of a replica that flow together; microbatches: how many a step.

    sequence_parallel: activations between layers cut over tensor too (meshkit always does; others may not).
    schedule: a builder's name or a grid's file. layers_per_stage: of each of the P·v groups; None: as even as can be.
    overlap: a hop has a whole tick.
    """

    mesh: MeshShape
    microbatch: int
    microbatches: int
    schedule: str = "1f1b"
    virtual: int = 1
    recompute: str = "full"
    zero: int = 1
    sequence_parallel: bool = True
    layers_per_stage: tuple[int, ...] | None = None
    overlap: bool = False

    @property
    def table(self) -> Table:
        """Which table the schedule is."""
        return Table(self.schedule, self.mesh.pipe, self.microbatches, self.virtual, 2 if self.overlap else 1)

    @property
    def chunks(self) -> int:
        """Groups of layers that stages hold in all."""
        return self.mesh.pipe * self.virtual

    def placement(self, layers: int) -> Placement:
        """Which of a model's `layers` sit where."""
        return placement(layers, self.mesh.pipe, self.virtual, self.layers_per_stage)

    def __str__(self) -> str:
        mesh, virtual = self.mesh, f" v={self.virtual}" if self.virtual > 1 else ""
        overlap = ", overlap" if self.overlap else ""
        layers = f", layers {'+'.join(map(str, self.layers_per_stage))}" if self.layers_per_stage else ""
        return (
            f"D={mesh.data} T={mesh.tensor} P={mesh.pipe}, {self.microbatches} microbatches of {self.microbatch}, "
            f"{self.schedule}{virtual}{overlap}{layers}, recompute {self.recompute}, zero {self.zero}"
        )


@functools.lru_cache(maxsize=1024)
def placement(layers: int, stages: int, chunks: int, per_stage: tuple[int, ...] | None = None) -> Placement:
    """`place`, remembered: a search asks for the same few."""
    return place(layers, stages, chunks, per_stage)


@functools.lru_cache(maxsize=1024)
def balanced(layers: int, stages: int, head: float) -> tuple[int, ...]:
    """Layers of each stage as nanotron balances them: a stage takes blocks until it has its share of the work.

    head: the work of the head in layers.
    """
    share = (layers + head) / stages
    counts, stage = [0] * stages, 0
    for done in range(1, layers + 1):
        counts[stage] += 1
        if done >= share * (stage + 1) and stage < stages - 1:
            stage += 1
    return tuple(counts)


def of_config(config: RunConfig, mesh: MeshShape) -> Layout:
    """The layout that a config asks for on a resolved mesh."""
    pipeline = config.pipeline
    return Layout(
        mesh,
        config.microbatch_size(mesh.data),
        pipeline.microbatches,
        pipeline.schedule,
        pipeline.virtual,
        config.recompute,
        config.zero,
        layers_per_stage=None if pipeline.layers_per_stage is None else tuple(pipeline.layers_per_stage),
        overlap=pipeline.overlap,
    )


def beyond(config: RunConfig, sizes: Sizes) -> list[str]:
    """The keys of a config, with their values, that the planner has no figures for."""
    known = {
        "offload": (config.offload, (False,)),
        "grad_dtype": (config.grad_dtype, ("float32",)),
        "loss": (config.loss, ("cross_entropy",)),
        "data.documents": (config.data.documents, ("joined",)),
        "optimizer.name": (config.optimizer.name, ("adamw",)),
    }
    model = [what for what in [uncounted(sizes)] if what is not None]
    return model + [f"{key} = {value}" for key, (value, values) in known.items() if value not in values]
