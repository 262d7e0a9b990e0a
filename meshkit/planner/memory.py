"""What each device of a stage holds, in bytes by kind; the working set is all that comes and goes within a step.

meshkit: as `train_step.py`, `zero.py` and `pipeline/executor.py` allocate it; all stages have arrays of one shape,
so all hold the same. Other frameworks: as arXiv 2205.05198 counts it, stage by stage.
"""

import functools

from meshkit.pipeline.costs import FLOAT32, WIDENING, held_elements, kept_bytes
from meshkit.planner.cluster import groups
from meshkit.planner.counts import layer_parameters, linears, table_parameters
from meshkit.planner.flow import Table
from meshkit.planner.layout import BFLOAT16, Layout
from meshkit.planner.workload import WAITING, Workload, others_layer, stage_layers

Bytes = dict[str, float]

KINDS = ("weights", "moments", "working copy", "gradients", "activations", "working set")

RESERVE = 2 * 2**30
"""Bytes that no program gets: CUDA's context, NCCL's buffers."""


def stages(work: Workload, layout: Layout) -> tuple[Bytes, ...]:
    """Bytes by kind (KINDS) of a device of each stage; one entry where all stages are alike."""
    return MODELS[work.profile.name == "meshkit"](work, layout)


def _meshkit(work: Workload, layout: Layout) -> tuple[Bytes, ...]:
    """The larger of two moments: weights gathered (and a stack of them transposed), or the pipeline at work."""
    sizes, mesh, zero = work.sizes, layout.mesh, layout.zero
    T, P, D = mesh.tensor, mesh.pipe, mesh.data
    rows = layout.placement(sizes.layers).longest
    layers = rows * layout.virtual
    blocks = layers * work.layer_weights / T
    tables = table_parameters(sizes) * (1 if sizes.tied else 2) / (T * P)
    master = (blocks + tables) / (D if zero >= 1 else 1)
    gathered = layers * _largest(work) / T * work.element if 1 <= zero <= 2 and D > 1 else 0.0
    activations = _activations(work, layout.table, layout.microbatch, T, layout.recompute, rows)
    transient = _transient(work, layout.microbatch, T, P, zero == 3)
    # While weights are gathered there are no activations, and accumulators only where they are cut already.
    accumulated = (blocks / (D if zero >= 2 else 1) + tables) * FLOAT32
    early = gathered - (0.0 if zero >= 2 else accumulated)
    return (
        {
            "weights": master * FLOAT32,
            "moments": 2 * master * FLOAT32,
            "working copy": (blocks / (D if zero == 3 else 1) + tables) * work.element,
            "gradients": accumulated,
            "activations": activations,
            "working set": max(transient, early - activations),
        },
    )


@functools.lru_cache(maxsize=4096)
def _activations(work: Workload, table: Table, microbatch: int, T: int, recompute: str, rows: int) -> float:
    """Bytes of all slots, and of a stage's layer inputs where they are made again. rows: layers of a chunk."""
    sizes, counts = work.sizes, table.slots
    tokens = microbatch * work.sequence
    activation = tokens * sizes.width * work.element / T
    by_layer = recompute != "full" or table.backward_at_once
    layer = tokens * kept_bytes(sizes, recompute, work.precision) / T
    kept = counts["kept"] * (layer * rows if by_layer else activation) + (0 if by_layer else rows * activation)
    # The inputs of linears that are cut by columns are held whole, as they were gathered.
    whole = 2 * sizes.width
    held = counts["held"] * rows * tokens * work.element * (whole + (held_elements(sizes) - whole) / T)
    turns = microbatch > 1 and T > 1 and table.stages > 1
    turned = TURNED[recompute] * counts["kept"] * rows * activation if turns else 0
    # Beside the slots, what a tick hands over, each way; and what arrives meanwhile, if a hop has a whole tick.
    return (counts["inputs"] + counts["gradients"] + 2 * table.hop) * activation + kept + turned + held


TURNED = {"full": 0, "selective": 2, "none": 4}
"""Of what a layer keeps, arrays [samples, sequence/T, width] in the dtype of its arithmetic. Of several samples XLA
gathers the sequence with it outermost, and turns whole stacks of them between the pipeline's phases: both are there."""


@functools.lru_cache(maxsize=4096)
def _transient(work: Workload, microbatch: int, T: int, P: int, fetches: bool) -> float:
    """Bytes that come and go within a tick: the head's, or a layer's, whichever is more.

    The head: logits in float32, their gradient in bfloat16. A layer: gradients of its widest products in float32, its
    weights if it `fetches` them, what its products leave.
    """
    sizes, tokens = work.sizes, microbatch * work.sequence
    head = tokens * sizes.vocab / (T * P) * (FLOAT32 + work.element)
    fetched = work.layer_weights / T * work.element if fetches else 0.0
    products = tokens * work.element * (sum(o for _, o in linears(sizes).values()) / T + sizes.width)
    return max(head, 2 * _largest(work) / T * FLOAT32 + fetched + products)


