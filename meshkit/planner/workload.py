"""The work of one microbatch in one layer, in the head, in the update: FLOPs, bytes, and their time.

Shapes: a product of [M, K] and [K, N]; b samples, S sequence, H width, A = heads × head_dim,
K = kv_heads × head_dim, F mlp_width, G matrices that widen the MLP, V vocabulary, T tensor.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

from meshkit.models.presets import Sizes
from meshkit.pipeline.costs import BYTES
from meshkit.planner import collectives
from meshkit.planner.cluster import Cluster, Group
from meshkit.planner.counts import attention_flops, head_in_layers, layer_parameters, linears
from meshkit.planner.hardware import Accelerator
from meshkit.planner.layout import Layout, balanced
from meshkit.planner.profile import Profile

COMPUTE, TENSOR, PIPE, DATA, BUBBLE = KINDS = ("compute", "tensor", "pipe", "data", "bubble")
"""What a step's time goes to."""

PLAIN_BACKWARD, FLASH_BACKWARD = 2.0, 2.5
"""Of attention's forward: four products for two; of a flash kernel's: five for two (arXiv 2205.14135)."""


class Term(NamedTuple):
    """A part of the step: `repeats` times volume / rate + extra. unit: of the volume, FLOP or B. hidden: the share of
    its time that runs beside other work."""

    name: str
    kind: str
    repeats: float
    volume: float
    unit: str
    rate: float
    extra: float = 0.0
    hidden: float = 0.0

    @property
    def seconds(self) -> float:
        """Of all of them."""
        return self.repeats * (self.volume / self.rate + self.extra) * (1 - self.hidden) if self.volume else 0.0

    def times(self, factor: float) -> "Term":
        """As often again."""
        return self._replace(repeats=self.repeats * factor)


@dataclasses.dataclass(frozen=True, eq=False)
class Terms:
    """Some terms that belong together; what they sum up to is remembered."""

    items: tuple[Term, ...]

    @functools.cached_property
    def by_kind(self) -> dict[str, float]:
        """Kind -> seconds."""
        spent: dict[str, float] = {}
        for term in self.items:
            spent[term.kind] = spent.get(term.kind, 0.0) + term.seconds
        return spent

    @functools.cached_property
    def seconds(self) -> float:
        """Of all."""
        return sum(self.by_kind.values())


class Layer(NamedTuple):
    """Terms of a layer and microbatch: forward; input gradient, with what is gone through again; weight gradient."""

    forward: Terms
    inputs: Terms
    weights: Terms


def stage_layers(sizes: Sizes, layout: Layout, profile: Profile) -> list[int]:
    """Layers of each stage of `layout` under a framework."""
    P = layout.mesh.pipe
    if profile.balanced:
        return list(balanced(sizes.layers, P, head_in_layers(sizes)))
    counts = layout.placement(sizes.layers).counts
    return [sum(counts[s::P]) for s in range(P)]


def product_term(name: str, shapes: Sequence[tuple[float, float, float]], work: "Workload", precision: str) -> Term:
    """Products [M, K] × [K, N] for (M, N, K) in `shapes`: arithmetic, and their operands through memory once.

    What is small in any dim has few FLOPs a byte; adding both times is the cost of filling and draining tiles.
    """
    device = work.device
    flops = sum(2 * M * N * K for M, N, K in shapes)
    moved = work.element * sum(M * K + K * N + M * N for M, N, K in shapes)
    reached = device.efficiency.matmul * (device.efficiency.float8 if precision == "float8" else 1)
    rate = device.flops[precision] * reached
    return Term(name, COMPUTE, 1, flops, "FLOP", rate, moved / (device.bandwidth * device.efficiency.memory))


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

    @functools.cached_property
    def layer_weights(self) -> int:
        """Weights of a layer."""
        return layer_parameters(self.sizes)

    @functools.cached_property
    def element(self) -> int:
        """Bytes of a value of the forward and backward; float8 is for operands of products alone."""
        return BYTES.get(self.precision, BYTES["bfloat16"])

    @property
    def wide(self) -> str:
        """The dtype of what is not done in float8: attention and the head."""
        return "bfloat16" if self.precision == "float8" else self.precision


