"""How often each stage runs what stands in a compiled step, its gates counted from the schedule. NumPy only.

The compiler knows the trips of a scan, but not of a gate: a loop of zero or one trip that the tables which the
executor reads open and close. Those tables are made on the host, and every loop that they steer says in its name
which entries steer it: `phase_1/while` is the scan over the ticks of phase 1; `phase_1/…/forward/stage_gate/while`
in it opens where the column `forward` has a microbatch; `row_2/stage_gate/while` in that, where the chunk at work
has a layer in row 2. So what stands in a path of loops is run, on stage s, once for each tick of the phase at which
every gate on the path is open, times the trips of its other loops.
"""

import dataclasses
import functools
import re
from collections.abc import Sequence

import numpy as np

from meshkit.hlo import Loop
from meshkit.pipeline.placement import ROW, Placement
from meshkit.pipeline.schedule import IDLE, Schedule
from meshkit.pipeline.slots import PHASE, Columns, Phase, allocate, phases

ACTIONS = ("embed", "forward", "head", "backward", "weight", "embed_gradient")
"""What a tick does, in order: columns of the slot table, and scopes in the compiled program."""

_TICKS = re.compile(rf"(?:^|/){PHASE}_(\d+)/while$")
_ACTION = re.compile(rf"(?:^|/){PHASE}_(\d+)/(?:.*?/)??({'|'.join(ACTIONS)})/")
_GATE = re.compile(rf"/(?:{ROW}_(\d+)/)?(?:stage|mesh)_gate/while$")


def action_of(op_name: str) -> str | None:
    """Which of ACTIONS an instruction belongs to, by its `op_name`; None outside of the ticks."""
    found = _ACTION.search(op_name)
    return found[2] if found else None


@dataclasses.dataclass(frozen=True)
class Trips:
    """The trips of the loops in the program that runs `schedule`, with layers placed by `placement`."""

    schedule: Schedule
    placement: Placement

    def of(self, path: Sequence[Loop]) -> np.ndarray | None:
        """How often a step runs what stands in `path` (loops, outermost first): int array [stage].

        None when that cannot be known, as in a loop of a model's own that ends when it will.
        """
        found = self._runs(path)
        return None if found is None else found[1].sum(0)

    def by_tick(self, path: Sequence[Loop], op_name: str) -> np.ndarray | None:
        """`of`, tick by tick of the schedule, for the instruction of that name: int array [tick, stage].

        A loop of a model's own that ends when it will counts as one trip. None for what stands in no tick, though its
        name is that of an action: the compiler moved it.
        """
        phase, runs = self._runs(path, unknown=1) or (None, np.zeros(0))
        named = _ACTION.search(op_name)
        if phase is None and named and len(runs):  # the scan of one tick is no loop any more
            phase = self.phases[int(named[1])]
        if phase is None or len(runs) != phase.stop - phase.start:
            return None
        return np.pad(runs, ((phase.start, self.schedule.ticks - phase.stop), (0, 0)))

    def _runs(self, path: Sequence[Loop], unknown: int | None = None) -> tuple[Phase | None, np.ndarray] | None:
        """The phase that a path stands in, and how often each of its ticks runs it: int array [tick, stage]. Outside
        of the ticks None, and an array of one row. unknown: trips of a loop that only a run knows; None: no answer."""
        phase: Phase | None = None
        open_, others, scanned = np.ones((1, self.schedule.stages), bool), 1, 1
        for loop in path:
            ticks, gate, action = (form.search(loop.op_name) for form in (_TICKS, _GATE, _ACTION))
            if ticks:
                phase, scanned = self.phases[int(ticks[1])], loop.trips or 0
            elif gate and action:
                phase = self.phases[int(action[1])]
                open_ = open_ & self.open(phase, action[2], None if gate[1] is None else int(gate[1]))
            elif (trips := unknown if loop.trips is None else loop.trips) is None:
                return None
            else:
                others *= trips
        if phase is None:
            return None, np.full((1, self.schedule.stages), others)
        # A scan of one tick is no loop any more; any other that has not its own trips was changed by the compiler.
        if scanned != phase.stop - phase.start:
            return None
        return phase, others * np.broadcast_to(open_, (scanned, self.schedule.stages))

    def open(self, phase: Phase, action: str, row: int | None) -> np.ndarray:
        """When stages do one of ACTIONS, or, with `row`, that row of it: bool array [tick of the phase, stage], or
        [tick, 1] where stages agree."""
        columns = self.columns[phase.start : phase.stop]
        busy: np.ndarray = getattr(columns, action) != IDLE
        if busy.ndim == 1:
            return busy[:, None]
        if row is None:
            return busy
        groups = getattr(columns, f"{action}_chunk") * self.schedule.stages + np.arange(self.schedule.stages)
        return busy & (np.array(self.placement.counts)[groups] > row)

    @functools.cached_property
    def columns(self) -> Columns:
        """The table with its slots, as the executor reads it."""
        return allocate(self.schedule).columns

    @functools.cached_property
    def phases(self) -> list[Phase]:
        """The scans that the executor makes of the table."""
        return phases(self.columns)
