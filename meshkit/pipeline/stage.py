"""What a model must offer to be pipelined, and its functional view: parameters as a tree, pure functions.

A model is a Flax NNX module with
  `embed`   a `VocabTable` [vocabulary, width];
  `head`    a `VocabTable`, or None when the head is tied to `embed`;
  `blocks`  its layers, stacked by `stack` along a leading dim that is cut over `pipe`;
  `enter`   looked-up embeddings -> input of the first block (positions, embedding dropout);
  `leave`   output of the last block -> input of the head (the final norm);
  `__call__`  tokens [B, S] -> logits [B, S, V], the whole on one device.
`enter` and `leave` use the module's other parameters, which every stage holds. A block is called as
block(x [B, S, H], context: Context) -> x [B, S, H] (context.py). The class is called as
Class(sizes, rngs, vocab_multiple): `sizes` is a `meshkit.models.presets.Sizes`, with the config's free-form
`model.options` in `sizes.options`, and `vocab_multiple` is handed on to VocabTable. All state is `nnx.Param`, each with
the PartitionSpec of its cut over `tensor` as `out_sharding`; one without is held whole by every tensor peer. Where any
is an `nnx.LoRAParam`, those alone are trained. Parameters come in the dtype of the step; x keeps its shape and dtype.
meshkit/models/gpt2.py is an example on a page.

Shapes: B microbatch size, S sequence, H width, L layers; activations enter blocks as x_BSH.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P

from meshkit.errors import MeshkitError
from meshkit.mesh import PIPE, TENSOR
from meshkit.pipeline.collectives import axis_size
from meshkit.pipeline.context import Context
from meshkit.pipeline.placement import EMPTY_LAYER, Placement, place
from meshkit.pipeline.trained import joined, part
from meshkit.pipeline.vocab import VocabTable

PRODUCT = "product"
"""A layer's values with this name (`jax.ad_checkpoint.checkpoint_name`) are what recompute = "selective" keeps."""

Params = dict[str, Any]
"""Nested dict of arrays (or of their specs, shapes …), named as the model's attributes are."""


class Model(Protocol):
    """The attributes listed at the top of this file."""

    embed: VocabTable
    head: VocabTable | None
    blocks: nnx.Module

    def enter(self, x_BSH: jax.Array, context: Context) -> jax.Array:
        """Looked-up embeddings -> input of the first block."""

    def leave(self, x_BSH: jax.Array) -> jax.Array:
        """Output of the last block -> input of the head."""

    def __call__(self, tokens_BS: jax.Array, context: Context) -> jax.Array:
        """Tokens -> logits [B, S, V], the whole model on one device."""


def stack(layers: int, block: Callable[[nnx.Rngs], nnx.Module], rngs: nnx.Rngs) -> nnx.Module:
    """`layers` blocks as one module whose parameters have a leading dim of layers, cut over `pipe`.

    Each layer draws from its own key, so a layer's values depend on its number alone.
    """
    keys = jax.random.split(rngs.params(), layers)
    build = nnx.vmap(lambda key: block(nnx.Rngs(params=key)), transform_metadata={nnx.PARTITION_NAME: PIPE})
    return build(keys)


def apply_stack(blocks: nnx.Module, x_BSH: jax.Array, context: Context) -> jax.Array:
    """All layers of `stack`, one after another, on one device: for a model's `__call__`."""
    graph, state = nnx.split(blocks)
    layers = jax.tree.leaves(state)[0].shape[0]

    def one(x_BSH: jax.Array, inputs: Any) -> tuple[jax.Array, None]:
        layer, state = inputs
        block: Any = nnx.merge(graph, state)
        return block(x_BSH, dataclasses.replace(context, layer=layer)), None

    return jax.lax.scan(one, x_BSH, (jnp.arange(layers), state))[0]


def cut_sequence(x_BSH: jax.Array) -> jax.Array:
    """Between layers the sequence is cut over `tensor` (sequence parallelism, arXiv 2205.05198).

    The all-reduces after row-cut products become reduce-scatter + all-gather, and stored
    activations shrink by the tensor size. Does nothing on one device.
    """
    if axis_size(TENSOR) == 1:
        return x_BSH
    return jax.lax.with_sharding_constraint(x_BSH, P(None, TENSOR, None))


