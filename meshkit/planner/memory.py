"""What each device of a stage holds, in bytes by kind.

meshkit: as `train_step.py`, `zero.py` and `pipeline/executor.py` allocate it; all stages have arrays of one shape,
so all hold the same. Megatron-like: as arXiv 2205.05198 counts it, stage by stage.
"""

from meshkit.pipeline.costs import FLOAT32, WIDENING, held_elements, kept_bytes
from meshkit.planner.layout import BFLOAT16, Layout, placement
from meshkit.planner.workload import Workload, layer_parameters, linears, table_parameters

Bytes = dict[str, float]

KINDS = ("weights", "moments", "working copy", "gradients", "activations", "logits", "working set")

RESERVE = 2 * 2**30
"""Bytes that no program gets: CUDA's context, NCCL's buffers."""


def stages(work: Workload, layout: Layout) -> tuple[Bytes, ...]:
    """Bytes by kind (KINDS) of a device of each stage; one entry where all stages are alike."""
    return MODELS[work.profile.name == "meshkit"](work, layout)


def slots(layout: Layout) -> dict[str, int]:
    """Slots of each file of `slots.allocate` for the layout's table, by formula."""
    P, m, v = layout.mesh.pipe, layout.microbatches, layout.virtual
    kept = {
        "gpipe": m,
        "1f1b": min(m, 2 * (P - 1) + 1),
        "zero-bubble": min(m, 2 * (P - 1) + 1),
        "interleaved": min(m * v, P * (v + 1) - 1),
    }[layout.schedule]
    held = min(m, P) if layout.schedule == "zero-bubble" else 0
    return {"inputs": 1, "kept": kept, "gradients": m if layout.schedule == "gpipe" else 1, "held": held}


def _meshkit(work: Workload, layout: Layout) -> tuple[Bytes, ...]:
    sizes, mesh, zero = work.sizes, layout.mesh, layout.zero
    T, P, D = mesh.tensor, mesh.pipe, mesh.data
    rows = placement(sizes.layers, P, layout.virtual).longest
    layers = rows * layout.virtual
    blocks = layers * layer_parameters(sizes) / T
    tables = table_parameters(sizes) * (1 if sizes.tied else 2) / (T * P)
    cut = D if zero >= 1 else 1
    master = (blocks + tables) / cut
    tokens = layout.microbatch * work.sequence
    activation = tokens * sizes.width * work.element / T
    counts = slots(layout)
    at_once = P == 1 and layout.virtual == 1 and layout.schedule != "gpipe"
    by_layer = layout.recompute != "full" or at_once
    kept = tokens * kept_bytes(sizes, layout.recompute, work.precision) / T
    held = tokens * held_elements(sizes) * work.element / T
    activations = (
        (counts["inputs"] + counts["gradients"] + 4) * activation
        + counts["kept"] * (kept * rows if by_layer else activation)
        + (0 if by_layer else rows * activation)
        + counts["held"] * held * rows
    )
    logits = tokens * sizes.vocab / (T * P) * FLOAT32
    widest = sum(o for name, (_, o) in linears(sizes).items()) / T
    layer = layer_parameters(sizes) / T
    return (
        {
            "weights": master * FLOAT32,
            "moments": 2 * master * FLOAT32,
            "working copy": (blocks / (D if zero == 3 else 1) + tables) * work.element,
            "gradients": (blocks / (D if zero >= 2 else 1) + tables) * FLOAT32,
            "activations": activations,
            "logits": 2 * logits,
            "working set": tokens * widest * work.element * 2 + layer * FLOAT32 + (layer * 4 if zero == 3 else 0),
        },
    )


def _megatron(work: Workload, layout: Layout) -> tuple[Bytes, ...]:
    sizes, mesh, profile = work.sizes, layout.mesh, work.profile
    T, P, D, v = mesh.tensor, mesh.pipe, mesh.data, layout.virtual
    counts = placement(sizes.layers, P, v).counts
    tokens = layout.microbatch * work.sequence
    logits = tokens * sizes.vocab / T
    result = []
    for stage in range(P):
        layers = sum(counts[stage::P])
        tables = (stage == 0) + (stage == P - 1 and (P > 1 or not sizes.tied))
        held = (layers * layer_parameters(sizes) + tables * table_parameters(sizes)) / T
        cut = held / (D if layout.zero else 1)
        flying = in_flight(layout, stage) * (layers / v)
        kept = tokens * _kept(work, layout)
        result.append(
            {
                "weights": cut * FLOAT32,
                "moments": 2 * cut * FLOAT32,
                "working copy": held * BFLOAT16,
                "gradients": held * profile.accumulator_bytes,
                "activations": flying * kept,
                "logits": logits * profile.logit_bytes if stage == P - 1 else 0.0,
                "working set": 0.0,
            }
        )
    return tuple(result)


def _kept(work: Workload, layout: Layout) -> float:
    """Bytes that a device keeps of a token in a layer."""
    sizes, kept, T = work.sizes, work.profile.kept[layout.recompute], layout.mesh.tensor
    A, K = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    inside = kept.heads * (A + 2 * K) + kept.out * A + kept.hidden * (WIDENING[sizes.family] + 1) * sizes.mlp_width
    return kept.between * sizes.width / (T if layout.sequence_parallel else 1) + inside / T


def in_flight(layout: Layout, stage: int) -> int:
    """Microbatches (of a chunk each) whose activations a stage holds at most, under Megatron's orders."""
    P, m, v = layout.mesh.pipe, layout.microbatches, layout.virtual
    if v == 1:
        return min(m, P - stage)
    return min(m * v, P * (v - 1) + 2 * (P - 1 - stage) + 1)


MODELS = {True: _meshkit, False: _megatron}
