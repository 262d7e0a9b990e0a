"""How families are published: what each field of Hugging Face's config.json is here. No JAX.

`config_json.py` reads these tables in one direction and writes in the other; `rope_json.py`, the rotary settings.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import pydantic
from pydantic import Field, PositiveInt

from meshkit.errors import MeshkitError

Config = dict[str, Any]
"""The content of a config.json."""


@dataclasses.dataclass(frozen=True)
class Published:
    """A family as it is published.

    kind, architecture: `model_type` and `architectures` of config.json. sizes, options: our name -> their field.
    fixed: fields that can have one value alone. absent: what it means that a field is not there,
    the default of `transformers`' class.
    ignored: fields that change nothing here. unheeded: options that `transformers`' class takes from elsewhere, and has
    `absent` for whatever this field says.
    """

    kind: str
    architecture: str
    sizes: Mapping[str, str]
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    absent: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    unheeded: frozenset[str] = frozenset()

    @property
    def known(self) -> set[str]:
        """Every field that is read."""
        return {*self.sizes.values(), *self.options.values(), *self.fixed, *self.ignored} | READ_BEFORE | IGNORED


IGNORED = {"architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "_name_or_path", "use_cache"}
IGNORED |= {"initializer_range", "attention_dropout", "pretraining_tp", "id2label", "label2id", "rope_interleaved"}
IGNORED |= {"return_dict", "problem_type", "chunk_size_feed_forward", "output_router_logits", "cache_implementation"}
READ_BEFORE = {"rope_scaling", "rope_parameters", "layer_types", "max_window_layers", "_sliding_window_pattern"}
TOKENS = "_token_id"  # fields that end so are for those who generate


class Kind(NamedTuple):
    """What a field may be: its type, checked strictly, and the same in words."""

    type: Any
    rule: str


_POSITIVE = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_COUNT = Kind(PositiveInt, "a positive number")
_COUNT_OR_NULL = Kind(PositiveInt | None, "a positive number, or null")
_REAL = Kind(_POSITIVE, "a positive, finite number")
_REAL_OR_NULL = Kind(_POSITIVE | None, "a positive, finite number, or null")
_SWITCH = Kind(bool, "true or false")
_KINDS = {
    **dict.fromkeys(("num_key_value_heads", "head_dim", "n_inner", "sliding_window"), _COUNT_OR_NULL),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon", "rope_theta", "rope_local_base_freq"), _REAL),
    **dict.fromkeys(("query_pre_attn_scalar", "factor", "low_freq_factor", "high_freq_factor"), _REAL),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), _REAL_OR_NULL),
    **dict.fromkeys(("tie_word_embeddings", "norm_topk_prob"), _SWITCH),
    "router_aux_loss_coef": Kind(Annotated[float, Field(ge=0, allow_inf_nan=False)], "a finite number from 0 on"),
    "resid_pdrop": Kind(Annotated[float, Field(ge=0, lt=1)], "a number from 0 to less than 1"),
}


def _kind_of(field: str) -> Kind:
    """What a field that is read may be: most count something."""
    return _KINDS.get(field, _COUNT)


def check(name: str, value: Any, where: str, inside: str = "") -> None:
    """MeshkitError unless the value of a field, `inside` another perhaps, is of its kind."""
    kind = _kind_of(name)
    try:
        pydantic.TypeAdapter(kind.type).validate_python(value, strict=True)
    except pydantic.ValidationError:
        raise MeshkitError(f"{where}: {inside}{name} = {value!r}: must be {kind.rule}") from None


_DECODER = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "mlp_width": "intermediate_size",
    "vocab": "vocab_size",
    "context": "max_position_embeddings",
    "tied": "tie_word_embeddings",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
}
_GPT2 = {
    "layers": "n_layer",
    "width": "n_embd",
    "heads": "n_head",
    "mlp_width": "n_inner",
    "vocab": "vocab_size",
    "context": "n_positions",
    "tied": "tie_word_embeddings",
    "norm_eps": "layer_norm_epsilon",
    "dropout": "resid_pdrop",
}
_WINDOW = {"window": "sliding_window"}
_EXPERTS = {"experts": "num_local_experts", "chosen": "num_experts_per_tok", "balance": "router_aux_loss_coef"}
_GEMMA = {
    "window": "sliding_window",
    "global_every": "sliding_window_pattern",
    "attention_cap": "attn_logit_softcapping",
    "logit_cap": "final_logit_softcapping",
    "query_scale": "query_pre_attn_scalar",
}

_SILU = {"hidden_act": "silu"}
_GELU = {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "use_bidirectional_attention": False}
_NO_BIAS = {"attention_bias": False}
_EVERYWHERE = {"use_sliding_window": False}
_ABSENT = {"num_key_value_heads": None, "head_dim": None, "tie_word_embeddings": False, "rope_theta": 10_000.0}
_GEMMA_ABSENT = _ABSENT | {"tie_word_embeddings": True, "num_key_value_heads": 4, "head_dim": 256}

PUBLISHED: dict[str, Published] = {
    "llama": Published(
        "llama", "LlamaForCausalLM", _DECODER, fixed=_SILU | _NO_BIAS | {"mlp_bias": False}, absent=_ABSENT
    ),
    "mistral": Published(
        "mistral",
        "MistralForCausalLM",
        _DECODER,
        _WINDOW,
        _SILU,
        _ABSENT | {"num_key_value_heads": 8, "sliding_window": 4096},
    ),
    "qwen2": Published(
        "qwen2",
        "Qwen2ForCausalLM",
        _DECODER,
        {},
        _SILU | _EVERYWHERE,
        _ABSENT | {"num_key_value_heads": 32},
        frozenset({"sliding_window"}),
    ),
    "qwen3": Published(
        "qwen3",
        "Qwen3ForCausalLM",
        _DECODER,
        fixed=_SILU | _NO_BIAS | _EVERYWHERE,
        absent=_ABSENT | {"num_key_value_heads": 32, "head_dim": 128},
        ignored=frozenset({"sliding_window"}),
    ),
    "gemma2": Published(
        "gemma2",
        "Gemma2ForCausalLM",
        _DECODER,
        _GEMMA,
        _GELU,
        _GEMMA_ABSENT | {"sliding_window_pattern": 2, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        frozenset({"hidden_act"}),
        unheeded=frozenset({"sliding_window_pattern"}),
    ),
    "gemma3": Published(
        "gemma3_text",
        "Gemma3ForCausalLM",
        _DECODER,
        {ours: theirs for ours, theirs in _GEMMA.items() if ours != "attention_cap"}
        | {"local_theta": "rope_local_base_freq"},
        _GELU | {"attn_logit_softcapping": None},
        _GEMMA_ABSENT
        | {"sliding_window_pattern": 6, "final_logit_softcapping": None}
        | {"rope_theta": 1e6, "rope_local_base_freq": 10_000.0},
        frozenset({"hidden_act"}),
    ),
    "mixtral": Published(
        "mixtral",
        "MixtralForCausalLM",
        _DECODER,
        _EXPERTS | _WINDOW,
        _SILU | {"router_jitter_noise": 0.0},
        _ABSENT | {"num_key_value_heads": 8, "sliding_window": None, "rope_theta": 1e6},
    ),
    "qwen3-moe": Published(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        _DECODER | {"mlp_width": "moe_intermediate_size"},
        _EXPERTS | {"weigh": "norm_topk_prob"},
        _SILU | _NO_BIAS | _EVERYWHERE | {"decoder_sparse_step": 1, "mlp_only_layers": []},
        _ABSENT | {"num_key_value_heads": 4, "norm_topk_prob": False},
        frozenset({"sliding_window", "intermediate_size"}),
    ),
    "gpt2": Published(
        "gpt2",
        "GPT2LMHeadModel",
        _GPT2,
        fixed={
            "activation_function": "gelu_new",
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "reorder_and_upcast_attn": False,
            "add_cross_attention": False,
        },
        absent={"tie_word_embeddings": True, "n_inner": None, "resid_pdrop": 0.1},
        # Attention has no dropout here, as flash kernels have none; the embedding's is resid_pdrop. Summaries are of
        # other heads.
        ignored=frozenset({"attn_pdrop", "embd_pdrop", "n_ctx", "task_specific_params"})
        | {f"summary_{name}" for name in ("activation", "first_dropout", "proj_to_labels", "type", "use_proj")},
    ),
}
"""Family -> how it is published."""
