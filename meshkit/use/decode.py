"""`meshkit generate`: a model goes on from a prompt, a token at a time, remembering keys and values of those before.

On one device: a look at what was learned; serving is other software's work.

Shapes: B samples (one here), S tokens read at once, T tokens there is room for, V vocabulary.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from meshkit import assemble
from meshkit.config import load as load_config
from meshkit.errors import MeshkitError
from meshkit.hf.load import load
from meshkit.mesh import build
from meshkit.models.config_json import sizes_in
from meshkit.models.presets import Sizes
from meshkit.pipeline.context import Context, Memory
from meshkit.pipeline.stage import Params, Stages
from meshkit.use.evaluate import own_tokenizer, weights_of


def generate(
    model: str,
    prompt: str,
    tokens: int,
    *,
    tokenizer: str | None = None,
    temperature: float = 0.8,
    seed: int = 0,
    precision: str = "float32",
) -> str:
    """At most `tokens` tokens that `model` (a published folder, a checkpoint, a run) writes after `prompt`, as text.

    temperature 0: always the likeliest. Raises MeshkitError when prompt and tokens exceed the model's context, for
    numbers that cannot be, or a prompt that is no Unicode text.
    """
    if tokens < 1:
        raise MeshkitError(f"--tokens {tokens}: must be 1 or more")
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise MeshkitError(f"--temperature {temperature}: must be a finite number from 0 on")
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise MeshkitError(f"the prompt's character {error.start + 1} is not UTF-8") from None
    folder = weights_of(model)
    encoder, sizes = own_tokenizer(folder, tokenizer), sizes_in(folder)
    ids = encoder.encode(prompt).astype(np.int32)
    if not len(ids) or len(ids) + tokens > sizes.context:
        raise MeshkitError(
            f"the prompt has {len(ids)} tokens, and --tokens {tokens} more are asked for: the model's context has "
            f"room for 1 to {sizes.context} in all"
        )
    one = {"mesh": {"data": 1}, "model": {"init_from": folder}, "data": {"sequence": 1, "batch": 1}}
    config = load_config(one, {"precision": precision})
    step = assemble.train_step(config, build(config.mesh, jax.devices()[:1]), encoder.vocab)
    params = jax.tree.map(lambda p: p.astype(step.dtype), load(folder, step))
    written = []
    for token in decode(step.stages, params, sizes, ids, tokens, temperature, seed):
        if token == encoder.end:
            break
        written.append(token)
    return encoder.decode(written)


def decode(
    stages: Stages, params: Params, sizes: Sizes, prompt_S: np.ndarray, tokens: int, temperature: float, seed: int
) -> Iterator[int]:
    """The tokens that follow `prompt_S`, one by one. The prompt is read at once, then each token by itself."""
    room = len(prompt_S) + tokens
    dtype = params["embed"]["table"].dtype
    empty = lambda: jnp.zeros((sizes.layers, 1, room, sizes.kv_heads, sizes.head_dim), dtype)
    memory, following = Memory(empty(), empty()), prompt_S
    read = jax.jit(functools.partial(_read, stages), donate_argnums=1)
    key = jax.random.key(seed)
    for count in range(tokens):
        first = 0 if count == 0 else len(prompt_S) + count - 1
        logits_V, memory = read(params, memory, jnp.asarray(following[None]), jnp.int32(first))
        if temperature == 0:
            token = int(jnp.argmax(logits_V))
        else:
            token = int(jax.random.categorical(jax.random.fold_in(key, count), logits_V / temperature))
        yield token
        following = np.array([token], np.int32)


def _read(
    stages: Stages, params: Params, memory: Memory, tokens_BS: jax.Array, first: jax.Array
) -> tuple[jax.Array, Memory]:
    """Logits after the last of some tokens, [V], and the memory of all layers, leaves [L, …], with them in it."""
    model: Any = stages.model(params)
    context = Context(-1, jnp.zeros(1, jnp.int32), None, first=first)

    def layer(x_BSH: jax.Array, of: tuple[jax.Array, Params, Memory]) -> tuple[jax.Array, Memory]:
        number, layer_params, remembered = of
        block: Any = nnx.merge(stages.block_graph, layer_params)
        return block(x_BSH, dataclasses.replace(context, layer=number), remembered)

    x_BSH = model.enter(model.embed.lookup(tokens_BS), context)
    layers = jnp.arange(stages.placement.layers), params["blocks"], memory
    x_BSH, memory = jax.lax.scan(layer, x_BSH, layers)
    h_BSH = model.leave(x_BSH[:, -1:])
    return (model.head or model.embed).logits(h_BSH)[0, 0], memory
