"""Facts about the compiled train step: which collectives stand where, and memory. Nothing is run.

Each mesh coordinate's devices run the same program, so one text tells of all of them.
"""

import collections
import functools
import math
import re
from typing import Any, NamedTuple

import jax
import pytest

from meshkit import assemble, config, hlo, mesh, sharding, zero
from meshkit.mesh import DATA, PIPE, TENSOR
from meshkit.pipeline import executor
from meshkit.pipeline.buffers import MESH_GATE, STAGE_GATE
from meshkit.pipeline.slots import Columns, Phase, allocate, phases
from meshkit.train_step import TrainStep

LAYERS_PER_STAGE, WIDTH, SEQUENCE, MICROBATCH_SIZE = 2, 32, 16, 2
FLOAT32 = INT32 = 4
STAGE_INPUT = MICROBATCH_SIZE * SEQUENCE * WIDTH * FLOAT32
FEW, MANY = 8, 32

COLUMN_PRODUCTS = 5  # query, key, value, gate, up


class Compiled(NamedTuple):
    step: TrainStep
    state: Any
    module: hlo.Module
    text: str
    memory: Any

    @property
    def axes(self) -> dict[str, int]:
        return dict(self.step.mesh.shape)

    @property
    def columns(self) -> Columns:
        """What each stage does at each tick."""
        return allocate(self.step.schedule).columns

    @property
    def phases(self) -> list[Phase]:
        """The executor's scans over ticks."""
        return phases(self.columns)


class Layout(NamedTuple):
    data: int
    tensor: int
    pipe: int
    schedule: str = "1f1b"
    recompute: str = "full"
    zero: int = 1
    m: int = FEW


ALONE = Layout(1, 1, 1)
TENSOR_PEERS = Layout(1, 2, 1)
ALL_AXES = Layout(2, 2, 2)
PIPELINE = Layout(2, 1, 2)
GPIPE = PIPELINE._replace(schedule="gpipe")
KEEPING_ALL = PIPELINE._replace(recompute="none", zero=0)
REPLICAS = Layout(8, 1, 1)
CUT_ALWAYS = PIPELINE._replace(zero=3)


@functools.lru_cache
def compiled(layout: Layout) -> Compiled:
    """The train step of a tiny Llama, compiled for simulated devices from shapes alone."""
    data, tensor, pipe, schedule, recompute, zero, m = layout
    run = config.load(
        {
            "mesh": {DATA: data, TENSOR: tensor, PIPE: pipe},
            "pipeline": {"schedule": schedule, "microbatches": m},
            "model": dict(preset="tiny", layers=LAYERS_PER_STAGE * pipe, width=WIDTH, mlp_width=48, vocab=97),
            "data": {"batch": m * MICROBATCH_SIZE * data, "sequence": SEQUENCE},
            "precision": "float32",
            "recompute": recompute,
            "zero": zero,
        }
    )
    step = assemble.train_step(run, mesh.build(run.mesh, jax.devices()[: data * tensor * pipe]))
    state = jax.tree.map(
        lambda a, sharding: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding),
        jax.eval_shape(step.init, 0),
        step.state_shardings,
    )
    tokens = (m, MICROBATCH_SIZE * data, SEQUENCE)
    batch = {
        name: jax.ShapeDtypeStruct(tokens, dtype, sharding=step.batch_sharding)
        for name, dtype in (("tokens", "int32"), ("targets", "int32"), ("weights", "float32"))
    }
    program = step.step.lower(state, batch).compile()
    text = program.as_text()
    return Compiled(step, state, hlo.read(text), text, program.memory_analysis())


@pytest.fixture(autouse=True, scope="module")
def _names_in_the_cache_key() -> Any:
    """A program from the compilation cache must have the names of this source, not of an older one."""
    name = "jax_compilation_cache_include_metadata_in_key"
    before = getattr(jax.config, name)
    jax.config.update(name, True)
    yield
    jax.config.update(name, before)


def over(program: Compiled, *axes: str) -> list[hlo.Collective]:
    """The collectives whose members differ along any of `axes`."""
    return [c for c in program.module.collectives() if c.axes(program.axes) & set(axes)]


def tally(found: list[hlo.Collective]) -> collections.Counter[str]:
    """Kind -> arrays that a step exchanges so. The compiler may combine several into one instruction."""
    count: collections.Counter[str] = collections.Counter()
    for c in found:
        assert c.count is not None, f"{c.op_name} is done a number of times that is not known"
        count[c.kind] += c.count * c.operands
    return count


