"""How a framework runs a layout: what it overlaps, keeps, repeats and exchanges.

A profile is of a framework, never of a table of measurements: the same figures for every run of it. Figures that
follow from its kernels are counted; the few that were fitted on its published runs say so.
"""

import dataclasses
from collections.abc import Mapping

from meshkit.planner.pace import AT_ONCE, NEVER, Host, Stall


@dataclasses.dataclass(frozen=True)
class Again:
    """What a backward goes through again before it can start, in forwards: linears, attention, all between them,
    and the exchanges over tensor."""

    linears: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    exchanges: float = 0.0


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes of memory that the elementwise work of a forward reads and writes for a token of a layer:
    `width` for each feature of the residual stream, `hidden` of the MLP, `heads` of queries and keys."""

    width: float
    hidden: float
    heads: float


@dataclasses.dataclass(frozen=True)
class Kept:
    """Bytes that a layer keeps of a token from forward to backward: `between` for each feature of the residual stream,
    `heads` of queries, keys and values, `out` of attention's output, `hidden` of each of the MLP's products, `scores`
    of each pair of positions of a head. whole: of each feature of the residual stream, in gathered copies that are not
    cut over tensor; none where the device waits for the host, which then frees them in time."""

    between: float = 0.0
    heads: float = 0.0
    out: float = 0.0
    hidden: float = 0.0
    scores: float = 0.0
    whole: float = 0.0


FUSED_LOSS, EAGER_LOSS = 20, 52
"""Bytes for each logit. Fused, in float32: written, read for the maximum, for the sum, for the gradient, which is
written. An operation a kernel: widened (6), maximum (4), less it (8), exponential (8), sum (4), divided (8); backward
scaled (8), narrowed (6)."""


@dataclasses.dataclass(frozen=True)
class Profile:
    """A framework.

    Time. lock_step: stages wait for each other after each tick of meshkit's tables; else each runs as its inputs come,
    with embedding and head on the first and the last. balanced: stages are cut by work, head included, not by layers.
    pipe_outermost: a stage's replicas are neighbours, its peers on pipe far apart; else as `mesh.place` puts them.
    again: recompute policy -> what is repeated. traffic: elementwise. scores: bytes that attention reads and writes for
    each pair of positions; 0: a flash kernel, which reaches `flash` of the accelerator's rate for it.
    backward_exchanges: over tensor, in a forward's. hidden_data, hidden_tensor, hidden_pipe: shares of exchanges that
    may run beside arithmetic. gradient_bytes: of a parameter's gradient, as exchanged. optimizer_bytes: of memory that
    the update of a parameter reads and writes. logit_traffic: of memory that the loss reads and writes for each logit,
    both passes. host, stall: what it waits for.

    Memory, of frameworks other than meshkit. kept: without recomputation. gradient_memory, logit_memory: bytes of a
    parameter's gradient with what reduces it, of a logit with what its loss makes. whole_logits: they are gathered
    over tensor. workspace: bytes of libraries.
    """

    name: str
    again: Mapping[str, Again]
    traffic: Traffic
    lock_step: bool = False
    balanced: bool = False
    pipe_outermost: bool = False
    scores: float = 0.0
    flash: float = 1.0
    backward_exchanges: float = 1.0
    hidden_data: float = 0.0
    hidden_tensor: float = 0.0
    hidden_pipe: float = 0.0
    gradient_bytes: int = 4
    optimizer_bytes: float = 34
    logit_traffic: float = FUSED_LOSS
    host: Host = AT_ONCE
    stall: Stall = NEVER
    kept: Kept = Kept()
    gradient_memory: float = 4
    logit_memory: float = 10
    whole_logits: bool = False
    workspace: float = 0.0


FUSED = Traffic(width=20, hidden=6, heads=8)
"""Kernels that do all at once, in bfloat16. width: two norms read and write (8), two sums read two and write one
(12); hidden: the gate's product reads two and writes one; heads: rotary positions read and write twice."""

EAGER = Traffic(width=84, hidden=10, heads=24)
"""An operation a kernel. width: a norm widens to float32, squares, averages, scales, narrows, multiplies (36), twice,
and the sums (12); hidden: the activation reads and writes (4), then the product (6); heads: rotary in five kernels."""


def scaled(traffic: Traffic, factor: float) -> Traffic:
    """As often again."""
    return Traffic(traffic.width * factor, traffic.hidden * factor, traffic.heads * factor)


