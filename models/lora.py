"""Low-rank adapters beside frozen linears (LoRA, arXiv 2106.09685): x·W becomes x·W + (alpha / rank) · x·A·B.

A is drawn and B zero, so that a model begins as its base. Where W's columns are cut over `tensor`, B's are; where its
rows are, A's are, and what is added over the peers before B has `rank` features.

Shapes: B samples, S positions, H width, F features out.
"""

import zlib
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from meshkit.errors import MeshkitError, nearest
from meshkit.mesh import PIPE, TENSOR
from meshkit.models.families import Adapters
from meshkit.models.layers import ColumnLinear, RowLinear
from meshkit.pipeline.stage import PRODUCT

CUTS = {
    ColumnLinear: (P(PIPE, None, None), P(PIPE, None, TENSOR)),
    RowLinear: (P(PIPE, TENSOR, None), P(PIPE, None, None)),
}
"""Linear -> the cuts of its A and B, stacked over layers."""


class LoRA(nnx.Module):
    """x [B, S, H] -> (alpha / rank) · x·A·B [B, S, F]. Made for all layers at once, used by each with its own."""

    def __init__(self, linear: Any, adapters: Adapters, key: jax.Array):
        layers, width, features = linear.kernel.get_value().shape
        cut_a, cut_b = CUTS[type(linear)]
        bound = width**-0.5  # that of PyTorch's linears, as `peft` draws A
        drawn = lambda key: jax.random.uniform(key, (width, adapters.rank), minval=-bound, maxval=bound)
        self.scale = adapters.alpha / adapters.rank
        self.a = nnx.LoRAParam(jax.vmap(drawn)(jax.random.split(key, layers)), out_sharding=cut_a)
        self.b = nnx.LoRAParam(jnp.zeros((layers, adapters.rank, features)), out_sharding=cut_b)

    def __call__(self, x: jax.Array) -> jax.Array:
        return checkpoint_name(x @ self.a.get_value(), PRODUCT) * self.scale @ self.b.get_value()


def attach(model: Any, adapters: Adapters, key: jax.Array) -> None:
    """Give the linears that `adapters` names an adapter, in every layer of `model`.

    Raises MeshkitError for a name of no linear.
    """
    modules = ((".".join(map(str, path)), module) for path, module in nnx.iter_modules(model.blocks))
    linears = {name: module for name, module in modules if type(module) in CUTS}
    for wanted in adapters.linears:
        named = {name: linear for name, linear in linears.items() if f".{name}".endswith(f".{wanted}")}
        if not named:
            raise MeshkitError(
                f"model.options.lora.linears = {list(adapters.linears)!r}: {type(model).__name__} has no linear "
                f"{wanted!r}; {nearest(wanted, sorted(linears))}"
            )
        for name, linear in named.items():
            # By name, so that which others have adapters changes nothing of what is drawn here.
            linear.lora = LoRA(linear, adapters, jax.random.fold_in(key, zlib.crc32(name.encode())))
