"""The reader of compiled programs: on snippets written by hand, and on one real program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshkit import hlo

MESH = {"data": 2, "tensor": 2, "pipe": 2}
BY_AXIS = {
    "data": ((0, 4), (1, 5), (2, 6), (3, 7)),
    "tensor": ((0, 2), (1, 3), (4, 6), (5, 7)),
    "pipe": ((0, 1), (2, 3), (4, 5), (6, 7)),
}

PROGRAM = """\
HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias), {1}: (2, {}, may-alias) }, \
entry_computation_layout={(f32[8]{0}, s32[], f32[4]{0})->(f32[8]{0}, f32[4]{0})}, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%layer (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %h = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %gathered = f32[8,8]{1,0} all-gather(%h), channel_id=1, replica_groups=[4,2]<=[2,2,2]T(0,2,1), dimensions={0}, \
use_global_device_ids=true, metadata={op_name="jit(step)/while/body/gate/while/gather" source_line=3}
  %both = (f32[4,8]{1,0}, f32[]) all-reduce(%h, /*index=1*/%i), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add
  ROOT %t = (s32[], f32[4,8]{1,0}) tuple(%i, %h)
}

%gate (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p = (s32[], f32[4,8]{1,0:T(8,128)}) parameter(0)
  ROOT %layers = (s32[], f32[4,8]{1,0}) while(%p), condition=%below, body=%layer, \
metadata={op_name="jit(step)/while/body/gate/while/layers"}, backend_config={"known_trip_count":{"n":"3"}}
}

%tick (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  %h = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %hop = (f32[4,8]{1,0}, f32[4,8]{1,0}, u32[], u32[]) collective-permute-start(%h), source_target_pairs={{0,1},{1,0}}
  %hopped = f32[4,8]{1,0} collective-permute-done(%hop)
  ROOT %gated = (s32[], f32[4,8]{1,0}) while(%p), condition=%below, body=%gate, metadata={op_name="a/gate/while"}
}

%scatter (h: f32[4,8]) -> f32[2,8] {
  %h = f32[4,8]{1,0} parameter(0)
  ROOT %rs = f32[2,8]{1,0} reduce-scatter(%h), replica_groups={{0,4},{1,5},{2,6},{3,7}}, dimensions={0}, to_apply=%add
}

