"""What stages of unequal length cost in a compiled step, beside the formulas: its time, its memory.

A tick lasts as long as the busiest stage in it, if a stage with fewer layers than the longest does no more than its
own. Whether it does is counted in the program: products for a row of a chunk, run where that row is empty.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from meshkit import hlo
from meshkit.data import loader
from meshkit.pipeline import closed_forms
from meshkit.pipeline.costs import action_costs
from meshkit.pipeline.placement import ROW
from meshkit.pipeline.slots import PHASE
from meshkit.pipeline.trips import Trips
from meshkit.planner import flow
from meshkit.planner.products import flops
from meshkit.train_step import TrainStep

EXACT = 1e-9
"""Counts are whole numbers; what rounding makes of their quotients, and no more."""

_ROW = re.compile(rf"(?:^|/){PHASE}_(\d+)/(?:.*?/)??(forward|backward|weight)/(?:.*?/)??{ROW}_(\d+)/")


@dataclasses.dataclass(frozen=True)
class Cost:
    """One cost of the step: as the compiled program has it, and by the formula."""

    quantity: str
    unit: str
    compiled: float
    formula: float

    @property
    def ok(self) -> bool:
        """Whether they are the same."""
        return math.isclose(self.compiled, self.formula, rel_tol=EXACT)


def costs(step: TrainStep, compiled: Any) -> list[Cost]:
    """Work on layers that a stage has not; the table's time in lock-step, in forwards of a mean stage; bytes of state
    and batch."""
    placement, schedule = step.stages.placement, step.schedule
    found = [
        Cost("work on layers that a stage has not", "FLOP", _wasted(compiled, Trips(schedule, placement)), 0),
        Cost("state and batch of a device", "B", compiled.memory_analysis().argument_size_in_bytes, _held(step)),
    ]
    if schedule.name in closed_forms.TIME:
        kinds = action_costs(schedule, step.config.recompute)
        each = {kind: cost * schedule.stages / placement.layers for kind, cost in kinds.items()}
        size = schedule.stages, schedule.microbatches, schedule.chunks, schedule.hop
        formula = flow.lock_step(flow.Table(schedule.name, *size), each, placement.counts)
        found.insert(1, Cost("time in lock-step", "F", schedule.cost(kinds, placement.shares), formula))
    return found


def _wasted(compiled: Any, trips: Trips) -> float:
    """FLOPs, of all stages, of products for a row that the chunk at work has not; NaN where they cannot be counted.

    A loop that ends when it will (over the rows of an expert) counts as one trip: none is what has to come out.
    """
    wasted = 0.0
    for computation, instruction, loops in hlo.read(compiled.as_text()).walk():
        row, done = _ROW.search(instruction.op_name), flops(computation, instruction)
        if row is None or done == 0:
            continue
        runs = trips.by_tick(loops, instruction.op_name)
        if done is None or runs is None:
            return math.nan
        phase = trips.phases[int(row[1])]
        open_ = trips.open(phase, row[2], int(row[3]))
        wasted += done * float(runs[phase.start : phase.stop][~open_].sum())
    return wasted


def _held(step: TrainStep) -> int:
    """Bytes of a device: stages hold rows for as many layers as the longest, in the cut of each parameter."""
    state: Mapping[str, Any] = jax.eval_shape(step.init, step.config.seed)
    shards = jax.tree.map(
        lambda leaf, sharding: math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize,
        state,
        step.state_shardings,
    )
    tokens = step.config.data.batch // step.mesh.shape["data"] * step.config.data.sequence
    kinds = loader.DTYPES | (loader.SEGMENTS if step.config.data.documents == "apart" else {})
    return sum(jax.tree.leaves(shards)) + tokens * sum(np.dtype(kind).itemsize for kind in kinds.values())