# --- data ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [PIPELINE, GPIPE, KEEPING_ALL])
def test_replicas_talk_before_and_after_the_pipeline_only(layout: Layout) -> None:
    found = over(compiled(layout), DATA)
    assert found
    for collective in found:
        assert not re.search(r"/(forward|backward|head|embed|embed_gradient)/", collective.op_name)
        # At most the loop over layers of a gather or scatter.
        assert [loop.trips for loop in collective.loops] in ([], [LAYERS_PER_STAGE]), collective


@pytest.mark.parametrize("layout", [PIPELINE, GPIPE, KEEPING_ALL])
def test_replicas_talk_no_more_with_more_microbatches(layout: Layout) -> None:
    few, many = (tally(over(compiled(layout._replace(m=m)), DATA)) for m in (FEW, MANY))
    assert few == many


def test_zero_gathers_and_scatters_each_parameter_of_each_layer_once() -> None:
    program = compiled(PIPELINE)
    shapes, specs = program.step.stages.shapes, program.step.stages.specs
    dims = sharding.zero_dims(shapes, specs, program.axes[DATA])
    layers = {name: LAYERS_PER_STAGE if name == "blocks" else 1 for name in dims}
    cut = sum(layers[name] * (dim != sharding.UNCUT) for name in dims for dim in jax.tree.leaves(dims[name]))
    count = tally(over(program, DATA))
    assert count["all-gather"] == count["reduce-scatter"] == cut > 0


def test_without_zero_each_gradient_is_reduced_once() -> None:
    program = compiled(KEEPING_ALL)
    shapes = program.step.stages.shapes
    leaves = sum(
        len(jax.tree.leaves(value)) * (LAYERS_PER_STAGE if name == "blocks" else 1) for name, value in shapes.items()
    )
    loss_and_tokens = 2
    assert tally(over(program, DATA)) == {"all-reduce": leaves + loss_and_tokens}


def test_weights_are_moved_as_tensor_peers_hold_them() -> None:
    """No gather of a whole weight over tensor on the way to or from its ZeRO layout."""
    found = over(compiled(ALL_AXES), TENSOR)
    assert [c.op_name for c in found if re.search("gather_weights|reduce_gradients", c.op_name)] == []


# --- gates -----------------------------------------------------------------------------------------


def gates(path: tuple[hlo.Loop, ...]) -> list[str]:
    """The kinds of the gates on a path of loops; a loop of unknown trips that is none is named."""
    names = [loop.op_name for loop in path if loop.trips is None]
    kinds = [re.search(rf"/({STAGE_GATE}|{MESH_GATE})/while$", name) for name in names]
    return [kind[1] if kind else name for kind, name in zip(kinds, names, strict=True)]


def offences(module: hlo.Module, axes: dict[str, int]) -> list[str]:
    """What could hang or slow the gates of a program."""
    found = []
    for path in module.loops():
        found += [f"unknown trips, no gate: {name}" for name in gates(path) if name not in (STAGE_GATE, MESH_GATE)]
    for collective in module.collectives():
        if STAGE_GATE in gates(collective.loops):
            if collective.kind == "collective-permute":
                found.append(f"hop in a stage gate: {collective.op_name}")
            if not collective.axes(axes) <= {TENSOR}:
                found.append(f"{set(collective.axes(axes))} in a stage gate: {collective.op_name}")
    return found


def test_only_tensor_peers_talk_behind_a_stage_gate() -> None:
    program = compiled(ALL_AXES)
    assert any(STAGE_GATE in gates(c.loops) for c in program.module.collectives())
    assert offences(program.module, program.axes) == []


def test_the_check_of_gates_can_fail() -> None:
    program = compiled(ALL_AXES)
    lines = program.text.splitlines()
    tensor_groups = r"replica_groups=(\{[\d{},]*\}|\[.*?\(0,2,1\)|mesh\[[^}]*\})"
    inside = next(
        k
        for k, line in enumerate(lines)
        if f"/{STAGE_GATE}/" in line and re.search(f" all-reduce.*{tensor_groups}", line)
    )
    assert re.search(tensor_groups, lines[inside])

    def doctored(old: str, new: str, line: int) -> list[str]:
        text = "\n".join([*lines[:line], re.sub(old, new, lines[line]), *lines[line + 1 :]])
        return offences(hlo.read(text), program.axes)

    assert doctored(tensor_groups, "replica_groups={{0,1},{2,3},{4,5},{6,7}}", inside)[0].startswith("{'pipe'}")
    assert doctored(tensor_groups, "replica_groups={}", inside)
    hop = r"collective-permute(\1), source_target_pairs={{0,1},{1,0}}"
    assert doctored(rf"all-reduce\((.*?)\), .*{tensor_groups}", hop, inside)[0].startswith("hop in a stage gate")
    gate = next(k for k, line in enumerate(lines) if " while(" in line and f'{STAGE_GATE}/while"' in line)
    assert doctored(STAGE_GATE, "elsewhere", gate)[0].startswith("unknown trips, no gate")
    layers = next(k for k, line in enumerate(lines) if " while(" in line and "known_trip_count" in line)
    assert doctored("known_trip_count", "unknown", layers)[0].startswith("unknown trips, no gate")


