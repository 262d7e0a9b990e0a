"""FLOPs and parameters of a model, from its shapes.

Shapes: S sequence, H width, A = heads × head_dim, K = kv_heads × head_dim, F mlp_width, G matrices that widen the MLP,
V vocabulary.
"""

from meshkit.models.presets import Sizes
from meshkit.pipeline.costs import WIDENING


def linears(sizes: Sizes) -> dict[str, tuple[int, int]]:
    """Name -> (features in, out) of a layer's products; the first and the third are cut by columns, the others
    by rows."""
    A, K = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    H, F = sizes.width, sizes.mlp_width
    return {"qkv": (H, A + 2 * K), "out": (A, H), "up": (H, WIDENING[sizes.family] * F), "down": (F, H)}


def layer_parameters(sizes: Sizes) -> int:
    """Weights of a layer's products, norms and biases."""
    H, of = sizes.width, linears(sizes)
    products = sum(i * o for i, o in of.values())
    if sizes.family == "gpt2":
        return products + sum(o for _, o in of.values()) + 4 * H
    biases = of["qkv"][1] if sizes.style.qkv_bias else 0
    return products + 2 * H + biases + (2 * sizes.head_dim if sizes.style.qk_norm else 0)


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
    """Forward, a sample and layer: query × key and weights × value over the S(S+1)/2 pairs that causality leaves,
    or, of a window W, those of them that are less than W apart."""
    pairs = sequence * (sequence + 1) / 2
    if sizes.family != "gpt2" and sizes.style.window is not None:
        hidden = max(0, sequence - sizes.style.window)
        pairs -= hidden * (hidden + 1) / 2
    return 2 * 2 * sizes.heads * sizes.head_dim * pairs


def head_in_layers(sizes: Sizes) -> float:
    """Products of the head, in those of a layer."""
    return table_parameters(sizes) / sum(i * o for i, o in linears(sizes).values())


def forward_flops(sizes: Sizes, sequence: int) -> float:
    """Of a token through the model with its head."""
    layer = 2 * sum(i * o for i, o in linears(sizes).values()) + attention_flops(sizes, sequence) / sequence
    return sizes.layers * layer + 2 * table_parameters(sizes)


def model_flops(sizes: Sizes, sequence: int, tokens: float) -> float:
    """Of a step on `tokens`: three forwards; recomputation does not count (arXiv 2204.02311)."""
    return 3 * forward_flops(sizes, sequence) * tokens
