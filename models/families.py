"""The families of decoders, and how each differs from Llama. No JAX: planning needs it too."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Self

from meshkit.errors import MeshkitError

FAMILIES = {
    "gpt2": "meshkit.models.gpt2:GPT2",
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "mixtral", "qwen3-moe"),
        "meshkit.models.decoder:Decoder",
    ),
}
"""Name of a family -> the class of its model."""


@dataclasses.dataclass(frozen=True)
class Style:
    """What a decoder does; the defaults are Llama's. A config sets any field of it in `model.options`.

    qkv_bias: biases at query, key and value. qk_norm: each head's query and key go through an RMSNorm.
    window: tokens that a local layer sees, its own included; None: all. global_every: every so many-th layer sees
    all; 0: none. local_theta: base of the rotary frequencies of local layers; None: as everywhere, scaling included.
    attention_cap, logit_cap: scores x become cap · tanh(x / cap). query_scale: scores are divided by its root; None:
    by that of head_dim. activation: at the MLP's gate. post_norms: what attention and MLP add is normed too.
    unit_offset: norms multiply by 1 + scale. embedding_scale: embeddings are multiplied by √width.
    experts: MLPs of which each token goes through `chosen`; 0: one MLP for all. weigh: "chosen" makes the weights of
    the chosen sum to 1. balance: weight of the loss that keeps experts equally busy.
    """

    qkv_bias: bool = False
    qk_norm: bool = False
    window: int | None = None
    global_every: int = 0
    local_theta: float | None = None
    attention_cap: float | None = None
    logit_cap: float | None = None
    query_scale: float | None = None
    activation: Literal["silu", "gelu"] = "silu"
    post_norms: bool = False
    unit_offset: bool = False
    embedding_scale: bool = False
    experts: int = 0
    chosen: int = 2
    weigh: Literal["chosen", "all"] = "chosen"
    balance: float = 0.0

    def __post_init__(self) -> None:
        if self.experts and not 1 <= self.chosen <= self.experts:
            raise MeshkitError(
                f"model.options.chosen = {self.chosen} of model.options.experts = {self.experts}: choose 1 to all"
            )

    @classmethod
    def of(cls, family: str, options: Mapping[str, Any]) -> Self:
        """The style of a family, with a config's `options` on top.

        Raises MeshkitError for an option that there is not, or of another type.
        """
        return dataclasses.replace(cls(**STYLES[family]), **checked(family, options))


LORA = "lora"
"""The option that any model may have, whatever its family: adapters."""


@dataclasses.dataclass(frozen=True)
class Adapters:
    """`model.options.lora`: low-rank adapters are trained, and nothing else (see lora.py).

    rank: inner features of an adapter. linears: names of linears, or ends of them: "query", "mlp.down". alpha: an
    adapter's output counts alpha / rank times.
    """

    rank: int
    linears: tuple[str, ...]
    alpha: float

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self | None:
        """What the options say of adapters. Raises MeshkitError for what they cannot be."""
        import pydantic

        given = options.get(LORA)
        if given is None:
            return None
        form: Any = pydantic.create_model(
            "lora",
            __config__=pydantic.ConfigDict(extra="forbid"),
            rank=(pydantic.PositiveInt, ...),
            linears=(list[str], pydantic.Field(min_length=1)),
            alpha=(pydantic.PositiveFloat, None),
        )
        try:
            found: Any = form.model_validate(given)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(("model.options.lora", *map(str, first["loc"])))
            raise MeshkitError(
                f'{where}: {first["msg"]}: write lora = {{rank = 16, alpha = 32, linears = ["query", "value"]}}'
            ) from None
        return cls(found.rank, tuple(found.linears), float(found.alpha or found.rank))


_GEMMA = dict(post_norms=True, unit_offset=True, embedding_scale=True, activation="gelu")

STYLES: dict[str, dict[str, Any]] = {
    "llama": {},  # arXiv 2302.13971, 2307.09288, 2407.21783
    "mistral": dict(window=4096),  # arXiv 2310.06825
    "qwen2": dict(qkv_bias=True),  # arXiv 2407.10671
    "qwen3": dict(qk_norm=True),  # arXiv 2505.09388
    # arXiv 2408.00118
    "gemma2": dict(**_GEMMA, window=4096, global_every=2, attention_cap=50.0, logit_cap=30.0),
    # arXiv 2503.19786
    "gemma3": dict(**_GEMMA, window=512, global_every=6, local_theta=10_000.0, qk_norm=True),
    "mixtral": dict(experts=8, chosen=2, balance=0.02),  # arXiv 2401.04088
    "qwen3-moe": dict(qk_norm=True, experts=128, chosen=8, balance=0.001),  # arXiv 2505.09388
}
"""Family -> what differs from `Style`'s defaults."""


def checked(family: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one of FAMILIES, besides LORA; MeshkitError for a name or a value that it has not: only decoders
    have any, those of `Style`."""
    import pydantic

    fields: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(Style) if family in STYLES}
    for name, value in options.items():
        if name not in fields:
            known = ", ".join([*fields, LORA])
            raise MeshkitError(f"model.options.{name} = {value!r}: no such option of {family}; known: {known}")
        try:
            pydantic.TypeAdapter(fields[name]).validate_python(value)
        except pydantic.ValidationError as error:
            raise MeshkitError(f"model.options.{name} = {value!r}: {error.errors()[0]['msg']}") from None
    return dict(options)
