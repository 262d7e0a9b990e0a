"""How a framework runs a layout: what is overlapped, kept, repeated, and in which dtype it is exchanged.

A profile is of a framework, never of a table of measurements: the same figures for every run of it.
"""

import dataclasses
from collections.abc import Mapping


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
    """Bytes that a layer keeps of a token from forward to backward, for each feature: `between` layers and norms
    (of the residual stream), of `heads` (queries, keys, values), of attention's `out`put, `hidden` of the MLP."""

    between: float = 0.0
    heads: float = 0.0
    out: float = 0.0
    hidden: float = 0.0


@dataclasses.dataclass(frozen=True)
class Profile:
    """A framework.

    lock_step: stages wait for each other after each tick of meshkit's tables; else each runs as its inputs come.
    vocab_over_pipe: all stages share embedding and head; else they stand on the first and the last.
    again: recompute policy -> what is repeated. traffic: elementwise.
    hidden_data, hidden_tensor: shares of those exchanges that may run beside arithmetic, 0 … 1.
    gradient_bytes: of a parameter's gradient, as exchanged. optimizer_bytes: of memory that the update of one
    parameter reads and writes.
    Of memory: kept, by recompute policy; accumulator_bytes of a parameter's gradient, logit_bytes of a logit. (None of
    these three describe meshkit, whose memory follows from its own program.)
    """

    name: str
    lock_step: bool
    vocab_over_pipe: bool
    again: Mapping[str, Again]
    traffic: Traffic
    hidden_data: float
    hidden_tensor: float
    hidden_pipe: float
    gradient_bytes: int
    optimizer_bytes: float
    kept: Mapping[str, Kept] = dataclasses.field(default_factory=dict)
    accumulator_bytes: int = 4
    logit_bytes: float = 4


FUSED = Traffic(width=24, hidden=6, heads=8)
"""Kernels as a compiler fuses them, bfloat16. width: two norms read and write (8), two sums read two and write
one (12), and the norm's statistics in a second pass (4); hidden: the gate reads two, writes one; heads: rotary."""

EAGER = Traffic(width=40, hidden=10, heads=24)
"""Kernel by kernel: norms in float32 steps, silu and product apart, rotary as a handful of kernels."""

MESHKIT = Profile(
    name="meshkit",
    lock_step=True,
    vocab_over_pipe=True,
    again={
        "full": Again(2, 2, 2, 2),
        "selective": Again(0, 1, 1, 1),
        "none": Again(),
    },
    traffic=FUSED,
    hidden_data=0.0,
    hidden_tensor=0.0,
    hidden_pipe=0.0,
    gradient_bytes=4,
    optimizer_bytes=34,
)
"""Lock-step tables; XLA hides no exchange inside a loop unless told to, so none is counted as hidden.
Update: gradient, weight and two moments read, three written, twice the gradient for norm and clip."""

MEGATRON = Profile(
    name="megatron",
    lock_step=False,
    vocab_over_pipe=False,
    again={"full": Again(1, 1, 1, 1), "selective": Again(0, 1, 0, 0), "none": Again()},
    traffic=FUSED,
    hidden_data=0.0,
    hidden_tensor=0.0,
    hidden_pipe=0.0,
    gradient_bytes=4,
    optimizer_bytes=34,
    kept={
        "full": Kept(between=2),
        "selective": Kept(between=8, heads=2, out=2, hidden=2),
        "none": Kept(between=8, heads=2, out=2, hidden=2),
    },
    accumulator_bytes=4,
    logit_bytes=10,
)
"""Megatron-LM (arXiv 2104.04473, 2205.05198): asynchronous 1F1B, head on the last stage, nothing overlapped."""

MEGATRON_OVERLAP = dataclasses.replace(
    MEGATRON, name="megatron-overlap", hidden_data=1.0, hidden_tensor=0.8, hidden_pipe=1.0, gradient_bytes=2
)
"""NeMo's: the distributed optimizer's exchanges, hops and most of tensor's run beside the layers."""

NANOTRON = dataclasses.replace(MEGATRON, name="nanotron", traffic=EAGER, gradient_bytes=4)

PROFILES = {profile.name: profile for profile in (MESHKIT, MEGATRON, MEGATRON_OVERLAP, NANOTRON)}