@functools.lru_cache(maxsize=4096)
def layer(
    work: Workload,
    samples: int,
    tensor: Group,
    sequence_parallel: bool,
    recompute: str,
    at_once: bool,
    host: float = 0.0,
) -> Layer:
    """The terms of a layer for a microbatch of `samples`. host: seconds in which the host launches its forward.

    at_once: backwards stand in the ticks of their forwards, which spares lock-step's `full` one forward.
    """
    sizes, profile, device = work.sizes, work.profile, work.device
    tokens, T = samples * work.sequence, tensor.size
    shapes = [
        (tokens, o / T, i) if name in ("qkv", "up") else (tokens, o, i / T) for name, (i, o) in linears(sizes).items()
    ]
    products = product_term("linears", shapes, work, work.precision)
    attention = _attention(work, samples, T)
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
    forward = (products, attention, elementwise, exchange)
    inputs = (
        repeat(products, again.linears),
        repeat(attention, again.attention),
        repeat(elementwise, again.elementwise),
        repeat(exchange, again.exchanges),
        products,
        attention.times(PLAIN_BACKWARD if profile.scores else FLASH_BACKWARD),
        elementwise.times(2),
        exchange.times(profile.backward_exchanges if sequence_parallel else 1),
    )
    waits = (_wait(forward, host), _wait((*inputs, products), 2 * host))
    return Layer(Terms((*forward, waits[0])), Terms((*inputs, waits[1])), Terms((products,)))


def others_layer(work: Workload, layout: Layout, peers: dict[str, Group]) -> Layer:
    """The terms of a layer under a framework with one program a stage, its host's pace included."""
    host = work.profile.host.seconds(peers["tensor"], peers["pipe"])
    return layer(work, layout.microbatch, peers["tensor"], layout.sequence_parallel, layout.recompute, False, host)


def _attention(work: Workload, samples: int, T: int) -> Term:
    """Of a forward: a flash kernel on the pairs that causality leaves, or products of all pairs with their scores
    through memory."""
    sizes, profile, device = work.sizes, work.profile, work.device
    flops, peak = samples * attention_flops(sizes, work.sequence) / T, device.flops[work.wide]
    if not profile.scores:
        return Term("attention", COMPUTE, 1, flops, "FLOP", peak * device.efficiency.attention * profile.flash)
    reached = device.efficiency.matmul / (MISALIGNED if sizes.head_dim % ALIGNED else 1)
    pairs = samples * sizes.heads / T * work.sequence**2
    moved = pairs * profile.scores / (device.bandwidth * device.efficiency.memory)
    return Term("attention", COMPUTE, 1, 2 * flops, "FLOP", peak * reached, moved)


ALIGNED, MISALIGNED = 8, 8
"""Heads whose rows are no multiple of 16 bytes miss the tensor cores: an eighth of their rate is left (BigScience's
runs of 108 features a head took half as long again)."""


WAITING = "waiting for the host"


def _wait(terms: Sequence[Term], host: float) -> Term:
    """What the device waits for the host, which takes `host` seconds to launch these terms' kernels."""
    idle = max(0.0, host - sum(term.seconds for term in terms))
    return Term(WAITING, COMPUTE, 1, idle, "s", 1.0)


@functools.lru_cache(maxsize=4096)
def head(work: Workload, samples: int, tensor: Group, ways: int) -> Terms:
    """Logits, cross-entropy and their gradients of one microbatch, the vocabulary cut `ways`: forward and backward."""
    tokens, rows = samples * work.sequence, work.sizes.vocab / ways
    shape = (tokens, rows, work.sizes.width)
    volume = float(tokens * work.sizes.width * work.element)
    return Terms(
        (
            product_term("logits and their gradients", [shape] * 3, work, work.wide),
            memory_term("cross-entropy", work.profile.logit_traffic * tokens * rows, work.device),
            exchange_term("head", TENSOR, "all-gather", volume, tensor, work.cluster).times(3),
        )
    )


def update(work: Workload, held: float) -> Term:
    """Clip and optimizer on the `held` parameters of a device."""
    return memory_term("update", held * work.profile.optimizer_bytes, work.device)
