"""What is read from a compiled step against what its schedule and its model's shapes say. Nothing is run.

Compiled for simulated CPU devices, whose attention is made of plain products over the whole square of scores.
"""

import functools
from typing import Any, NamedTuple

import jax
import pytest

from meshkit import assemble, config, hlo, mesh
from meshkit.mesh import DATA, PIPE, TENSOR
from meshkit.pipeline.trips import Trips
from meshkit.planner.compile_child import arguments
from meshkit.planner.figures import Figures, figures
from meshkit.train_step import TrainStep

pytestmark = pytest.mark.usefixtures("compiled_quickly")

WIDTH, HEADS, KV_HEADS, HEAD_DIM, MLP, VOCAB = 32, 4, 2, 8, 48, 96
SEQUENCE, MICROBATCH_SIZE, MICROBATCHES = 16, 2, 6
TOKENS = MICROBATCH_SIZE * SEQUENCE
PRODUCTS = 2 * TOKENS * (WIDTH * (HEADS + 2 * KV_HEADS) * HEAD_DIM + HEADS * HEAD_DIM * WIDTH + 3 * WIDTH * MLP)
DOWN = 2 * TOKENS * MLP * WIDTH
ATTENTION = 2 * 2 * MICROBATCH_SIZE * HEADS * SEQUENCE**2 * HEAD_DIM
HEAD = 3 * 2 * TOKENS * WIDTH * VOCAB


class Layout(NamedTuple):
    data: int = 1
    tensor: int = 1
    pipe: int = 1
    schedule: str = "1f1b"
    virtual: int = 1
    layers: int | list[int] = 4
    recompute: str = "full"
    zero: int = 1
    more: tuple[tuple[str, Any], ...] = ()


@functools.lru_cache
def compiled(layout: Layout) -> tuple[TrainStep, Figures]:
    layers = layout.layers if isinstance(layout.layers, int) else sum(layout.layers)
    run = config.load(
        {
            "mesh": {DATA: layout.data, TENSOR: layout.tensor, PIPE: layout.pipe},
            "pipeline": {
                "schedule": layout.schedule,
                "microbatches": MICROBATCHES,
                "virtual": layout.virtual,
                "layers_per_stage": None if isinstance(layout.layers, int) else list(layout.layers),
            },
            "model": dict(
                preset="tiny",
                layers=layers,
                width=WIDTH,
                heads=HEADS,
                kv_heads=KV_HEADS,
                mlp_width=MLP,
                vocab=VOCAB,
            ),
            "data": {"batch": MICROBATCHES * MICROBATCH_SIZE * layout.data, "sequence": SEQUENCE},
            "precision": "float32",
            "recompute": layout.recompute,
            "zero": layout.zero,
        },
        dict(layout.more),
    )
    devices = jax.devices()[: layout.data * layout.tensor * layout.pipe]
    step = assemble.train_step(run, mesh.build(run.mesh, devices))
    program = hlo.read(step.compile(*arguments(step)).as_text())
    trips = Trips(step.schedule, step.stages.placement)
    nodes = [device.id // 4 for device in step.mesh.devices.flat]
    return step, figures(program, trips, dict(step.mesh.shape), nodes)
