"""What a profiled step did when: the events of single instructions, put together to actions. No JAX.

An instruction inside an action runs once for each time that its stage does the action in a phase of the
table, times the trips of the layer loop around it; an idle stage runs nothing. So the n-th event of an
instruction on a device tells by n alone its step, action, microbatch and layer: no clock is compared,
and nothing has to be recorded besides names and times.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshkit import hlo
from meshkit.mesh import PIPE
from meshkit.pipeline.placement import ROW, Placement
from meshkit.pipeline.schedule import FORWARD, WEIGHT, Schedule
from meshkit.pipeline.slots import PHASE
from meshkit.pipeline.trips import ACTIONS, Trips

HOPS = ("hop_forward", "hop_backward")
STEP = ("gather_weights", "reduce_gradients", "update")
"""Scopes, besides ACTIONS, that the executor and the train step write around what they do, as op_names have them."""

AFTER = STEP[1:]
"""Those of STEP that need what the ticks made."""

ROWS = ("step", "actions", "layers", "collectives")
"""Rows of a device in a trace, coarse to fine."""


class Event(NamedTuple):
    """One run of an instruction on a device (its place in the mesh's flat order), times in seconds."""

    device: int
    name: str
    start: float
    end: float


class Span(NamedTuple):
    """Something that a device did, from start to end, in seconds; `row` is one of ROWS.

    busy: seconds of it in which instructions ran, waits for other devices among them; the rest the device
    did something else. kind: of the action that it is, or is a part of: F, B, I, W, head, hop forward …; "" for
    none. step: of those recorded, from 0. microbatch, chunk, layer: None where the work is not for one; tick: of the
    table, the same.
    """

    device: int
    row: str
    name: str
    start: float
    end: float
    busy: float
    kind: str
    step: int
    tick: int | None = None
    microbatch: int | None = None
    chunk: int | None = None
    layer: int | None = None


LAYER_LOOP = re.compile(r"/(layers|layers_back)/while$")
"""End of the op_name of a loop that `chunks.Chunk.each` makes."""


class What(NamedTuple):
    """What an event is a piece of: a Span without times; `part` tells those apart that are alike otherwise."""

    device: int
    row: str
    name: str
    part: Any
    kind: str
    step: int
    tick: int | None = None
    microbatch: int | None = None
    chunk: int | None = None
    layer: int | None = None


class Place(NamedTuple):
    """Where an instruction stands in the step.

    scope: one of ACTIONS, HOPS, STEP, or "". phase: of the table. loop: the layer loop that it is in, or the
    layer where layers are unrolled, "" outside; trips: of that loop. exchange: such as "all-gather over
    tensor", "" when it talks to no one.
    """

    scope: str
    phase: int | None
    loop: str
    trips: int
    exchange: str


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled train step, and the table that it runs.

    mesh: axis -> size in the order of the Mesh. Devices are numbered as `mesh.devices.flat` has them.
    """

    module: hlo.Module
    schedule: Schedule
    placement: Placement
    mesh: Mapping[str, int]

    def spans(self, events: Iterable[Event], steps: int) -> list[Span]:
        """What the devices did in `steps` whole steps, in order of time.

        An instruction whose number of events is not what the table says is left out: it belongs to the
        gate around an action, or the compiler moved it out of there.
        """
        of: dict[tuple[int, str], list[Event]] = defaultdict(list)
        for event in sorted(events, key=lambda event: event.start):
            if event.name in self.places:
                of[event.device, event.name].append(event)
        pieces: dict[What, list[Event]] = defaultdict(list)
        for (device, name), found in of.items():
            for what, event in self._read(device, self.places[name], found, steps):
                pieces[what].append(event)
        spans = [
            Span(w.device, w.row, w.name, part[0].start, max(e.end for e in part), _covered(part), *w[4:])
            for w, part in _in_their_places(pieces).items()
        ]
        return sorted(spans, key=lambda span: (span.start, span.device, ROWS.index(span.row)))

    # --- an instruction -----------------------------------------------------------------------------

    @functools.cached_property
    def places(self) -> dict[str, Place]:
        """Instruction -> its place, for those of a known scope and those that exchange something."""
        exchanges = {c.name: f"{c.kind} over {_spell(c.axes(self.mesh))}" for c in self.module.collectives()}
        found = {}
        for _, instruction, loops in self.module.walk():
            scope, exchange = _scope(instruction.op_name), exchanges.get(instruction.name, "")
            if (scope or exchange) and instruction.opcode not in hlo.LOOPS:
                phase = re.search(rf"/{PHASE}_(\d+)/", instruction.op_name)
                loop = re.search(rf".*(/layers|/layers_back|/{ROW}_\d+)/", instruction.op_name)
                # A loop of one trip has been dissolved by the compiler.
                trips = math.prod(around.trips or 1 for around in loops if LAYER_LOOP.search(around.op_name))
                found[instruction.name] = Place(
                    scope, int(phase[1]) if phase else None, loop[0] if loop else "", trips, exchange
                )
        return found

    def _read(self, device: int, place: Place, events: list[Event], steps: int) -> Iterator[tuple[What, Event]]:
        """Each event of an instruction on a device, with what it is a piece of."""
        for k, event in enumerate(events):
            step = k * steps // len(events)
            if place.exchange:
                yield What(device, "collectives", place.exchange, (event.name, k), "", step), event
            if place.scope in STEP and len(events) % steps == 0:
                yield What(device, "step", place.scope, None, "", step), event
        times = self._times(device, place)
        if len(events) != steps * len(times) * place.trips:
            return
        order = itertools.product(range(steps), times, range(place.trips))
        for (step, (tick, microbatch, chunk), trip), event in zip(order, events, strict=True):
            kind = self._kind(place.scope)
            which = kind, step, tick, microbatch, chunk
            name = f"{kind}{microbatch}" if kind in self.schedule.kinds else kind
            yield What(device, "actions", name, None, *which), event
            layer = self._layer(device, place, chunk, trip)
            if layer is not None:
                yield What(device, "layers", f"layer {layer}", place.loop, *which, layer), event

    def _times(self, device: int, place: Place) -> list[tuple[int, int | None, int]]:
        """(tick, microbatch, chunk) of each time in a step that a device does what is in a place."""
        if place.phase is None or place.scope not in ACTIONS + HOPS:
            return []
        phase, stage = self._trips.phases[place.phase], self.coordinates(device)[PIPE]
        ticks = np.arange(phase.start, phase.stop)
        if place.scope in HOPS:
            return [(int(tick), None, 0) for tick in ticks]
        row = re.search(rf"/{ROW}_(\d+)/$", place.loop)
        open_ = self._trips.open(phase, place.scope, int(row[1]) if row else None)
        microbatch, chunk = self._column(device, place.scope), self._column(device, f"{place.scope}_chunk")
        return [(int(t), int(microbatch[t]), int(chunk[t])) for t in ticks[open_[:, min(stage, open_.shape[1] - 1)]]]

    def _column(self, device: int, name: str) -> np.ndarray:
        """A column of the table as a device reads it; what the whole mesh does is for chunk 0."""
        columns = self._trips.columns
        column: np.ndarray = getattr(columns, name, np.zeros_like(columns.embed))
        return column[:, self.coordinates(device)[PIPE]] if column.ndim == 2 else column

    def _kind(self, scope: str) -> str:
        letters = {"forward": FORWARD, "backward": self.schedule.backward, "weight": WEIGHT}
        return letters.get(scope, scope.replace("_", " "))

    def _layer(self, device: int, place: Place, chunk: int, trip: int) -> int | None:
        """The model's layer that a trip of a layer loop works on; None outside, and where a trip is of several."""
        scope, each = place.loop.rstrip("/").rpartition("/")[2], self.placement.shortest
        alone = re.fullmatch(rf"{ROW}_(\d+)", scope)
        if not scope or (not alone and place.trips != each):
            return None
        row = int(alone[1]) if alone else each - 1 - trip if scope == "layers_back" else trip
        group = chunk * self.schedule.stages + self.coordinates(device)[PIPE]
        return int(self.placement.starts[group]) + row

    @functools.cached_property
    def _trips(self) -> Trips:
        return Trips(self.schedule, self.placement)

    def coordinates(self, device: int) -> dict[str, int]:
        """Axis -> a device's place on it."""
        at = np.unravel_index(device, tuple(self.mesh.values()))
        return dict(zip(self.mesh, map(int, at), strict=True))


def _scope(op_name: str) -> str:
    """The known scope that an op_name has; "" for none, and for what the compiler merged out of several."""
    known = {word for word in op_name.split("/") if word in ACTIONS + HOPS + STEP}
    return known.pop() if len(known) == 1 else ""


def _in_their_places(pieces: Mapping[What, list[Event]]) -> dict[What, list[Event]]:
    """Pieces sorted by start, without those that the compiler moved out of their place.

    Where a tick is no trip of a loop, what waits for nothing (a slice of weights) may run long before it,
    what no one waits for long after: beyond the middle of the tick before, or of the tick after. So may of
    what is AFTER the ticks (a power of Adam's decay): before the middle of the last one.
    """
    starts: dict[tuple[int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for what, part in pieces.items():
        if what.tick is not None:
            starts[what.device, what.step][what.tick] += [event.start for event in part]
    bounds: dict[tuple[int, int, int | str | None], tuple[float, float]] = {}
    for (device, step), ticks in starts.items():
        middles = [-math.inf, *(float(np.median(ticks[tick])) for tick in sorted(ticks)), math.inf]
        for k, tick in enumerate(sorted(ticks)):
            bounds[device, step, tick] = middles[k], middles[k + 2]
        bounds |= {(device, step, scope): (middles[-2], math.inf) for scope in AFTER}
    kept = {}
    for what, part in pieces.items():
        place = what.name if what.row == "step" else what.tick
        low, high = bounds.get((what.device, what.step, place), (-math.inf, math.inf))
        inside = sorted((e for e in part if low < e.start and e.end < high), key=lambda event: event.start)
        if inside:
            kept[what] = inside
    return kept


def _covered(events: Sequence[Event]) -> float:
    """Seconds in which at least one of the events, sorted by start, lasts."""
    total, until = 0.0, -math.inf
    for event in events:
        total += max(0.0, event.end - max(event.start, until))
        until = max(until, event.end)
    return total


def _spell(axes: Iterable[str]) -> str:
    return ", ".join(sorted(axes)) or "no axis"


def medians(spans: Iterable[Span]) -> dict[str, float]:
    """Kind of action (F, B, I, W, head, hop forward …) -> median busy seconds of one, over devices and microbatches."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for span in spans:
        if span.row == "actions":
            seconds[span.kind].append(span.busy)
    return {kind: float(np.median(of)) for kind, of in seconds.items()}
