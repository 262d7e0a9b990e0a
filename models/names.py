"""The tensors of published models: where each of our parameters is in a file of Hugging Face's. No JAX.

One declaration for both directions: import reads it from left to right, export from right to left.
"""

import dataclasses

from meshkit.errors import MeshkitError
from meshkit.models.presets import Sizes


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of theirs, {layer} and {expert} left open, that holds one of our matrices.

    transposed: theirs is [out, in], as PyTorch's linears are. part, of `parts`: which of the equal parts along its
    last dim is ours.
    """

    name: str
    transposed: bool = False
    part: int = 0
    parts: int = 1


def _linear(name: str) -> Tensor:
    return Tensor(f"model.layers.{{layer}}.{name}.weight", transposed=True)


def _vector(name: str) -> Tensor:
    return Tensor(f"model.layers.{{layer}}.{name}")


_DECODER = {
    "embed.table": Tensor("model.embed_tokens.weight"),
    "norm.scale": Tensor("model.norm.weight"),
    "head.table": Tensor("lm_head.weight"),
    "blocks.attention_norm.scale": _vector("input_layernorm.weight"),
    "blocks.attention.query.kernel": _linear("self_attn.q_proj"),
    "blocks.attention.key.kernel": _linear("self_attn.k_proj"),
    "blocks.attention.value.kernel": _linear("self_attn.v_proj"),
    "blocks.attention.out.kernel": _linear("self_attn.o_proj"),
    "blocks.attention.query.bias": _vector("self_attn.q_proj.bias"),
    "blocks.attention.key.bias": _vector("self_attn.k_proj.bias"),
    "blocks.attention.value.bias": _vector("self_attn.v_proj.bias"),
    "blocks.attention.query_norm.scale": _vector("self_attn.q_norm.weight"),
    "blocks.attention.key_norm.scale": _vector("self_attn.k_norm.weight"),
    "blocks.mlp_norm.scale": _vector("post_attention_layernorm.weight"),
    "blocks.mlp.gate.kernel": _linear("mlp.gate_proj"),
    "blocks.mlp.up.kernel": _linear("mlp.up_proj"),
    "blocks.mlp.down.kernel": _linear("mlp.down_proj"),
}
_GEMMA = _DECODER | {
    "blocks.attention_post_norm.scale": _vector("post_attention_layernorm.weight"),
    "blocks.mlp_norm.scale": _vector("pre_feedforward_layernorm.weight"),
    "blocks.mlp_post_norm.scale": _vector("post_feedforward_layernorm.weight"),
}
_MIXTRAL = _DECODER | {
    "blocks.mlp.router": _linear("block_sparse_moe.gate"),
    "blocks.mlp.gate": _linear("block_sparse_moe.experts.{expert}.w1"),
    "blocks.mlp.up": _linear("block_sparse_moe.experts.{expert}.w3"),
    "blocks.mlp.down": _linear("block_sparse_moe.experts.{expert}.w2"),
}
_QWEN3_MOE = _DECODER | {
    "blocks.mlp.router": _linear("mlp.gate"),
    "blocks.mlp.gate": _linear("mlp.experts.{expert}.gate_proj"),
    "blocks.mlp.up": _linear("mlp.experts.{expert}.up_proj"),
    "blocks.mlp.down": _linear("mlp.experts.{expert}.down_proj"),
}
# GPT-2's linears are [in, out], and query, key and value one tensor.
_GPT2 = {
    "embed.table": Tensor("transformer.wte.weight"),
    "positions": Tensor("transformer.wpe.weight"),
    "norm.scale": Tensor("transformer.ln_f.weight"),
    "norm.bias": Tensor("transformer.ln_f.bias"),
    "head.table": Tensor("lm_head.weight"),
}
for _ours, _theirs in {"attention_norm": "ln_1", "mlp_norm": "ln_2"}.items():
    for _leaf, _name in {"scale": "weight", "bias": "bias"}.items():
        _GPT2[f"blocks.{_ours}.{_leaf}"] = Tensor(f"transformer.h.{{layer}}.{_theirs}.{_name}")
for _ours, _theirs in {"attention.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}.items():
    for _leaf, _name in {"kernel": "weight", "bias": "bias"}.items():
        _GPT2[f"blocks.{_ours}.{_leaf}"] = Tensor(f"transformer.h.{{layer}}.{_theirs}.{_name}")
for _part, _ours in enumerate(("query", "key", "value")):
    for _leaf, _name in {"kernel": "weight", "bias": "bias"}.items():
        _joint = f"transformer.h.{{layer}}.attn.c_attn.{_name}"
        _GPT2[f"blocks.attention.{_ours}.{_leaf}"] = Tensor(_joint, part=_part, parts=3)

TENSORS: dict[str, dict[str, Tensor]] = {
    "llama": _DECODER,
    "mistral": _DECODER,
    "qwen2": _DECODER,
    "qwen3": _DECODER,
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "mixtral": _MIXTRAL,
    "qwen3-moe": _QWEN3_MOE,
    "gpt2": _GPT2,
}
"""Family -> our parameter -> their tensor."""

PREFIXES = ("", "transformer.", "model.")
"""What some files leave out at the beginning of every name."""

BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
"""Ends of names of tensors that hold nothing learned."""


def tensors(sizes: Sizes) -> dict[str, Tensor]:
    """Our parameter -> their tensor. Raises MeshkitError for a family that is not published."""
    if sizes.family not in TENSORS:
        raise MeshkitError(f"model.family = {sizes.family!r}: weights are known of {', '.join(TENSORS)} alone")
    return TENSORS[sizes.family]
