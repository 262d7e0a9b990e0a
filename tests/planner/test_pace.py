"""What a framework waits for: hosts that launch, pipelines that stand still, and copies that a host ahead keeps."""

import dataclasses

import pytest

from meshkit.config import MeshShape
from meshkit.planner.cluster import groups, parse
from meshkit.planner.estimate import estimate
from meshkit.planner.evidence.cases import llama
from meshkit.planner.layout import Job, Layout, balanced
from meshkit.planner.pace import AT_ONCE, FEW, MANY, NEVER, Host, Stall
from meshkit.planner.profile import NANOTRON, PROFILES
from meshkit.planner.workload import WAITING

HOST = Host(layer=1e-3, peer=0.5, square=0.01)
STALL = Stall(replicated=0.5, many=1.0)
TINY = Job("1B", llama((16, 2048, 32, 8192, 131072, 4096), tied=True), 256, 4096)


def peers(data: int, tensor: int, pipe: int, cluster: str):
    return groups(MeshShape(data=data, tensor=tensor, pipe=pipe), parse(cluster), pipe_outermost=True)


def estimated(data: int, tensor: int, pipe: int, microbatch: int = 1, zero: int = 1, profile=NANOTRON):
    mesh = MeshShape(data=data, tensor=tensor, pipe=pipe)
    layout = Layout(mesh, microbatch, 256 // (data * microbatch), recompute="none", zero=zero)
    return estimate(TINY, layout, parse(f"{mesh.devices}xh100"), profile)


@pytest.mark.parametrize(
    ("mesh", "cluster", "factor"),
    [
        ((1, 4, 2), "8xh100", 1),  # stages in one node
        ((4, 4, 1), "16xh100", 1),  # no stages
        ((8, 1, 2), "16xh100", 1),  # no peers to wait for
        ((2, 4, 2), "16xh100", 1 + 3 * 0.5 + 9 * 0.01),
    ],
)
def test_a_host_is_slowed_by_tensor_peers_once_stages_lie_in_several_nodes(
    mesh: tuple[int, int, int], cluster: str, factor: float
) -> None:
    found = peers(*mesh, cluster)
    assert HOST.seconds(found["tensor"], found["pipe"]) == pytest.approx(1e-3 * factor)


@pytest.mark.parametrize(
    ("mesh", "zero", "microbatches", "seconds"),
    [
        ((16, 2, 4), 1, 64, 0),
        ((16, 2, 4), 0, 64, 2 * 0.5),
        ((16, 4, 2), 0, 64, 0.5),
        ((16, 2, 4), 0, FEW, 0),
        ((128, 1, 1), 0, 64, 0),
        ((2, 1, 8), 0, 64, 0),  # two hops in three stay in a node
        ((MANY // 4, 2, 4), 1, 4, 1.0),
        ((MANY // 2, 2, 2), 1, 4, 0.5),
    ],
)
def test_a_pipeline_stands_still(mesh: tuple[int, int, int], zero: int, microbatches: int, seconds: float) -> None:
    data, tensor, pipe = mesh
    found = peers(*mesh, f"{data * tensor * pipe}xh100")
    shape = MeshShape(data=data, tensor=tensor, pipe=pipe)
    assert STALL.seconds(shape, found["pipe"], microbatches, zero) == seconds


def test_waiting_for_the_host_does_not_grow_with_the_microbatch_until_the_device_is_the_slower() -> None:
    """Eight tensor peers on two stages: as long for each microbatch, whether of 1 or 4 samples."""
    one, four, many = (estimated(4, 8, 2, microbatch) for microbatch in (1, 4, 64))
    waits = lambda found: sum(term.seconds for term in found.terms if WAITING in term.name)
    assert one.step / one.layout.microbatches == pytest.approx(four.step / four.layout.microbatches, rel=0.05)
    assert waits(one) > 0.5 * one.step
    assert waits(many) < 0.05 * many.step


def test_gathered_copies_are_kept_while_the_host_is_ahead() -> None:
    """Not where the device waits for it, nor cut over tensor, nor without peers."""
    without = dataclasses.replace(NANOTRON, kept=dataclasses.replace(NANOTRON.kept, whole=0.0))
    more = lambda *mesh, **how: (
        estimated(*mesh, **how).peak_memory - estimated(*mesh, profile=without, **how).peak_memory
    )
    layers = TINY.sizes.layers * 4096 * TINY.sizes.width * NANOTRON.kept.whole
    assert more(8, 8, 1) == pytest.approx(layers)
    assert more(4, 16, 1) == pytest.approx(layers)
    assert more(64, 1, 1) == 0
    assert more(4, 8, 2) == 0
    assert more(4, 8, 2, microbatch=32) > 0
    assert more(4, 8, 16) == 0  # stands still


@pytest.mark.parametrize(
    ("layers", "stages", "head", "counts"),
    [(16, 4, 4.0, (5, 5, 5, 1)), (16, 2, 4.0, (10, 6)), (28, 4, 3.55, (8, 8, 8, 4)), (32, 1, 2.5, (32,))],
)
def test_a_stage_takes_blocks_until_it_has_its_share(
    layers: int, stages: int, head: float, counts: tuple[int, ...]
) -> None:
    assert balanced(layers, stages, head) == counts


def test_only_nanotron_waits_and_stands_still() -> None:
    for profile in PROFILES.values():
        assert (profile.host, profile.stall) == (AT_ONCE, NEVER) or profile is NANOTRON
