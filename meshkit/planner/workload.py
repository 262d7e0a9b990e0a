"""The work of one microbatch in one layer, in the head, in the update: FLOPs, bytes, and their time.

Shapes: a product of [M, K] and [K, N]; b samples, S sequence, H width, A = heads × head_dim,
K = kv_heads × head_dim, F mlp_width, G matrices that widen the MLP, V vocabulary, T tensor.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

from meshkit.models.presets import Sizes
from meshkit.pipeline.costs import BYTES, FLOAT32, WIDENING
from meshkit.planner import collectives
from meshkit.planner.cluster import Cluster, Group
from meshkit.planner.hardware import Accelerator
from meshkit.planner.profile import Profile

COMPUTE, TENSOR, PIPE, DATA, BUBBLE = KINDS = ("compute", "tensor", "pipe", "data", "bubble")
"""What a step's time goes to."""

FLASH_BACKWARD = 2.5
"""Of a flash kernel's forward: five products for two (arXiv 2205.14135)."""


class Term(NamedTuple):
    """A part of the step: `repeats` times volume / rate + extra. unit: of the volume, FLOP or B."""

    name: str
    kind: str
    repeats: float
    volume: float
    unit: str
    rate: float
    extra: float = 0.0

    @property
    def seconds(self) -> float:
        """Of all of them."""
        return self.repeats * (self.volume / self.rate + self.extra) if self.volume else 0.0

    def times(self, factor: float) -> "Term":
        """As often again."""
        return self._replace(repeats=self.repeats * factor)


class Layer(NamedTuple):
    """Terms of a layer and microbatch: forward; input gradient, with what is gone through again; weight gradient."""

    forward: tuple[Term, ...]
    inputs: tuple[Term, ...]
    weights: tuple[Term, ...]


# --- counts ---------------------------------------------------------------------------------------


def linears(sizes: Sizes) -> dict[str, tuple[int, int]]:
    """Name -> (features in, out) of a layer's products; the first and the third are cut by columns, the others
    by rows."""
    A, K = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    H, F = sizes.width, sizes.mlp_width
    return {"qkv": (H, A + 2 * K), "out": (A, H), "up": (H, WIDENING[sizes.family] * F), "down": (F, H)}


def layer_parameters(sizes: Sizes) -> int:
    """Weights of a layer's products, norms and biases."""
    H, vectors = sizes.width, 2
    products = sum(i * o for i, o in linears(sizes).values())
    if sizes.family == "gpt2":
        return products + sum(o for _, o in linears(sizes).values()) + 4 * H
    return products + vectors * H


def table_parameters(sizes: Sizes) -> int:
    """Rows × width of the embedding; the head, where it is not tied, has as many."""
    return sizes.vocab * sizes.width


def parameters(sizes: Sizes) -> int:
    """Of the whole model."""
    tables = table_parameters(sizes) * (1 if sizes.tied else 2)
    positions = sizes.context * sizes.width if sizes.family == "gpt2" else 0
    norms = sizes.width * (2 if sizes.family == "gpt2" else 1)
    return sizes.layers * layer_parameters(sizes) + tables + positions + norms


def attention_flops(sizes: Sizes, sequence: int) -> float:
    """Forward, a sample and layer: query × key and weights × value over the S(S+1)/2 pairs that causality leaves."""
    return 2 * 2 * sizes.heads * sizes.head_dim * sequence * (sequence + 1) / 2


def forward_flops(sizes: Sizes, sequence: int) -> float:
    """Of a token through the model with its head."""
    layer = 2 * sum(i * o for i, o in linears(sizes).values()) + attention_flops(sizes, sequence) / sequence
    return sizes.layers * layer + 2 * table_parameters(sizes)


def model_flops(sizes: Sizes, sequence: int, tokens: float) -> float:
    """Of a step on `tokens`: three forwards; recomputation does not count (arXiv 2204.02311)."""
    return 3 * forward_flops(sizes, sequence) * tokens


# --- times ----------------------------------------------------------------------------------------


def product_term(name: str, shapes: Sequence[tuple[float, float, float]], device: Accelerator, element: int) -> Term:
    """Products [M, K] × [K, N] for (M, N, K) in `shapes`: arithmetic, and their operands through memory once.

    What is small in any dim has few FLOPs a byte; adding both times is the cost of filling and draining tiles.
    """
    efficiency = device.efficiency
    flops = sum(2 * M * N * K for M, N, K in shapes)
    moved = element * sum(M * K + K * N + M * N for M, N, K in shapes)
    rate = device.flops["bfloat16" if element == 2 else "float32"] * efficiency.matmul
    return Term(name, COMPUTE, 1, flops, "FLOP", rate, moved / (device.bandwidth * efficiency.memory))