def whole_sequence(x_BSH: jax.Array) -> jax.Array:
    """The opposite of `cut_sequence`: what a model puts before its column-cut products.

    One all-gather serves them all. Left alone, the compiler may gather the weights of each instead,
    and then move attention's inputs from one cut to another.
    """
    if axis_size(TENSOR) == 1:
        return x_BSH
    return jax.lax.with_sharding_constraint(x_BSH, P(None, None, None))


@dataclasses.dataclass(frozen=True)
class Stages:
    """The functional view of a model: what the executor runs. Made by `functional`.

    shapes, specs: trees like the parameters, of ShapeDtypeStruct and of PartitionSpec, as they are
    stored: blocks stacked in the order that `placement` gives, tables padded. trained: likewise, whether it is (see
    `trained.py`). vocab, cap: those of the head.
    """

    graph: Any
    block_graph: Any
    shapes: Params
    specs: Params
    trained: Params
    vocab: int
    cap: float | None
    placement: Placement

    @property
    def tied(self) -> bool:
        """Whether the head is the embedding's table."""
        return "head" not in self.shapes

    def own(self, tree: Params) -> Params:
        """What a tree has of the trained parameters."""
        return part(tree, self.trained, True)

    def frozen(self, tree: Params) -> Params:
        """What a tree has of the frozen parameters."""
        return part(tree, self.trained, False)

    def model(self, params: Params) -> Any:
        """The NNX module with these parameters in it."""
        return nnx.merge(self.graph, params)

    def block(self, layer_params: Params, x_BSH: jax.Array, context: Context) -> jax.Array:
        """One layer: its own parameters (no leading dim), x -> x."""
        return cut_sequence(nnx.merge(self.block_graph, layer_params)(cut_sequence(x_BSH), context))

    def enter(self, outer: Params, params: Params, x_BSH: jax.Array, context: Context) -> jax.Array:
        """`model.enter` as a function of its own parameters `outer` (see `outer`), or of some of them."""
        return cut_sequence(self.model(joined(outer, params)).enter(x_BSH, context))

    def leave(self, outer: Params, params: Params, x_BSH: jax.Array) -> jax.Array:
        """`model.leave` as a function of its own parameters `outer`, or of some of them."""
        return cut_sequence(self.model(joined(outer, params)).leave(x_BSH))


def outer(params: Params) -> Params:
    """The parameters of `enter` and `leave`: all but tables and blocks. Every stage holds them."""
    return {name: value for name, value in params.items() if name not in ("embed", "head", "blocks")}


def functional(build: Callable[[nnx.Rngs], Model], placement: Placement | None = None) -> Stages:
    """The functional view of the model that `build` makes; nothing is computed or allocated.

    placement: which layers sit where; None: all on one stage.
    """
    with nnx.use_eager_sharding(False):
        model = nnx.eval_shape(lambda: build(nnx.Rngs(params=0)))
    _check(model)
    graph, state = nnx.split(model)
    shapes = nnx.to_pure_dict(state)
    specs = nnx.to_pure_dict(nnx.get_partition_spec(state))
    placement = placement or place(jax.tree.leaves(shapes["blocks"])[0].shape[0], 1)
    specs |= {"blocks": _specs_of_layers(specs["blocks"], shapes["blocks"], placement.layers)}
    return Stages(
        graph=graph,
        block_graph=nnx.split(model.blocks)[0],
        shapes=jax.eval_shape(lambda params: stored(params, placement), shapes),
        specs=specs,
        trained=_trained(state),
        vocab=model.embed.vocab,
        cap=(model.head or model.embed).cap,
        placement=placement,
    )


