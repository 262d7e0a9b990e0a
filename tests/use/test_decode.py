"""`meshkit generate`: what is remembered gives what reading everything again would."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshkit.cli import main
from meshkit.config import ModelConfig
from meshkit.models.build import builder
from meshkit.models.presets import sizes
from meshkit.pipeline.context import Context
from meshkit.pipeline.stage import functional, initial
from meshkit.use.decode import decode
from tests.hf.test_transfer import write_folder

SMALL: dict[str, Any] = dict(layers=2, width=32, heads=4, kv_heads=4, head_dim=8, mlp_width=16, vocab=57, context=24)
CASES: dict[str, dict[str, Any]] = {
    "gpt2": dict(preset="tiny-gpt2"),
    "gemma3": dict(family="gemma3", options=dict(window=4, global_every=2, logit_cap=2.0)),
    "mixtral": dict(family="mixtral", options=dict(experts=4)),
}
PROMPT = np.array([3, 1, 4, 1, 5], np.int32)


@pytest.mark.parametrize("case", CASES)
def test_the_likeliest_tokens_are_those_of_the_model_called_whole(case: str) -> None:
    chosen = sizes(ModelConfig(**SMALL, **CASES[case]))
    build = builder(chosen, 1)
    stages = functional(build)
    # Larger than drawn, so that no two tokens are nearly alike.
    params = jax.tree.map(lambda p: p * 5, jax.jit(lambda: initial(build, 0))())
    whole = jax.jit(lambda tokens: stages.model(params)(tokens, Context(-1, jnp.arange(1), None)))
    written = list(decode(stages, params, chosen, PROMPT, 19, 0.0, 0))
    tokens = np.concatenate([PROMPT, written])
    logits = np.asarray(whole(jnp.asarray(tokens[None, :-1], jnp.int32)))[0, len(PROMPT) - 1 :]
    assert written == logits.argmax(-1).tolist()
    assert len(set(written)) > 3


def test_a_seed_repeats_and_another_differs() -> None:
    chosen = sizes(ModelConfig(**SMALL | {"layers": 1}))
    build = builder(chosen, 1)
    stages, params = functional(build), jax.jit(lambda: initial(build, 0))()
    texts = [list(decode(stages, params, chosen, PROMPT, 9, 1.0, seed)) for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]


def test_the_command_goes_on_from_a_prompt(tmp_path: Path, capsys: Any) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    write_folder(tmp_path / "model")
    words = {f"w{k}": k for k in range(53)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_tokens(["</s>"])
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    wrong = {"--tokens": ("-1", "0"), "--temperature": ("-1", "nan", "inf")}
    for option, value in [(option, value) for option, values in wrong.items() for value in values]:
        assert main(["generate", str(tmp_path / "model"), "w1", f"{option}={value}"]) == 1
        assert f"{option} {value}" in capsys.readouterr().err.replace(".0", "")
    assert main(["generate", str(tmp_path / "model"), "w1 \udcff"]) == 1
    assert "the prompt's character 4 is not UTF-8" in capsys.readouterr().err
    assert main(["generate", str(tmp_path / "model"), "w1 w2", "--tokens", "40"]) == 1
    assert "the prompt has 2 tokens, and --tokens 40 more are asked for" in capsys.readouterr().err
    assert main(["generate", str(tmp_path / "model"), "w1 w2", "--tokens", "4"]) == 1
    assert "model.vocab = 53" in capsys.readouterr().err
    words = {"</s>": 0} | {f"w{k}": k for k in range(1, 53)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    assert main(["generate", str(tmp_path / "model"), "w1 w2", "--tokens", "4", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("w1 w2")