def memory_term(name: str, moved: float, device: Accelerator) -> Term:
    """Work that waits for memory."""
    return Term(name, COMPUTE, 1, moved, "B", device.bandwidth * device.efficiency.memory)


def exchange_term(
    name: str, kind: str, how: str, volume: float, group: Group, cluster: Cluster, shown: float = 1
) -> Term:
    """A collective of `volume` bytes. shown: the share that does not run beside arithmetic."""
    cost = collectives.EXCHANGES[how](volume, group, cluster)
    if cost.seconds == 0 or shown == 0:
        return Term(name, kind, 0, volume, "B", 1.0)
    return Term(name, kind, shown, volume, "B", volume / cost.transfer, cost.latency)


@dataclasses.dataclass(frozen=True, eq=False)
class Workload:
    """A model on a cluster, under a framework, with `sequence` tokens a sample. Compared by identity, so that what
    is worked out for it can be remembered."""

    sizes: Sizes
    sequence: int
    cluster: Cluster
    profile: Profile
    precision: str = "bfloat16"

    @property
    def device(self) -> Accelerator:
        """What each device is."""
        return self.cluster.accelerator

    @property
    def element(self) -> int:
        """Bytes of a value of the forward and backward."""
        return BYTES[self.precision]


@functools.lru_cache(maxsize=4096)
def layer(work: Workload, samples: int, tensor: Group, sequence_parallel: bool, recompute: str, at_once: bool) -> Layer:
    """The terms of a layer for a microbatch of `samples`.

    at_once: backwards stand in the ticks of their forwards, which spares lock-step's `full` one forward.
    """
    sizes, profile, device = work.sizes, work.profile, work.device
    tokens, T = samples * work.sequence, tensor.size
    shapes = [
        (tokens, o / T, i) if name in ("qkv", "up") else (tokens, o, i / T) for name, (i, o) in linears(sizes).items()
    ]
    products = product_term("linears", shapes, device, work.element)
    flops = samples * attention_flops(sizes, work.sequence) / T
    rate = device.flops["bfloat16"] * device.efficiency.attention
    attention = Term("attention", COMPUTE, 1, flops, "FLOP", rate)
    between = T if sequence_parallel else 1
    traffic, heads = profile.traffic, (sizes.heads + sizes.kv_heads) * sizes.head_dim
    moved = traffic.width * sizes.width / between + (traffic.hidden * sizes.mlp_width + traffic.heads * heads) / T
    elementwise = memory_term("norms, activations", tokens * moved, device)
    # Two gathers and two scatters, or two all-reduces: the same bytes.
    volume = float(tokens * sizes.width * work.element)
    exchange = exchange_term("partial sums", TENSOR, "reduce-scatter", volume, tensor, work.cluster)
    exchange = exchange.times(4 * (1 - profile.hidden_tensor))
    again = profile.again[recompute]
    spared = 1 if at_once and recompute == "full" and again.linears > 1 else 0
    repeat = lambda term, factor: term.times(factor - min(spared, factor))._replace(name=f"{term.name}, again")
    return Layer(
        forward=(products, attention, elementwise, exchange),
        inputs=(
            repeat(products, again.linears),
            repeat(attention, again.attention),
            repeat(elementwise, again.elementwise),
            repeat(exchange, again.exchanges),
            products,
            attention.times(FLASH_BACKWARD),
            elementwise.times(2),
            exchange,
        ),
        weights=(products,),
    )


@functools.lru_cache(maxsize=4096)
def head(work: Workload, samples: int, tensor: Group, ways: int) -> tuple[Term, ...]:
    """Logits, cross-entropy and their gradients of one microbatch, the vocabulary cut `ways`: forward and backward."""
    tokens, rows = samples * work.sequence, work.sizes.vocab / ways
    shape = (tokens, rows, work.sizes.width)
    volume = float(tokens * work.sizes.width * work.element)
    return (
        product_term("logits and their gradients", [shape] * 3, work.device, work.element),
        memory_term("cross-entropy", SOFTMAX_PASSES * tokens * rows * FLOAT32, work.device),
        exchange_term("head", TENSOR, "all-gather", volume, tensor, work.cluster).times(3),
    )


SOFTMAX_PASSES = 5
"""Over logits in float32: written, read for the maximum, for the sum, for the gradient, gradient written."""


@functools.lru_cache(maxsize=4096)
def update(work: Workload, held: float) -> Term:
    """Clip and optimizer on the `held` parameters of a device."""
    return memory_term("update", held * work.profile.optimizer_bytes, work.device)
