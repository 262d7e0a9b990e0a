"""What the builders' schedules cost, by formula, where all chunks are alike: no table is made. No NumPy.

P stages, m microbatches, v chunks a stage, h ticks a hop (1; 2 where it overlaps). F, B, I, W: time of an action
on all layers of a stage.

               ticks                 time in lock-step                      in flight at stage s
  gpipe        2(m + h(P−1))         (m + h(P−1))(F + B)                    m
  1f1b         m + 2h(P−1)           h(P−1)F + m(F + B) + h(P−1)B           2h(P−1−s) + 1, at most m
  interleaved  mv + P(v+1) − 2       (m + (P−1)/v)(F + B)                   P(v+1) − 1 of a chunk each at most, or mv
  zero-bubble  m + 2h(P−1)           h(P−1)F + m(F + I + W) + h(P−1)I       as 1f1b

Tests hold every form against the tables themselves.
"""

from collections.abc import Callable, Mapping

from meshkit.pipeline.schedule import BACKWARD, FORWARD, INPUT, WEIGHT

Times = Mapping[str, float]
"""Kind of action -> its time on all layers of a stage."""


def _gpipe(P: int, m: int, v: int, h: int, times: Times) -> float:
    return (m + h * (P - 1)) * (times[FORWARD] + times[BACKWARD])


def _interleaved(P: int, m: int, v: int, h: int, times: Times) -> float:
    return (m + (P - 1) / v) * (times[FORWARD] + times[BACKWARD])


def _zero_bubble(P: int, m: int, v: int, h: int, times: Times) -> float:
    edge = h * (P - 1) * (times[FORWARD] + times[INPUT])
    return edge + m * (times[FORWARD] + times[INPUT] + times[WEIGHT])


TIME: dict[str, Callable[[int, int, int, int, Times], float]] = {
    "gpipe": _gpipe,
    "1f1b": _gpipe,
    "interleaved": _interleaved,
    "zero-bubble": _zero_bubble,
}
"""Schedule -> (P, m, v, h, times) -> time of the whole table in lock-step, for m ≥ h."""


def ticks(name: str, stages: int, microbatches: int, chunks: int = 1, hop: int = 1) -> int:
    """Columns of a table, each of which ends with a hop."""
    P, m, v, h = stages, microbatches, chunks, hop
    return {
        "gpipe": 2 * (m + h * (P - 1)),
        "1f1b": m + 2 * h * (P - 1),
        "interleaved": m * v + P * (v + 1) - 2,
        "zero-bubble": m + 2 * h * (P - 1),
    }[name]


def slots(name: str, stages: int, microbatches: int, chunks: int = 1, hop: int = 1) -> dict[str, int]:
    """Slots of each file that `slots.allocate` gives a table."""
    P, m, v, h = stages, microbatches, chunks, hop
    kept = {
        "gpipe": m,
        "1f1b": min(m, 2 * h * (P - 1) + 1),
        "interleaved": min(m * v, P * (v + 1) - 1),
        "zero-bubble": min(m, 2 * h * (P - 1) + 1),
    }[name]
    held = min(m, h * (P - 1) + 1) if name == "zero-bubble" else 0
    return {"inputs": 1, "kept": kept, "gradients": m if name == "gpipe" else 1, "held": held}


def backward_at_once(name: str, stages: int, chunks: int = 1) -> bool:
    """`Schedule.backward_at_once`: whether every backward stands in the tick of its forward."""
    return stages * chunks == 1 and name != "gpipe"
