"""Builders of schedules, by name. NumPy only.

Tick formulas are for lock-step execution, where one tick holds a forward and a backward: a stage that
did only one of them would wait for its neighbours that do the other.
"""

from collections.abc import Callable

import numpy as np

from meshkit.errors import MeshkitError, nearest
from meshkit.pipeline.schedule import BACKWARD, FORWARD, Schedule, from_ticks


def gpipe(stages: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards: stored activations grow with the microbatches (arXiv 1811.06965)."""
    i, s = _grid(stages, microbatches)
    start_of_backward = microbatches + stages - 1
    return from_ticks("gpipe", stages, {FORWARD: i + s, BACKWARD: start_of_backward + i + (stages - 1 - s)})


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """A backward as soon as its microbatch has left the last stage (PipeDream-flush, arXiv 2006.09503).

    In flight at stage s: at most 2(P−1−s)+1 microbatches, whatever their number. In lock-step a tick
    of the steady state is F+B, so the whole lasts (P−1)F + m(F+B) + (P−1)B: the ideal bubble.
    """
    i, s = _grid(stages, microbatches)
    return from_ticks("1f1b", stages, {FORWARD: i + s, BACKWARD: i + 2 * (stages - 1) - s})


def forward_only(stages: int, microbatches: int) -> Schedule:
    """Forwards without backwards: evaluation."""
    i, s = _grid(stages, microbatches)
    return from_ticks("forward", stages, {FORWARD: i + s})


BUILDERS: dict[str, Callable[[int, int], Schedule]] = {"gpipe": gpipe, "1f1b": one_f_one_b}


def build(name: str, stages: int, microbatches: int) -> Schedule:
    """The schedule that `pipeline.schedule` names. Raises MeshkitError for an unknown name."""
    if name not in BUILDERS:
        raise MeshkitError(f"pipeline.schedule = {name!r}: no such schedule; {nearest(name, BUILDERS)}")
    return BUILDERS[name](stages, microbatches)


def _grid(stages: int, microbatches: int) -> tuple[np.ndarray, np.ndarray]:
    """Broadcastable microbatch [m, 1] and stage [1, P] numbers."""
    return np.arange(microbatches)[:, None], np.arange(stages)[None, :]
