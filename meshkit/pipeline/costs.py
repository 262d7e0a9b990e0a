"""What a memory policy costs in time and keeps in memory, by formula: for planning, without JAX.

Shapes: B microbatch size, S sequence, H width, A = heads × head_dim, K = kv_heads × head_dim,
F mlp_width, G matrices that widen the MLP: 2 in Llama (gate and up), 1 in GPT-2.
"""

from meshkit.models.families import STYLES
from meshkit.models.presets import Sizes
from meshkit.pipeline.schedule import FORWARD, Schedule

COSTS = {
    "full": {"F": 1.0, "B": 4.0, "I": 3.0, "W": 1.0},
    "selective": {"F": 1.0, "B": 2.2, "I": 1.2, "W": 1.0},
    "none": {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0},
}
"""Time of each kind of action in forwards: a backward costs two, one for the input's gradient and one for
the weights'; full goes forward again twice, once through the stage and once through each layer; selective goes
through norms, activations and attention again: 0.2 is what the planner's arithmetic has for Llama-3-8B on an H100
at 4096 tokens. On CPU the three measure nearer to each other (README)."""

BYTES = {"bfloat16": 2, "float32": 4, "float64": 8}
"""Of an element, by `precision`."""

FLOAT32 = 4

WIDENING = {"llama": 2, "mistral": 2, "qwen2": 2, "qwen3": 2, "gpt2": 1}
"""G of each family whose work is counted."""

COUNTED = {"qkv_bias", "qk_norm", "window", "activation"}
"""Of what a decoder may have besides (`meshkit.models.families.Style`), what the formulas here know."""


def uncounted(sizes: Sizes) -> str | None:
    """What of a model there are no formulas for, "model.family = gemma2"; None: all is counted."""
    if sizes.family not in WIDENING:
        return f"model.family = {sizes.family}"
    if sizes.adapters is not None:
        return "model.options.lora"
    if sizes.family in STYLES:
        plain = Sizes(**vars(sizes) | {"family": "llama", "options": {}}).style
        for name, value in vars(sizes.style).items():
            if name not in COUNTED and value != getattr(plain, name):
                return f"model.options.{name} = {value}"
    return None


def normed_heads(sizes: Sizes) -> int:
    """Features of query and key that go through a norm of each head."""
    qk_norm = sizes.family in STYLES and sizes.style.qk_norm
    return (sizes.heads + sizes.kv_heads) * sizes.head_dim if qk_norm else 0


def action_costs(schedule: Schedule, recompute: str) -> dict[str, float]:
    """COSTS of a policy under a schedule: where a backward stands in its forward's tick, a stage's layer
    inputs are kept instead of made again, which spares one of full's forwards."""
    costs = dict(COSTS[recompute])
    if recompute == "full" and schedule.backward_at_once:
        costs[schedule.backward] -= costs[FORWARD]
    return costs


def slot_bytes(
    schedule: Schedule,
    sizes: Sizes,
    layers: int,
    recompute: str,
    batch: int,
    sequence: int,
    precision: str = "bfloat16",
) -> dict[str, float]:
    """Bytes of one slot of each file of `slots.SlotTable`, before any cut over tensor; and, under `again`, of the
    layer inputs that a backward makes again from its stage's.

    layers: of the longest chunk, as a slot has a place for each; batch: samples of a microbatch.
    `held` is the least that a split backward can hold (see `held_elements`).
    """
    tokens, element = batch * sequence, BYTES[precision]
    activation = tokens * sizes.width * element
    # `executor._Run._saves_layers`: full keeps the stage's input, one for all its layers.
    by_layer = recompute != "full" or schedule.backward_at_once
    return {
        "inputs": activation,
        "kept": tokens * kept_bytes(sizes, recompute, precision) * (layers if by_layer else 1),
        "gradients": activation,
        "held": tokens * held_elements(sizes) * element * layers,
        "again": 0 if by_layer else activation * layers,
    }


def kept_bytes(sizes: Sizes, recompute: str, precision: str = "bfloat16") -> int:
    """Bytes that a layer keeps of a token from forward to backward, before any cut over tensor.

    full: its input, H. selective: its input and the outputs of its linears, but the last, that nothing
    multiplies: 2H + A + 2K + G·F. none: all that its backward reads: of each norm the input and two
    statistics in float32, 2(H + 2), its output before and after the scale, 4H; where heads are normed, N of query
    and K of key, A + K + 2(N + K) in float32 and A + K; query, key, value and
    attention's output, 2A + 2K; six of the MLP's hidden size (some versions of JAX keep five of GELU's);
    with dropout its two outputs, 2H. Attention is XLA's, whose inside is made again.
    """
    H, A, K, F = sizes.width, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim, sizes.mlp_width
    element = BYTES[precision]
    if recompute == "full":
        return H * element
    if recompute == "selective":
        return (2 * H + A + 2 * K + WIDENING[sizes.family] * F) * element
    dropped = 2 * H if sizes.dropout else 0
    normed = normed_heads(sizes)
    wide = 2 * (H + 2) + normed + 2 * (normed // sizes.head_dim)
    return wide * max(element, FLOAT32) + (4 * H + 2 * A + 2 * K + normed + 6 * F + dropped) * element


def held_elements(sizes: Sizes) -> int:
    """Elements that a layer must hold of a token between I and W: each linear's input and output gradient.

    4H + 2A + 2K + (1 + G)·F. The executor may hold more where it parts an elementwise product.
    """
    H, A, K, F = sizes.width, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim, sizes.mlp_width
    return 4 * H + 2 * A + 2 * K + (1 + WIDENING[sizes.family]) * F
