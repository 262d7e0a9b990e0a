"""What is read from a compiled step, against what its schedule and its model's shapes say. Nothing is run.

Compiled for simulated CPU devices: there attention is plain products over the whole square of scores.
"""

import functools
import math
from typing import NamedTuple

import jax
import pytest

from meshkit import assemble, config, hlo, mesh
from meshkit.mesh import DATA, PIPE, TENSOR
from meshkit.pipeline.slots import allocate, phases
from meshkit.pipeline.trips import Trips
from meshkit.planner.compile_child import arguments
from meshkit.planner.figures import BETWEEN, INSIDE, Figures, figures
from meshkit.planner.products import flops
from meshkit.train_step import TrainStep

WIDTH, HEADS, KV_HEADS, HEAD_DIM, MLP, VOCAB = 32, 4, 2, 8, 48, 96
SEQUENCE, MICROBATCH_SIZE, MICROBATCHES, FLOAT32 = 16, 2, 6, 4
TOKENS = MICROBATCH_SIZE * SEQUENCE
DOWN = 2 * TOKENS * MLP * WIDTH
LINEARS = 2 * TOKENS * WIDTH * (2 * HEADS + 2 * KV_HEADS) * HEAD_DIM + 3 * DOWN
ATTENTION = 2 * 2 * MICROBATCH_SIZE * HEADS * SEQUENCE**2 * HEAD_DIM
LAYER = LINEARS + ATTENTION
HEAD = 3 * 2 * TOKENS * WIDTH * VOCAB

AGAIN = LAYER - DOWN
"""A layer gone through before its backward: what its last product gives, nobody reads."""
BACK = 2 * LINEARS + 2 * ATTENTION
"""An input and a weight gradient for each product. The scores, which attention keeps not, are those made again."""


class Layout(NamedTuple):
    data: int
    tensor: int
    pipe: int
    layers: tuple[int, ...]
    schedule: str = "1f1b"
    virtual: int = 1
    recompute: str = "full"


UNEVEN = Layout(1, 1, 2, (1, 3))
SPLIT = Layout(1, 1, 2, (2, 2), "zero-bubble", 1, "selective")
ALL_AXES = Layout(2, 2, 2, (2, 2))