MESHKIT = Profile(
    name="meshkit",
    lock_step=True,
    again={
        "full": Again(2, 2, 2, 1.75),
        "selective": Again(0, 1, 1, 0.5),
        "none": Again(),
    },
    traffic=FUSED,
)
"""Lock-step tables, embedding and head on all stages. XLA hides no exchange inside a loop unless told to, so none is
counted as hidden. full: through the stage, then through each layer, whose last exchange nothing waits for; selective:
norms with their gathers. Update: gradient, weight and two moments read, three written; the gradient twice for its
norm and the clip."""

ONCE = {"full": Again(1, 1, 1, 1), "selective": Again(0, 1), "none": Again()}
"""What most frameworks repeat: a layer once, or attention alone (arXiv 2205.05198)."""

KEPT = Kept(between=8, heads=2, out=2, hidden=2)
"""In bfloat16 with a flash kernel: inputs and outputs of two norms; queries, keys, values; attention's output; the
MLP's products."""

MEGATRON = Profile(
    name="megatron",
    again=ONCE,
    traffic=scaled(FUSED, 7),
    backward_exchanges=1.5,
    kept=KEPT,
)
"""Megatron-LM (arXiv 2104.04473, 2205.05198): asynchronous 1F1B, head on the last stage, nothing overlapped. A backward
under sequence parallelism gathers the inputs of linears again. Traffic: fitted."""

MEGATRON_2021 = dataclasses.replace(
    MEGATRON,
    name="megatron-2021",
    traffic=FUSED,
    scores=12,
    kept=dataclasses.replace(KEPT, scores=5),
    gradient_memory=5,
)
"""Its GPT of 2021: fused norms, activations and softmax; scores written, read and written by the softmax, read, and
as much for dropout."""

NEMO = dataclasses.replace(
    MEGATRON,
    name="nemo",
    traffic=FUSED,
    hidden_data=1.0,
    hidden_tensor=0.8,
    hidden_pipe=1.0,
    gradient_bytes=2,
)
"""NVIDIA's recipes: the distributed optimizer's exchanges, the hops and most of tensor's run beside the layers."""

NANOTRON = dataclasses.replace(
    MEGATRON,
    name="nanotron",
    traffic=scaled(FUSED, 3.5),
    balanced=True,
    pipe_outermost=True,
    logit_traffic=EAGER_LOSS,
    host=Host(layer=1.63e-3, peer=0.44, square=0.0092),
    stall=Stall(replicated=0.54, many=1.06),
    kept=Kept(between=24.5, heads=2, hidden=1.7, whole=2),
    gradient_memory=5,
    logit_memory=10.5,
    workspace=0.28e9,
)
"""nanotron, as the Ultra-Scale Playbook ran it: ranks count tensor, then data, then pipe; the loss an operation a
kernel. Traffic, memory, host and stall are fitted on its runs, of which each is one step. Why they stand still is not
known: of replicas with all moments seven in ten do, on 512 devices nearly all, of the others one in seven."""

ALEPH = dataclasses.replace(
    MEGATRON,
    name="aleph-alpha",
    balanced=True,
    traffic=scaled(EAGER, 2),
    kept=Kept(between=18, heads=2, hidden=4),
    gradient_memory=2,
    logit_memory=20,
    whole_logits=True,
    workspace=1.5 * 2**30,
)
"""Aleph Alpha's framework (arXiv 2311.05610) with FlashAttention 2. Its traffic, and the memory of its MLP, norms and
logits are fitted on when it ran out of memory; its other kernels are below."""

RMS_KERNEL = dataclasses.replace(
    ALEPH,
    name="aleph-alpha-rms",
    traffic=dataclasses.replace(ALEPH.traffic, width=40),
    kept=dataclasses.replace(ALEPH.kept, between=8),
)
FLASH1 = dataclasses.replace(ALEPH, name="aleph-alpha-flash1", flash=0.6)
SOFTMAX_KERNEL = dataclasses.replace(
    ALEPH, name="aleph-alpha-fused", scores=12, kept=dataclasses.replace(ALEPH.kept, scores=5)
)
PLAIN = dataclasses.replace(SOFTMAX_KERNEL, name="aleph-alpha-torch", scores=24)

PROFILES = {
    profile.name: profile
    for profile in (
        MESHKIT,
        MEGATRON,
        MEGATRON_2021,
        NEMO,
        NANOTRON,
        ALEPH,
        RMS_KERNEL,
        FLASH1,
        SOFTMAX_KERNEL,
        PLAIN,
    )
}
