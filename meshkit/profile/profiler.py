"""`meshkit train --profile`: records a few steps and says what each device did when.

JAX's profiler gives the raw trace (for XProf and TensorBoard); `measured.py` reads from it the actions,
layers and exchanges that the schedule's table asks for.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from meshkit import hlo
from meshkit.errors import MeshkitError, counted
from meshkit.profile.measured import Event, Program, medians
from meshkit.profile.trace_file import trace
from meshkit.train_step import TrainStep

WARM_UP = 2
"""Steps of a run before the first that is recorded."""

FOLDER = "profile"
NANOSECONDS = 1e9


def check(left: int, steps: int) -> None:
    """Raises MeshkitError when a run with `left` steps to go has not `steps` steps to record."""
    if steps < 0:
        raise MeshkitError(f"profile = {steps}: it is the number of steps to record, or 0")
    if steps and left < WARM_UP + steps:
        raise MeshkitError(
            f"--profile (in Python profile={steps}) records {counted(steps, 'step')} after {WARM_UP} to warm up, and "
            f"the run has {left} left: set steps {WARM_UP + steps - left} higher"
        )


class Profiler:
    """Records `steps` steps of a run that begins after step `start`, into `folder`. Zero: nothing."""

    def __init__(self, folder: Path, steps: int, start: int = 0) -> None:
        self.folder, self.steps, self.done = folder, steps, False
        self._first = start + WARM_UP + 1

    def before(self, number: int, state: Any) -> None:
        """Call before step `number` is started."""
        if self.steps and number == self._first:
            jax.block_until_ready(state)  # the steps before it are no part of the record
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0
            jax.profiler.start_trace(self.folder, profiler_options=options)

    def after(self, number: int, state: Any) -> None:
        """Call when step `number` has been started."""
        if self.steps and number == self._first + self.steps - 1:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            self.done = True

    def report(self, step: TrainStep, compiled: Any) -> dict[str, Any]:
        """Write the timeline of this process's devices; its path, and median milliseconds of each kind of action."""
        program = self.program(step, compiled)
        spans = program.spans(self.events(step), self.steps)
        process = jax.process_index()
        path = self.folder / f"timeline{f'-{process}' if process else ''}.json"
        path.write_text(json.dumps(trace(program, spans, self._first)), encoding="utf-8")
        times = {kind: 1000 * seconds for kind, seconds in medians(spans).items()}
        return {"profile": str(path), "milliseconds": times}

    def program(self, step: TrainStep, compiled: Any) -> Program:
        """The compiled step, to read its events with."""
        module = hlo.read(compiled.as_text())
        return Program(module, step.schedule, step.stages.placement, dict(step.mesh.shape))

    def events(self, step: TrainStep) -> Iterator[Event]:
        """Every recorded run of an instruction of the step, on devices of this process."""
        mine = {
            device.local_hardware_id: number
            for number, device in enumerate(step.mesh.devices.flat)
            if device.process_index == jax.process_index()
        }
        traces = sorted(self.folder.glob("plugins/profile/*/*.xplane.pb"), key=lambda path: path.stat().st_mtime)
        if not traces:
            raise MeshkitError(f"{self.folder}: JAX's profiler left no trace there")
        for plane in jax.profiler.ProfileData.from_file(str(traces[-1])).planes:
            # A GPU has a plane of its own, named by its number; simulated devices share the host's.
            gpu = re.fullmatch(r"/device:GPU:(\d+)", plane.name)
            for line in plane.lines:
                for event in line.events:
                    facts = dict(event.stats)
                    ordinal = int(gpu[1]) if gpu else facts.get("device_ordinal")
                    if facts.get("hlo_module") == "jit__step" and ordinal in mine:
                        start, end = event.start_ns, event.start_ns + event.duration_ns
                        yield Event(mine[ordinal], str(facts["hlo_op"]), start / NANOSECONDS, end / NANOSECONDS)