@functools.lru_cache(maxsize=64)
def _largest(work: Workload) -> int:
    """Elements of a layer's largest matrix as it is stored: gate and up are two."""
    widening = WIDENING[work.sizes.family]
    return max(i * o // (widening if name == "up" else 1) for name, (i, o) in linears(work.sizes).items())


def _others(work: Workload, layout: Layout) -> tuple[Bytes, ...]:
    sizes, mesh, profile = work.sizes, layout.mesh, work.profile
    T, P, D, v = mesh.tensor, mesh.pipe, mesh.data, layout.virtual
    counts = stage_layers(sizes, layout, profile)
    tokens = layout.microbatch * work.sequence
    logits = tokens * sizes.vocab * profile.logit_memory / (1 if profile.whole_logits else T)
    layer, copies = tokens * _kept(work, layout), tokens * _copies(work, layout)
    recomputes = layout.recompute == "full"
    # A backward makes the gradient of a product, and widens it, before it is added.
    gradient = max(i * o for i, o in linears(sizes).values()) / T * FLOAT32
    boundary = tokens * sizes.width * BFLOAT16 / (T if layout.sequence_parallel else 1)
    result = []
    for stage in range(P):
        tables = (stage == 0) + (stage == P - 1 and (P > 1 or not sizes.tied))
        held = (counts[stage] * layer_parameters(sizes) + tables * table_parameters(sizes)) / T
        cut = held / (D if layout.zero else 1)
        flying = in_flight(layout, stage) * counts[stage] / v
        found = {
            "weights": cut * FLOAT32,
            "moments": 2 * cut * FLOAT32,
            "working copy": held * BFLOAT16,
            "gradients": held * profile.gradient_memory,
            "activations": flying * (boundary if recomputes else layer),
            "working set": profile.workspace
            + gradient
            + (layer if recomputes else 0.0)
            + (logits if stage == P - 1 else 0.0),
        }
        # An allocator that runs out waits for the device, and gets its copies back.
        if sum(found.values()) + flying * copies <= work.device.memory - RESERVE:
            found["activations"] += flying * copies
        result.append(found)
    return tuple(result)


def _kept(work: Workload, layout: Layout) -> float:
    """Bytes that a device keeps of a token in a layer, without recomputation."""
    sizes, kept, T = work.sizes, work.profile.kept, layout.mesh.tensor
    A, K = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    products = (WIDENING[sizes.family] + 1) * sizes.mlp_width
    inside = kept.heads * (A + 2 * K) + kept.out * A + kept.hidden * products
    scores = 0 if layout.recompute == "selective" else kept.scores * sizes.heads * work.sequence
    return kept.between * sizes.width / (T if layout.sequence_parallel else 1) + (inside + scores) / T


def _copies(work: Workload, layout: Layout) -> float:
    """Bytes of gathered copies that a device keeps of a token in a layer, if there is room."""
    whole = work.profile.kept.whole
    return whole * work.sizes.width if whole and layout.mesh.tensor > 1 and _host_is_ahead(work, layout) else 0.0


def _host_is_ahead(work: Workload, layout: Layout) -> bool:
    """Whether forwards are launched before the device comes to them, so that what an exchange used is not free yet:
    not in a pipeline that stands still, nor in one of two stages, with one forward to warm up, that waits for hosts."""
    mesh, profile = layout.mesh, work.profile
    peers = groups(mesh, work.cluster, profile.pipe_outermost)
    if profile.stall.seconds(mesh, peers["pipe"], layout.microbatches, layout.zero):
        return False
    terms = [term for part in others_layer(work, layout, peers) for term in part.items]
    waited = sum(term.seconds for term in terms if term.name == WAITING)
    return mesh.pipe != 2 or waited <= LITTLE * sum(term.seconds for term in terms)


LITTLE = 0.05
"""Share of a layer's time under which a device does not count as waiting for its host."""


def in_flight(layout: Layout, stage: int) -> int:
    """Microbatches (of a chunk each) whose activations a stage holds at most, under Megatron's orders."""
    P, m, v = layout.mesh.pipe, layout.microbatches, layout.virtual
    if v == 1:
        return min(m, P - stage)
    return min(m * v, P * (v - 1) + 2 * (P - 1 - stage) + 1)


MODELS = {True: _meshkit, False: _others}