def _check(model: Any) -> None:
    """MeshkitError when a model lacks what this file's first lines ask for."""
    name = f"model.family: {type(model).__name__}"
    lacks = [attribute for attribute in ("embed", "head", "blocks", "enter", "leave") if not hasattr(model, attribute)]
    lacks += [] if callable(model) else ["__call__"]
    if lacks:
        raise MeshkitError(f"{name} has no {', '.join(lacks)}: meshkit/pipeline/stage.py says what a model offers")
    for attribute in ("embed", "head"):
        table = getattr(model, attribute)
        if not isinstance(table, VocabTable) and (attribute == "embed" or table is not None):
            raise MeshkitError(
                f"{name}.{attribute} is a {type(table).__name__}: it must be a meshkit.pipeline.vocab.VocabTable"
                + (", or None for a head tied to embed" if attribute == "head" else "")
            )
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        if not isinstance(variable, nnx.Param):
            raise MeshkitError(
                f"{name}.{'.'.join(map(str, path))} is a {type(variable).__name__}: only nnx.Param can be trained "
                "over a mesh; for dropout use meshkit.pipeline.context.dropout, which needs no state"
            )


def _trained(state: nnx.State) -> Params:
    adapters = jax.tree.map(lambda variable: isinstance(variable, nnx.LoRAParam), state, is_leaf=_is_variable)
    chosen = nnx.to_pure_dict(adapters)
    return chosen if any(jax.tree.leaves(chosen)) else jax.tree.map(lambda _: True, chosen)


def _is_variable(node: Any) -> bool:
    return isinstance(node, nnx.Variable)


def _specs_of_layers(specs: Params, shapes: Params, layers: int) -> Params:
    """The specs of stacked blocks; a parameter that names no cut is cut over `pipe` alone."""

    def checked(path: Any, spec: P, shape: jax.ShapeDtypeStruct) -> P:
        spec = spec or P(PIPE)
        if spec[0] != PIPE or len(spec) > shape.ndim or shape.shape[0] != layers:
            raise MeshkitError(
                f"model.family: blocks.{jax.tree_util.keystr(path, simple=True, separator='.')} has the shape "
                f"{list(shape.shape)} and the cut {spec}: blocks are made by meshkit.pipeline.stage.stack("
                f"sizes.layers, …), which puts a dim of {layers} layers, cut over {PIPE!r}, before all others"
            )
        return spec

    return jax.tree_util.tree_map_with_path(checked, specs, shapes, is_leaf=lambda spec: isinstance(spec, P))


def initial(build: Callable[[nnx.Rngs], Model], seed: jax.Array | int) -> Params:
    """Drawn parameters as a nested dict, a function of the seed alone, layers in the model's order.

    For use under `jax.jit`.
    """
    with nnx.use_eager_sharding(False):
        return nnx.to_pure_dict(nnx.state(build(nnx.Rngs(params=jax.random.key(seed)))))


def stored(params: Params, placement: Placement) -> Params:
    """Parameters with layers in the model's order -> as the stages hold them, empty layers zero."""
    if placement.in_order:
        return params
    order = placement.order

    def rows(stack: jax.Array) -> jax.Array:
        filled = (order != EMPTY_LAYER).reshape(-1, *(1,) * (stack.ndim - 1))
        return jnp.where(filled, stack[np.maximum(order, 0)], 0)

    return params | {"blocks": jax.tree.map(rows, params["blocks"])}


def canonical(params: Params, stages: Stages) -> Params:
    """Stored parameters -> the same tree on every mesh: layers in the model's order, tables unpadded."""
    tables = {k: {"table": params[k]["table"][: stages.vocab]} for k in ("embed", "head") if k in params}
    blocks = params["blocks"]
    if not stages.placement.in_order:
        blocks = jax.tree.map(lambda stack: stack[stages.placement.rows], blocks)
    return params | tables | {"blocks": blocks}


def padded(params: Params, stages: Stages) -> Params:
    """The inverse of `canonical`: as the stages hold them, empty layers and padded rows zero."""

    def pad(table: jax.Array, shape: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.pad(table, ((0, shape.shape[0] - table.shape[0]), (0, 0)))

    tables = {k: jax.tree.map(pad, params[k], stages.shapes[k]) for k in ("embed", "head") if k in params}
    return stored(params | tables, stages.placement)
