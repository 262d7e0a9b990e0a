"""Schedules of all builders and random legal ones: `st.from_type(Schedule)` in any test below this folder."""

import random

from hypothesis import settings
from hypothesis import strategies as st

from meshkit.pipeline.builders import BUILDERS, forward_only, interleaved
from meshkit.pipeline.schedule import FORWARD, INPUT, KINDS, WEIGHT, Action, Schedule

# A deadline would fail on a busy machine, not on a broken law.
settings.register_profile("laws", max_examples=50, deadline=None)
settings.load_profile("laws")

MOST_STAGES, MOST_MICROBATCHES, MOST_CHUNKS = 8, 16, 3
hops = st.integers(1, 2)


@st.composite
def legal_schedules(draw: st.DrawFn) -> Schedule:
    """What a greedy scheduler makes with random priorities and pauses: far from any builder, yet legal."""
    stages, chunks = draw(st.integers(1, MOST_STAGES)), draw(st.integers(1, MOST_CHUNKS))
    microbatches, kinds, hop = draw(st.integers(1, MOST_MICROBATCHES)), draw(st.sampled_from(KINDS)), draw(hops)
    dice, pause = random.Random(draw(st.integers(0, 2**32 - 1))), draw(st.sampled_from([0, 0.2, 0.7]))
    last = stages * chunks - 1
    todo = [(kind, i, group) for kind in kinds for i in range(microbatches) for group in range(last + 1)]
    dice.shuffle(todo)
    done: dict[tuple[str, int, int], int] = {}
    columns = []

    def ready(kind: str, i: int, group: int, tick: int) -> bool:
        """A stage's own work of this tick is in time; what comes from a neighbour takes a hop."""
        if kind == FORWARD:
            return group == 0 or done.get((FORWARD, i, group - 1), tick) + hop <= tick
        if kind == WEIGHT:
            return (INPUT, i, group) in done
        own = (FORWARD, i, group) in done
        return own and (group == last or done.get((kind, i, group + 1), tick) + hop <= tick)

    while todo:
        column: list[list[Action]] = [[] for _ in range(stages)]
        for kind in kinds:
            for stage in range(stages):
                able = (a for a in todo if a[0] == kind and a[2] % stages == stage and ready(*a, len(columns)))
                chosen = next(able, None)
                if chosen is not None and dice.random() >= pause:
                    todo.remove(chosen)
                    done[chosen] = len(columns)
                    column[stage].append(Action(kind, chosen[1], chosen[2] // stages))
        columns.append(tuple(map(tuple, column)))
    return Schedule("random", stages, microbatches, tuple(columns), chunks, hop)


@st.composite
def built_schedules(draw: st.DrawFn) -> Schedule:
    """What the builders make, within what each of them takes."""
    build = draw(st.sampled_from([*BUILDERS.values(), forward_only]))
    stages, microbatches = draw(st.integers(1, MOST_STAGES)), draw(st.integers(1, MOST_MICROBATCHES))
    if build is interleaved:
        microbatches = -(-microbatches // stages) * stages
    chunks = draw(st.integers(1, MOST_CHUNKS)) if build in (interleaved, forward_only) else 1
    return build(stages, microbatches, chunks, draw(hops) if chunks == 1 and build is not interleaved else 1)


st.register_type_strategy(Schedule, built_schedules() | legal_schedules())