%below (p: (s32[], f32[4,8])) -> pred[] {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (a: f32[8], b: s32[], c: f32[4]) -> f32[2,8] {
  %start = (s32[], f32[4,8]{1,0}) parameter(0)
  %ticks = (s32[], f32[4,8]{1,0}) while(%start), condition=%below, body=%tick, \
backend_config="{\\"known_trip_count\\":{\\"n\\":\\"5\\"}}"
  %h = f32[4,8]{1,0} get-tuple-element(%ticks), index=1
  %begun = ((f32[4,8]{1,0}), f32[2,8]{1,0}) async-start(%h), calls=%scatter
  ROOT %done = f32[2,8]{1,0} async-done(%begun), calls=%scatter
}
"""


def test_collectives_are_found_where_they_stand() -> None:
    found = {c.kind: c for c in hlo.read(PROGRAM).collectives()}
    assert {kind: [loop.name for loop in c.loops] for kind, c in found.items()} == {
        "collective-permute": ["ticks"],
        "all-gather": ["ticks", "gated", "layers"],
        "all-reduce": ["ticks", "gated", "layers"],
        "reduce-scatter": [],
    }
    assert {kind: c.count for kind, c in found.items()} == {
        "collective-permute": 5,
        "all-gather": None,
        "all-reduce": None,
        "reduce-scatter": 1,
    }
    assert len(hlo.read(PROGRAM).collectives()) == len(found)  # a pair of start and done is one


def test_bytes_are_of_the_whole_array() -> None:
    found = {c.kind: c for c in hlo.read(PROGRAM).collectives()}
    assert found["all-gather"].bytes == 8 * 8 * 4
    assert found["reduce-scatter"].bytes == found["collective-permute"].bytes == 4 * 8 * 4
    assert (found["all-reduce"].bytes, found["all-reduce"].operands) == (4 * 8 * 4 + 4, 2)


def test_axes_are_those_along_which_members_differ() -> None:
    found = {c.kind: c for c in hlo.read(PROGRAM).collectives()}
    assert {kind: set(c.axes(MESH)) for kind, c in found.items()} == {
        "all-gather": {"tensor"},
        "all-reduce": {"pipe"},
        "collective-permute": {"pipe"},
        "reduce-scatter": {"data"},
    }
    everyone = hlo.Collective("all-reduce.1", "all-reduce", (tuple(range(8)),), 4, 1, (), "")
    assert everyone.axes(MESH) == set(MESH)
    assert everyone.axes({"data": 8, "tensor": 1, "pipe": 1}) == {"data"}


def test_loops_and_names() -> None:
    module = hlo.read(PROGRAM)
    assert [[loop.trips for loop in path] for path in module.loops()] == [[5], [5, None], [5, None, 3]]
    assert module.loops()[-1][-1].op_name == "jit(step)/while/body/gate/while/layers"
    assert module.computations["layer"]["gathered"].op_name == "jit(step)/while/body/gate/while/gather"
    assert module.computations["add"]["sum"].op_name == ""
    assert (module.entry, module.partitions, module.donated) == ("main", 8, {0, 2})


def test_a_branch_is_a_loop_of_unknown_trips() -> None:
    line = "%c = f32[] conditional(%p, %a, %b), branch_computations={%yes, %no}"
    assert hlo.read_instruction(line).calls == ("yes", "no")
    assert hlo.Loop.of(hlo.read_instruction(line)).trips is None


@pytest.mark.parametrize(
    ("spelling", "groups"),
    [
        ("{{0,4},{1,5},{2,6},{3,7}}", BY_AXIS["data"]),
        ("[4,2]<=[8]", BY_AXIS["pipe"]),
        ("[4,2]<=[2,2,2]T(0,2,1)", BY_AXIS["tensor"]),
        ("[4,2]<=[2,4]T(1,0)", BY_AXIS["data"]),
        ("{}", (tuple(range(8)),)),
        ("[1,8]<=[8]", (tuple(range(8)),)),
        ("mesh['data'=2,'tensor'=2,'pipe'=2] {'tensor'}", BY_AXIS["tensor"]),
        ("mesh['data'=2,'tensor'=2,'pipe'=2] {'pipe','tensor'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['axis_0'=2,'axis_1'=4], device_ids=([4,2]T(1,0)) {'axis_0'}", BY_AXIS["pipe"]),
        ("mesh['axis_0'=8] {'axis_0':(2)2}", BY_AXIS["tensor"]),
        ("mesh['axis_0'=8] {'axis_0':(1)2}", BY_AXIS["data"]),
    ],
)
def test_every_spelling_of_groups(spelling: str, groups: hlo.Groups) -> None:
    attributes = f', channel_id=1, replica_groups={spelling}, metadata={{op_name="x"}}'
    assert sorted(hlo.read_groups(attributes, partitions=8)) == sorted(groups)


@pytest.mark.parametrize(
    ("type_", "size"),
    [
        ("f32[2,8]{1,0}", 64),
        ("bf16[3]", 6),
        ("pred[]", 1),
        ("s4[3]{0:E(4)}", 2),
        ("f8e4m3fn[5]", 5),
        ("c128[2]", 32),
        ("(s32[], /*index=1*/f32[2,2]{1,0:T(8,128)}, token[])", 20),
    ],
)
def test_bytes_of_types(type_: str, size: int) -> None:
    assert hlo.type_bytes(type_) == size


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match="not the text of a compiled program"):
        hlo.read("module @jit_step {")
    with pytest.raises(ValueError, match="replica_groups"):
        hlo.read_groups("replica_groups=everyone", partitions=8)
    with pytest.raises(ValueError, match="element type"):
        hlo.type_bytes("quaternion[2]")
    with pytest.raises(ValueError, match="not an HLO instruction"):
        hlo.read_instruction("  something else")


def test_a_real_program() -> None:
    """A sum over one axis inside a loop of 7 trips, with its buffer donated."""
    devices = Mesh(np.array(jax.devices()).reshape(2, 4), ("rows", "columns"))
    sharding = NamedSharding(devices, P(None, "columns"))

    def step(x: jax.Array) -> jax.Array:
        def add(x: jax.Array) -> jax.Array:
            return jax.lax.fori_loop(0, 7, lambda _, x: jnp.sin(jax.lax.psum(x, "columns")), x)

        specs = P(None, "columns")
        return jax.shard_map(add, mesh=devices, in_specs=specs, out_specs=specs, check_vma=False)(x)

    x = jax.ShapeDtypeStruct((3, 4), jnp.float32, sharding=sharding)
    module = hlo.read(jax.jit(step, donate_argnums=0, out_shardings=sharding).lower(x).compile().as_text())
    (reduction,) = module.collectives()
    assert (reduction.kind, reduction.count, reduction.bytes) == ("all-reduce", 7, 3 * 4)
    assert reduction.axes(dict(devices.shape)) == {"columns"}
    assert reduction.op_name.endswith("psum")
    assert (module.partitions, module.donated) == (8, {0})
