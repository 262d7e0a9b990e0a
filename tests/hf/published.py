"""Small models of every family, made by `transformers` with random weights, and what they say of a batch."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)

VOCAB, BATCH, SEQUENCE = 53, 8, 16  # no mesh divides 53

SMALL: dict[str, Any] = dict(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    pad_token_id=None,  # its embedding would get no gradient
    bos_token_id=1,
    eos_token_id=2,
)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
LLAMA3 |= dict(rope_theta=500_000.0, original_max_position_embeddings=32)
LINEAR = dict(rope_type="linear", factor=4.0, rope_theta=20_000.0)
GEMMA = dict(SMALL, head_dim=16, query_pre_attn_scalar=24, sliding_window=5)
EXPERTS = dict(num_experts_per_tok=2, router_aux_loss_coef=0.0)

CONFIGS: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(**SMALL, rope_parameters=LLAMA3),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=5, head_dim=16),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, head_dim=16, rope_parameters=LINEAR),
    "gemma2": lambda: transformers.Gemma2Config(**GEMMA, attn_logit_softcapping=0.7, final_logit_softcapping=2.0),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **GEMMA, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    ),
    "mixtral": lambda: transformers.MixtralConfig(**SMALL, **EXPERTS, num_local_experts=4),
    "qwen3-moe": lambda: transformers.Qwen3MoeConfig(
        **SMALL, **EXPERTS, head_dim=16, num_experts=6, moe_intermediate_size=12
    ),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=64,
        n_embd=32,
        n_layer=3,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
        resid_pdrop=0.0,
    ),
}


@functools.cache
def model(family: str) -> Any:
    """A model with random weights, large enough for every part to matter."""
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(CONFIGS[family](), attn_implementation="eager")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.15)
    return made.eval()


@functools.cache
def batch() -> tuple[np.ndarray, np.ndarray]:
    """Tokens and targets, int32 [BATCH, SEQUENCE]; the targets of two samples are never alike."""
    random = np.random.default_rng(0)
    return tuple(random.integers(0, VOCAB, (BATCH, SEQUENCE), np.int32) for _ in range(2))


def logits(of: Any) -> np.ndarray:
    with torch.no_grad():
        return of(torch.tensor(batch()[0]).long()).logits.numpy()


@functools.cache
def gradients(family: str) -> dict[str, np.ndarray]:
    """Their name -> gradient of the mean loss of a target token."""
    tokens, targets = (torch.tensor(a).long() for a in batch())
    of = model(family)
    of.zero_grad()
    torch.nn.functional.cross_entropy(of(tokens).logits.flatten(0, 1), targets.flatten()).backward()
    return {name: parameter.grad.numpy() for name, parameter in of.named_parameters()}


def save(family: str, folder: Path, **how: Any) -> str:
    model(family).save_pretrained(folder / family, **how)
    return str(folder / family)