@functools.lru_cache
def compiled(layout: Layout) -> tuple[TrainStep, Figures]:
    """The train step of a tiny Llama on nodes of 4, and its figures."""
    model = {"width": WIDTH, "heads": HEADS, "kv_heads": KV_HEADS, "mlp_width": MLP, "vocab": VOCAB}
    schedule = {"schedule": layout.schedule, "virtual": layout.virtual, "layers_per_stage": list(layout.layers)}
    run = config.load(
        {
            "mesh": {DATA: layout.data, TENSOR: layout.tensor, PIPE: layout.pipe},
            "pipeline": {"microbatches": MICROBATCHES, **schedule},
            "model": {"preset": "tiny", "layers": sum(layout.layers), **model},
            "data": {"batch": MICROBATCHES * MICROBATCH_SIZE * layout.data, "sequence": SEQUENCE},
            "precision": "float32",
            "recompute": layout.recompute,
        }
    )
    step = assemble.train_step(run, mesh.build(run.mesh, jax.devices()[: run.mesh.devices]))
    program = hlo.read(step.compile(*arguments(step)).as_text())
    nodes = [device.id // 4 for device in step.mesh.devices.flat]
    return step, figures(program, Trips(step.schedule, step.stages.placement), dict(step.mesh.shape), nodes)


def work(found: Figures, *actions: str) -> list[float]:
    """FLOPs of each stage in some actions."""
    return [sum(stage) for stage in zip(*(w.flops for w in found.work if w.action in actions), strict=True)]


def layers(layout: Layout) -> list[int]:
    """Of each stage."""
    return [sum(layout.layers[stage :: layout.pipe]) for stage in range(layout.pipe)]


@pytest.mark.parametrize("layout", [UNEVEN, SPLIT, ALL_AXES], ids=str)
def test_each_stage_goes_forward_through_its_own_layers_once_a_microbatch(layout: Layout) -> None:
    _, found = compiled(layout)
    assert found.uncounted == {}
    assert work(found, "forward") == [MICROBATCHES * n * LAYER / layout.tensor for n in layers(layout)]


@pytest.mark.parametrize("layout", [UNEVEN, SPLIT, ALL_AXES], ids=str)
def test_all_share_the_head(layout: Layout) -> None:
    share = layout.tensor * layout.pipe
    assert work(compiled(layout)[1], "head") == [MICROBATCHES * HEAD / share] * layout.pipe


def test_full_recompute_goes_forward_twice_more() -> None:
    for stage, done in enumerate(work(compiled(ALL_AXES)[1], "backward")):
        assert done == MICROBATCHES * layers(ALL_AXES)[stage] * (LAYER + AGAIN + BACK) / ALL_AXES.tensor


def test_a_split_backward_leaves_weight_gradients_for_later() -> None:
    """Kept outputs of linears spare these, so that only attention is made again."""
    found = compiled(SPLIT)[1]
    for stage, n in enumerate(layers(SPLIT)):
        assert work(found, "weight")[stage] == MICROBATCHES * n * LINEARS
        assert work(found, "backward")[stage] == MICROBATCHES * n * (ATTENTION + BACK - LINEARS)


@pytest.mark.parametrize("layout", [UNEVEN, ALL_AXES], ids=str)
def test_a_hop_each_way_a_tick(layout: Layout) -> None:
    step, found = compiled(layout)
    due = sum(
        phase.stop - phase.start
        for phase in phases(allocate(step.schedule).columns)
        for way in ("arrival", "gradient_arrival")
        if phase.occurs[way] != "never"
    )
    [hops] = [t for t in found.traffic if t.kind == "collective-permute"]
    assert (hops.axis, hops.times) == (PIPE, [due] * layout.pipe)
    assert hops.bytes == [due * TOKENS * WIDTH * FLOAT32 // layout.tensor] * layout.pipe


def test_replicas_talk_between_nodes_and_all_others_inside() -> None:
    found = compiled(ALL_AXES)[1]
    assert {(t.axis, t.link) for t in found.traffic if t.axis in (DATA, TENSOR, PIPE)} == {
        (DATA, BETWEEN),
        (TENSOR, INSIDE),
        (PIPE, INSIDE),
    }


def test_each_weight_is_gathered_and_each_gradient_scattered_once() -> None:
    step, found = compiled(ALL_AXES)
    cut = {axis: size for axis, size in step.mesh.shape.items() if axis != DATA}

    def held(shape: jax.ShapeDtypeStruct, spec: jax.sharding.PartitionSpec) -> int:
        return shape.size // math.prod(size for axis, size in cut.items() if axis in str(spec))

    whole = FLOAT32 * sum(jax.tree.leaves(jax.tree.map(held, step.stages.shapes, step.stages.specs)))
    for kind in ("all-gather", "reduce-scatter"):
        assert [t.bytes for t in found.traffic if (t.axis, t.kind) == (DATA, kind)] == [[whole, whole]]


# --- products by hand -----------------------------------------------------------------------------

FLASH = """\
HloModule m, num_partitions=1

ENTRY %main (q: bf16[2,8,4,16], k: bf16[2,8,4,16]) -> bf16[2,4,8,16] {
  %q = bf16[2,8,4,16]{3,2,1,0} parameter(0)
  %k = bf16[2,8,4,16]{3,2,1,0} parameter(1)
  ROOT %o = (bf16[2,4,8,16]{3,1,2,0}, u8[0]{0}) custom-call(%q, %k, %k), custom_call_target="TARGET", \
backend_config={"cudnn_fmha_backend_config": {"intermediate_tensor_shape": {"dimensions": ["2", "4", "8", "8"]}, \
"mask_type": "MASK"}}
}
"""
ONE_PRODUCT, SQUARE, TRIANGLE = 2 * 2 * 4 * 16, 8 * 8, 8 * 9 // 2


@pytest.mark.parametrize(
    ("target", "mask", "expected"),
    [
        ("__cudnn$fmhaSoftmax", "NO_MASK", 2 * ONE_PRODUCT * SQUARE),
        ("__cudnn$fmhaSoftmax", "CAUSAL", 2 * ONE_PRODUCT * TRIANGLE),
        ("__cudnn$fmhaSoftmaxBackward", "CAUSAL", 5 * ONE_PRODUCT * TRIANGLE),
        ("__cudnn$fmhaScaleBiasSoftmax", "CAUSAL", 2 * ONE_PRODUCT * TRIANGLE),
        ("__cudnn$fmhaScaleBiasSoftmaxBackward", "CAUSAL", 5 * ONE_PRODUCT * TRIANGLE),
        ("__cudnn$fmhaSoftmax", "SLIDING_WINDOW", None),
        ("somebody_elses_kernel", "CAUSAL", None),
    ],
)
def test_a_call_is_counted_by_what_it_does_or_said_to_be_unknown(target: str, mask: str, expected: int | None) -> None:
    [*_, place] = hlo.read(FLASH.replace("TARGET", target).replace("MASK", mask)).walk()
    assert flops(place.computation, place.instruction) == expected


@pytest.mark.parametrize(
    "line",
    [
        "%d = f32[3,5]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        '%d = (f32[3,5]{1,0}, s8[64]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm", '
        'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}',
        '%d = f32[3,5]{1,0} custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", backend_config='
        '"{\\"gemm_backend_config\\":{\\"dot_dimension_numbers\\":{\\"lhs_contracting_dimensions\\":[\\"1\\"]}}}"',
    ],
)
def test_a_product_is_one_in_every_spelling(line: str) -> None:
    computation = {
        name: hlo.read_instruction(text)
        for name, text in {"a": "%a = f32[3,7]{1,0} parameter(0)", "b": "%b = f32[7,5]{1,0} parameter(1)"}.items()
    }
    assert flops(computation, hlo.read_instruction(line)) == 2 * 3 * 5 * 7