@pytest.mark.parametrize("layout", [PIPELINE, GPIPE])
def test_an_idle_stage_does_no_layers(layout: Layout) -> None:
    """Every loop over layers stands behind a gate, or where all stages are busy."""
    program = compiled(layout)
    in_layers = [path for path in program.module.loops() if re.search("/(forward|backward)/.*while$", path[-1].op_name)]
    open_to_all = [path for path in in_layers if path[-1].trips is not None and not gates(path)]
    forward, backward, recomputed = 1, 1, 1
    loops = {"forward": forward, "backward": backward + recomputed}
    busy = [loops[name] for p in program.phases for name in loops if p.occurs[name] == "always"]
    assert len(open_to_all) == sum(busy)
    assert len(in_layers) > len(open_to_all)


def tick_loops(program: Compiled) -> list[str]:
    """Names of the scans over ticks, in order."""
    outermost = {path[0].name: path[0] for path in program.module.loops()}
    return [name for name, loop in outermost.items() if re.search(r"shard_map/phase_\d+/while$", loop.op_name)]


def test_the_steady_state_has_no_gate() -> None:
    for m in (FEW, MANY):
        program = compiled(PIPELINE._replace(m=m))
        ticks = tick_loops(program)
        assert len(ticks) == len(program.phases)
        gated = {path[0].name for path in program.module.loops() if gates(path)}
        (steady,) = [name for name in ticks if name not in gated]
        trips = {path[0].name: path[0].trips for path in program.module.loops()}
        assert trips[steady] == m - 2 * (program.axes[PIPE] - 1)


# --- tensor and pipe -------------------------------------------------------------------------------


def test_tensor_peers_talk_twice_a_layer_and_pass() -> None:
    """Around attention and around the MLP: gather the sequence, add the partial products.

    XLA:CPU adds with an all-reduce where XLA:GPU makes a reduce-scatter of it and the slice after it,
    and adds each product's gradient by itself.
    """
    program = compiled(TENSOR_PEERS)
    layers = FEW * LAYERS_PER_STAGE
    found = over(program, TENSOR)
    forward = tally([c for c in found if "/forward/" in c.op_name])
    assert forward == {"all-gather": 2 * layers, "all-reduce": 2 * layers}
    backward = tally([c for c in found if "/backward/" in c.op_name])
    again, norms = 1, 2  # attention's sum, for the MLP's input; the gradients of two scales
    assert backward == {
        "all-gather": (2 + 2) * layers,
        "all-reduce": (again + COLUMN_PRODUCTS + norms) * layers,
    }


def test_what_is_kept_stays_cut_as_it_was_made() -> None:
    """Queries have the shape of an activation here; kept by heads, they are not turned to the sequence and back."""
    program = compiled(Layout(1, 2, 2, "gpipe", "selective"))
    assert "all-to-all" not in {c.kind for c in over(program, TENSOR)}


def test_without_tensor_peers_nobody_talks_over_tensor_or_in_a_layer() -> None:
    program = compiled(PIPELINE)
    assert over(program, TENSOR) == []
    assert [c for c in program.module.collectives() if re.search("/(forward|backward)/", c.op_name)] == []


def test_one_hop_each_way_a_tick() -> None:
    for layout in (PIPELINE, GPIPE):
        program = compiled(layout)
        hops = [c for c in program.module.collectives() if c.kind == "collective-permute"]
        for way, arrival in (("forward", "arrival"), ("backward", "gradient_arrival")):
            due = [p.stop - p.start for p in program.phases if p.occurs[arrival] != "never"]
            there = [c for c in hops if f"/hop_{way}/" in c.op_name]
            assert [c.count for c in there] == due
            assert {c.bytes for c in there} == {STAGE_INPUT}
            assert {c.axes(program.axes) for c in there} == {frozenset({PIPE})}
        assert len(hops) == sum("/hop_" in c.op_name for c in hops)


def test_with_one_stage_nothing_hops_and_no_gate_stands() -> None:
    program = compiled(TENSOR_PEERS)
    assert over(program, PIPE, DATA) == []
    assert not any(c.kind == "collective-permute" for c in program.module.collectives())
    assert not any(gates(path) for path in program.module.loops())


