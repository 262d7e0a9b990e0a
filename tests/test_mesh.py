"""Shapes that fit the devices, and who sits where on pretend nodes."""

import random
import re
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType

from meshkit.config import MeshShape
from meshkit.errors import MeshkitError
from meshkit.mesh import AXES, build, crossings, nearest_shapes, node_of, place, placement_warning, resolve

sizes = st.integers(1, 8)
shapes = st.builds(lambda d, t, p: MeshShape(data=d, tensor=t, pipe=p), sizes, sizes, sizes)


def shape(data: int, tensor: int, pipe: int) -> MeshShape:
    return MeshShape(data=data, tensor=tensor, pipe=pipe)


# --- shapes -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(shapes, st.sampled_from(AXES))
def test_minus_one_is_the_rest(wanted: MeshShape, free: str) -> None:
    assert resolve(wanted.model_copy(update={free: -1}), wanted.devices) == wanted
    assert resolve(wanted, wanted.devices) == wanted


@settings(deadline=None)
@given(shapes, st.integers(1, 96), st.sampled_from([None, *AXES]))
def test_devices_that_do_not_multiply_are_refused_with_meshes_that_do(
    wanted: MeshShape, devices: int, free: str | None
) -> None:
    known = wanted.devices // (wanted.sizes[free] if free else 1)
    assume(devices % known if free else devices != known)
    asked = wanted.model_copy(update={free: -1}) if free else wanted
    with pytest.raises(MeshkitError) as error:
        resolve(asked, devices)
    said = str(error.value)
    assert re.search(rf"takes (a multiple of )?{known} devices and there are {devices}:", said)
    for axis, size in asked.sizes.items():
        assert f"{axis} {'?' if size == -1 else size}" in said
    proposed = re.findall(r"data (\d+) × tensor (\d+) × pipe (\d+)", said.partition("to one of: ")[2])
    assert proposed
    for data, tensor, pipe in proposed:
        assert resolve(shape(int(data), int(tensor), int(pipe)), devices).devices == devices


def test_the_nearest_meshes_keep_tensor_and_pipe_first() -> None:
    assert nearest_shapes(shape(2, 4, 3), 96)[0] == shape(8, 4, 3)
    assert nearest_shapes(shape(8, 4, 2), 8)[0] == shape(1, 4, 2)
    assert nearest_shapes(shape(1, 8, 1), 4)[0] == shape(1, 4, 1)


# --- placement ----------------------------------------------------------------------------------

Nodes = Callable[[int, int], list[int]]


def in_order(nodes: int, each: int) -> list[int]:
    return [node for node in range(nodes) for _ in range(each)]


def scrambled(nodes: int, each: int) -> list[int]:
    """Devices as the runtime may number them: those of a node need not follow each other."""
    order = in_order(nodes, each)
    random.Random(5).shuffle(order)
    return order


@pytest.mark.parametrize("nodes", [in_order, scrambled])
def test_64_devices_of_8_nodes(nodes: Nodes) -> None:
    """The 70B layout: a replica's two stages of four tensor peers fill a node."""
    of = nodes(8, 8)
    grid = np.array(of)[place(shape(8, 4, 2), of)]
    assert grid.shape == (8, 4, 2)
    assert (grid == np.arange(8)[:, None, None]).all()
    assert crossings(shape(8, 4, 2), of) == {"data": 8, "tensor": 0, "pipe": 0}


@pytest.mark.parametrize("nodes", [in_order, scrambled])
def test_24_devices_of_3_nodes(nodes: Nodes) -> None:
    """Tensor groups fill half nodes; stages go node by node; the second replica starts inside a node."""
    of = nodes(3, 8)
    grid = np.array(of)[place(shape(2, 4, 3), of)]
    assert (grid == grid[:, :1, :]).all()
    assert grid[:, 0, :].tolist() == [[0, 0, 1], [1, 2, 2]]
    assert crossings(shape(2, 4, 3), of)["tensor"] == 0


@settings(deadline=None)
@given(shapes, st.integers(1, 6), st.randoms(use_true_random=False))
def test_neighbours_in_the_mesh_are_neighbours_on_the_nodes(wanted: MeshShape, nodes: int, dice: random.Random) -> None:
    of = [dice.randrange(nodes) for _ in range(wanted.devices)]
    placed = place(wanted, of)
    assert placed.shape == tuple(wanted.sizes.values())
    assert sorted(placed.flat) == list(range(wanted.devices))
    # Data outermost, then pipe, tensor innermost: along this order nodes never come back.
    along = np.array(of)[placed].transpose(0, 2, 1).ravel()
    assert (np.diff(along) >= 0).all()


