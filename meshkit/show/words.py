"""What the words of `meshkit schedule` mean: a schedule, costs, layers. No JAX."""

from meshkit.errors import MeshkitError, counted
from meshkit.pipeline import builders, grid
from meshkit.pipeline.schedule import Schedule
from meshkit.show.examine import HOP

MOST = 1_000_000
"""Actions of a kind that a schedule to be looked at may have."""

HIGHEST = 1e9
"""Of a cost."""


def choose(name: str, stages: int | None, microbatches: int | None, virtual: int | None, overlap: bool) -> Schedule:
    """The schedule of a builder's name, or of a file, which says its numbers itself.

    Raises MeshkitError for numbers that are missing, too many or too small, and for what is no schedule.
    """
    numbers = {"--stages": stages, "--microbatches": microbatches, "--virtual": virtual}
    if grid.is_path(name):
        given = [option for option, number in numbers.items() if number is not None] + ["--overlap"] * overlap
        if given:
            raise MeshkitError(f"{name} says how many stages, microbatches … it has: leave out {', '.join(given)}")
        return builders.from_file(name, "meshkit schedule ")
    if name not in builders.BUILDERS:
        raise MeshkitError(f"meshkit schedule {name!r}: {builders.unknown(name)}")
    for option, number in numbers.items():
        if number is not None and number < 1:
            raise MeshkitError(f"{option} {number}: it is at least 1")
    if stages is None or microbatches is None:
        raise MeshkitError(f"a schedule by name needs its size: meshkit schedule {name} --stages 4 --microbatches 8")
    if stages * microbatches * (virtual or 1) > MOST:
        raise MeshkitError(f"--stages {stages} --microbatches {microbatches}: over {MOST:,} actions of a kind to draw")
    return builders.build(name, stages, microbatches, virtual or 1, 2 if overlap else 1)


def costs(schedule: Schedule, text: str) -> dict[str, float]:
    """`F=1,B=2` as costs for each kind that the schedule has, and of a hop if `hop=0.1` is there.

    Raises MeshkitError when it is anything else.
    """
    found: dict[str, float] = {}
    example = ",".join(f"{kind}=1" for kind in schedule.kinds)
    for part in text.split(","):
        kind, _, number = (piece.strip() for piece in part.partition("="))
        if kind in found:
            raise MeshkitError(f"--costs {text}: {kind} has two costs")
        try:
            found[kind] = float(number)
        except ValueError:
            raise MeshkitError(f"--costs {text}: {part!r} is no cost: write, for example, {example}") from None
        if not 1 / HIGHEST <= found[kind] <= HIGHEST:
            raise MeshkitError(f"--costs {text}: {part!r}: a cost is from {1 / HIGHEST:g} to {HIGHEST:g}")
    if set(found) - {HOP} != set(schedule.kinds):
        kinds = ", ".join(schedule.kinds)
        raise MeshkitError(f"--costs {text}: {schedule.name} has the kinds {kinds}: write, for example, {example}")
    return found


def layers(schedule: Schedule, text: str) -> list[int]:
    """`3,2,2,1` as the layers of each chunk. Raises MeshkitError when it is anything else."""
    groups = schedule.stages * schedule.chunks
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != groups or min(found) < 1:
        of = f"{counted(schedule.stages, 'stage')}" + (f" × {schedule.chunks} chunks" if schedule.chunks > 1 else "")
        raise MeshkitError(
            f"--layers-per-stage {text}: {schedule.name} has {of}: write {groups} numbers from 1 on, as "
            f"{','.join(['2'] * groups)}"
        )
    return found