def test_alone_a_device_talks_to_nobody() -> None:
    assert compiled(ALONE).module.collectives() == []


# --- exchanges that XLA:CPU would mix up (see `collectives.after`) --------------------------------


def mixed_up(program: Compiled) -> list[str]:
    """Pairs of a loop and an exchange after it, of a kind that is in the loop too and between the same devices, which
    no value orders: the one may begin while the other still runs."""
    module, found = program.module, []

    def exchanges(instruction: hlo.Instruction) -> set[tuple[str, hlo.Groups]]:
        kind = instruction.opcode.removesuffix("-start")
        if kind in hlo.COLLECTIVES:
            return {(kind, hlo.read_groups(instruction.attributes, module.partitions))}
        inside = instruction.calls if instruction.opcode in (*hlo.LOOPS, "call") else ()
        return {e for name in inside for i in module.computations[name].values() for e in exchanges(i)}

    def unchanged(loop: hlo.Instruction) -> set[str]:
        """Numbers, as text, of what a loop carries and hands on as it was: reading that waits for nothing."""
        name = re.search(r"body=%?([\w.\-]+)", loop.attributes)
        assert name is not None
        body, root = module.computations[name[1]], roots[name[1]]
        return {
            str(number)
            for number, operand in enumerate(body[root].operands)
            if body[operand].opcode == "get-tuple-element"
            and body[body[operand].operands[0]].opcode == "parameter"
            and number_of(body[operand]) == str(number)
        }

    def number_of(element: hlo.Instruction) -> str:
        return re.findall(r"index=(\d+)", element.attributes)[0]

    roots, current = {}, ""
    for line in program.text.splitlines():
        start, root = re.match(r"(?:ENTRY )?%?([\w.\-]+) .*\{$", line), re.match(r"\s+ROOT %?([\w.\-]+) = ", line)
        current = start[1] if start else current
        roots |= {current: root[1]} if root else {}
    for computation in module.computations.values():
        order = list(computation.values())
        for place, loop in enumerate(order):
            if loop.opcode != "while" or not exchanges(loop):
                continue
            waiting, kept = {loop.name}, unchanged(loop)
            for later in order[place + 1 :]:
                element = later.opcode == "get-tuple-element" and later.operands[0] == loop.name
                if waiting & set(later.operands) and not (element and number_of(later) in kept):
                    waiting.add(later.name)
                elif exchanges(later) & exchanges(loop):
                    found.append(f"{loop.op_name} and {later.op_name}")
    return found


@pytest.mark.parametrize("layout", [REPLICAS, CUT_ALWAYS, PIPELINE, GPIPE, KEEPING_ALL, ALL_AXES])
def test_exchanges_of_a_kind_are_kept_apart(layout: Layout) -> None:
    assert not mixed_up(compiled(layout))


def test_without_ties_exchanges_would_be_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (executor, zero):
        monkeypatch.setattr(module, "after", lambda x, *_: x)
    found = mixed_up(compiled.__wrapped__(CUT_ALWAYS))
    assert any("forward" in pair and "backward" in pair for pair in found)


# --- memory, host ----------------------------------------------------------------------------------


def temporary(layout: Layout, m: int) -> int:
    return compiled(layout._replace(m=m)).memory.temp_size_in_bytes


@pytest.mark.parametrize("layout", [PIPELINE, KEEPING_ALL])
def test_1f1b_needs_no_more_memory_with_more_microbatches(layout: Layout) -> None:
    """Nothing but the batch itself grows: its weights, divided by the target tokens, and the table's columns."""
    weights, column = MICROBATCH_SIZE * SEQUENCE * FLOAT32, 25 * INT32
    assert weights + column < STAGE_INPUT / 16
    assert temporary(layout, MANY) - temporary(layout, FEW) <= (MANY - FEW) * (weights + column)


def test_memory_of_gpipe_grows_with_microbatches() -> None:
    assert temporary(GPIPE, MANY) - temporary(GPIPE, FEW) >= (MANY - FEW) * STAGE_INPUT
    assert temporary(GPIPE, FEW) > temporary(PIPELINE, FEW)


def test_the_state_is_updated_in_place() -> None:
    program = compiled(ALL_AXES)
    leaves = jax.tree.leaves(program.state)
    assert program.module.donated == frozenset(range(len(leaves)))
    held = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
    assert program.memory.alias_size_in_bytes == held


def test_the_host_takes_no_part() -> None:
    for place in compiled(ALL_AXES).module.walk():
        assert not re.search("infeed|outfeed|send|recv", place.instruction.opcode)
        assert "callback" not in place.instruction.attributes
