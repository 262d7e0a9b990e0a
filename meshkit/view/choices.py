"""What each control offers around a setting: values, what must follow them, and why some cannot be chosen."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from meshkit.errors import MeshkitError
from meshkit.pipeline.builders import BUILDERS, from_file
from meshkit.view.setting import OVERLAP, PRECISION, RECOMPUTE, ZERO, Case, Setting, resolve
from meshkit.view.words import Text, said
from meshkit.view.world import World

VALUES: dict[str, tuple[Any, ...]] = {
    "data": (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512),
    "tensor": (1, 2, 4, 8, 16, 32),
    "pipe": (1, 2, 3, 4, 5, 8, 10, 16, 20, 32),
    "virtual": (1, 2, 4, 5, 8),
    "microbatches": (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512),
    "overlap": OVERLAP,
    "recompute": RECOMPUTE,
    "zero": ZERO,
    "precision": PRECISION,
    "batch": (8, 16, 24, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096),
    "sequence": (128, 512, 1024, 2048, 4096, 8192, 16384, 32768),
}
"""What a control offers besides the present value. Models, clusters, schedules, layers: all that the world has."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """A value of a control. change: the controls that differ when it is chosen, itself and those that must follow.

    reason: why it cannot be chosen, None when it can. fits: whether a device's memory holds it.
    """

    value: int | str
    change: dict[str, int | str]
    reason: Text | None = None
    fits: bool = True


@functools.lru_cache(maxsize=256)
def choices(world: World, setting: Setting) -> dict[str, list[Choice]]:
    """Control -> its choices in order, the present one among them."""
    of_world = {"model": tuple(world.models), "cluster": tuple(world.clusters)}
    values = VALUES | of_world | {"schedule": world.schedules, "layers": world.layers}
    found = {}
    for name, offered in values.items():
        now = getattr(setting, name)
        wanted = sorted({*offered, now}) if isinstance(now, int) else dict.fromkeys([*offered, now])
        found[name] = [_choice(world, setting, name, value) for value in wanted]
    return found


def _choice(world: World, setting: Setting, name: str, value: int | str) -> Choice:
    try:
        case = adapted(world, setting, name, value)
    except MeshkitError as error:
        return Choice(value, {}, said(str(error)))
    return Choice(value, changes(setting, case.setting), fits=case.estimate.fits)


def changes(old: Setting, new: Setting) -> dict[str, int | str]:
    """The controls that differ, with their new values."""
    before, after = dataclasses.asdict(old), dataclasses.asdict(new)
    return {name: value for name, value in after.items() if value != before[name]}


def adapted(world: World, setting: Setting, name: str, value: int | str) -> Case:
    """The setting with one control changed, and no more of the others than the change needs.

    Chunks follow the schedule, microbatches keep their size where they can; what a grid's file has, it has. Raises the
    MeshkitError of the plain change when nothing near is legal.
    """
    wanted = setting.but({name: value})
    if name == "schedule" and value in BUILDERS:
        wanted = dataclasses.replace(wanted, virtual=max(2, setting.virtual) if value == "interleaved" else 1)
    elif name == "schedule" and value in world.schedules:
        own = from_file(str(value), "schedule = ")
        overlap = str(own.hop > 1).lower()
        wanted = dataclasses.replace(wanted, virtual=own.chunks, microbatches=own.microbatches, overlap=overlap)
    if name == "virtual" and value != 1 and setting.schedule in BUILDERS:
        wanted = dataclasses.replace(wanted, schedule="interleaved")
    if name == "model" and value in world.models:
        wanted = dataclasses.replace(wanted, sequence=min(setting.sequence, world.models[str(value)].context))
    refused: MeshkitError | None = None
    resplit = name != "microbatches" and wanted.schedule in BUILDERS
    for candidate in [wanted, *(_resplit(setting, wanted) if resplit else ())]:
        try:
            return resolve(world, candidate)
        except MeshkitError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _resplit(before: Setting, wanted: Setting) -> Iterator[Setting]:
    """The setting with other numbers of microbatches, those first whose samples are nearest to what they were."""
    if wanted.data == 0 or wanted.batch % wanted.data:
        return
    share = wanted.batch // wanted.data
    size = max(1, before.batch // (before.data * before.microbatches))
    splits = [m for m in range(1, share + 1) if share % m == 0]
    for m in sorted(splits, key=lambda m: (abs(share // m - size), -m)):
        yield dataclasses.replace(wanted, microbatches=m)