def divisors(n: int) -> list[int]:
    return [k for k in range(1, n + 1) if n % k == 0]


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), sizes, st.data())
def test_tensor_groups_that_fill_nodes_stay_inside(nodes: int, groups: int, tensor: int, data: st.DataObject) -> None:
    """`groups` whole tensor groups a node, however they are cut into replicas and stages."""
    pipe = data.draw(st.sampled_from(divisors(nodes * groups)))
    wanted, of = shape(nodes * groups // pipe, tensor, pipe), scrambled(nodes, groups * tensor)
    assert crossings(wanted, of)["tensor"] == 0
    assert placement_warning(wanted, of) is None


@pytest.mark.parametrize(
    ("wanted", "nodes", "said"),
    [
        (shape(1, 8, 2), [4] * 4, ("2 of 2 tensor groups (mesh.tensor = 8)", "(4 devices a node)", "to 4 or")),
        (shape(2, 4, 3), [6] * 4, ("2 of 6 tensor groups (mesh.tensor = 4)", "(6 devices a node)", "to 3 or")),
        (shape(1, 5, 2), [4, 6], ("1 of 2 tensor groups (mesh.tensor = 5)", "(4 or 6 devices a node)", "to 2 or")),
        (shape(1, 3, 1), [1] * 3, ("1 of 1 tensor groups (mesh.tensor = 3)", "(1 devices a node)", "to 1 or")),
    ],
)
def test_a_tensor_group_on_two_nodes_is_told_with_the_numbers(
    wanted: MeshShape, nodes: Sequence[int], said: tuple[str, ...]
) -> None:
    of = [node for node, count in enumerate(nodes) for _ in range(count)]
    warning = placement_warning(wanted, of)
    assert warning is not None
    for words in (*said, "several a layer, cross the network between nodes instead of NVLink"):
        assert words in warning


@settings(deadline=None)
@given(st.lists(st.integers(1, 8), min_size=2, max_size=4), st.data())
def test_the_tensor_size_that_a_warning_names_fits(nodes: list[int], data: st.DataObject) -> None:
    devices = sum(nodes)
    tensor = data.draw(st.sampled_from(divisors(devices)[1:]))
    of = [node for node, count in enumerate(nodes) for _ in range(count)]
    warning = placement_warning(shape(devices // tensor, tensor, 1), of)
    if warning is None:
        return
    fit = int(re.findall(r"Set mesh\.tensor to (\d+)", warning)[0])
    for divisor in divisors(fit):
        assert placement_warning(shape(devices // divisor, divisor, 1), of) is None


# --- nodes --------------------------------------------------------------------------------------


def device(**attributes: Any) -> Any:
    return types.SimpleNamespace(**attributes)


def test_gpus_of_one_host_are_a_node_whatever_the_processes() -> None:
    gpus = [device(platform="gpu", process_index=i, slice_index=i // 8) for i in range(16)]
    assert [node_of(gpu) for gpu in gpus] == in_order(2, 8)


def test_devices_without_a_slice_index_are_on_a_node_for_each_process() -> None:
    assert node_of(device(platform="gpu", process_index=3)) == 3
    assert node_of(device(platform="gpu", process_index=3, slice_index=None)) == 3
    assert node_of(device(platform="cpu", process_index=2, slice_index=0)) == 2


# --- the mesh -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2), (4, 2, 1), (-1, 2, 2)])
def test_the_mesh_of_the_simulated_devices(sizes: tuple[int, int, int]) -> None:
    mesh = build(shape(*sizes))
    data, tensor, pipe = (size if size > 0 else 2 for size in sizes)
    assert mesh.axis_names == AXES == ("data", "tensor", "pipe")
    assert dict(mesh.shape) == {"data": data, "tensor": tensor, "pipe": pipe}
    assert mesh.axis_types == (AxisType.Auto,) * 3
    for d, t, p in np.ndindex(data, tensor, pipe):
        assert mesh.devices[d, t, p] == jax.devices()[(d * pipe + p) * tensor + t]


def test_the_mesh_of_some_devices() -> None:
    some = jax.devices()[2:6]
    assert build(shape(1, 2, -1), some).devices.transpose(0, 2, 1).ravel().tolist() == some
    with pytest.raises(MeshkitError, match="takes 8 devices and there are 4"):
        build(shape(2, 2, 2), some)


def test_a_mesh_across_nodes_warns_and_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshkit.mesh.node_of", lambda device: device.id % 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mesh = build(shape(1, 4, 2))
    assert [[d.id for d in mesh.devices[0, :, p]] for p in range(2)] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    with pytest.warns(UserWarning, match=r"1 of 1 tensor groups \(mesh\.tensor = 8\).*Set mesh\.tensor to 4"):
        assert build(shape(1, 8, 1)).devices.size == 8
