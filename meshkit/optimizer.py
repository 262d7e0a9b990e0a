"""The Optax update that a config names, and its learning rate over the steps."""

from typing import Any

import jax
import optax

from meshkit.config import OptimizerConfig
from meshkit.errors import MeshkitError
from meshkit.pipeline.stage import Params, Stages, canonical, padded

MATRIX_FROM = 2
"""Parameters with fewer dims than this in a layer (norms, biases) are not decayed."""


def learning_rate(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Step -> learning rate: linear warm-up, then cosine, linear, constant or WSD (arXiv 2404.06395).

    Raises MeshkitError when warm-up and decay do not fit in `steps`.
    """
    peak, warmup, floor = config.learning_rate, config.warmup_steps, config.learning_rate * config.final_scale
    decay = max(1, steps // 5) if config.decay_steps is None else config.decay_steps
    needed = warmup + (decay if config.schedule == "wsd" else 0)
    if needed > steps:
        raise MeshkitError(
            f"optimizer.warmup_steps = {warmup}"
            + (f" and optimizer.decay_steps = {decay}" if config.schedule == "wsd" else "")
            + f" do not fit into steps = {steps}: lower them to {steps} in all, or raise steps"
        )
    rest = max(1, steps - warmup)
    after = {
        "cosine": lambda: optax.cosine_decay_schedule(peak, rest, config.final_scale),
        "linear": lambda: optax.linear_schedule(peak, floor, rest),
        "constant": lambda: optax.constant_schedule(peak),
        "wsd": lambda: optax.join_schedules(
            [optax.constant_schedule(peak), optax.linear_schedule(peak, floor, decay)], [steps - warmup - decay]
        ),
    }[config.schedule]()
    # Step 0 already learns: a rate of 0 would waste it.
    rise = optax.linear_schedule(peak / (warmup + 1), peak, max(1, warmup))
    return optax.join_schedules([rise, after], [warmup]) if warmup else after


def build(config: OptimizerConfig, steps: int, stages: Stages) -> optax.GradientTransformation:
    """The update rule for the trained parameters of `stages`, as they are stored.

    Clipping by the global norm is the train step's: it knows the norm anyway.
    """
    rate = learning_rate(config, steps)
    shapes = stages.own(stages.shapes)
    decayed = _decayed(shapes)
    beta1, beta2 = config.betas
    match config.name:
        case "adamw":
            return optax.adamw(rate, beta1, beta2, config.epsilon, weight_decay=config.weight_decay, mask=decayed)
        case "lion":
            return optax.lion(rate, beta1, beta2, weight_decay=config.weight_decay, mask=decayed)
        case "sgd":
            return optax.chain(
                optax.trace(beta1),
                optax.add_decayed_weights(config.weight_decay, decayed),
                optax.scale_by_learning_rate(rate),
            )
        case "adafactor":
            rule = optax.chain(
                optax.scale_by_factored_rms(),
                optax.clip_by_block_rms(1.0),
                optax.add_decayed_weights(config.weight_decay, decayed),
                optax.scale_by_learning_rate(rate),
            )
            # Its statistics are means over rows and columns: padding must not count in them.
            return _without_padding(rule, stages)
        case "muon":
            direction = optax.contrib.muon(
                -1.0,  # the direction alone: its own decay of Adam's part would not spare norms and biases
                beta=beta1,
                eps=config.epsilon,
                adam_b1=beta1,
                adam_b2=beta2,
                muon_weight_dimension_numbers=_muon_dimensions(shapes),
            )
            return optax.chain(
                direction,
                optax.add_decayed_weights(config.weight_decay, decayed),
                optax.scale_by_learning_rate(rate),
            )


def _decayed(shapes: Params) -> Params:
    """True at matrices. Blocks have a leading dim of layers, which does not count."""

    def is_matrix(path: Any, shape: jax.ShapeDtypeStruct) -> bool:
        return len(shape.shape) - _in_blocks(path) >= MATRIX_FROM

    return jax.tree_util.tree_map_with_path(is_matrix, shapes)


def _muon_dimensions(shapes: Params) -> Params:
    """Blocks' matrices are orthogonalised, each layer by itself; all else goes to Adam (None)."""

    def dimensions(path: Any, shape: jax.ShapeDtypeStruct) -> Any:
        matrix = _in_blocks(path) and len(shape.shape) == 1 + MATRIX_FROM
        return optax.contrib.MuonDimensionNumbers(reduction_axis=(1,), output_axis=(2,)) if matrix else None

    return jax.tree_util.tree_map_with_path(dimensions, shapes)


def _in_blocks(path: Any) -> bool:
    return path[0].key == "blocks"


CANONICAL = {"adafactor"}
"""Optimizers whose state is that of the canonical parameters, whatever the layout."""


def _without_padding(rule: optax.GradientTransformation, stages: Stages) -> optax.GradientTransformation:
    """`rule` on the canonical parameters: no padded rows, no empty layers; those stay zero."""

    def init(params: Any) -> Any:
        return rule.init(canonical(params, stages))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        changed, state = rule.update(canonical(updates, stages), state, canonical(params, stages))
        return padded(changed, stages), state

    return optax.GradientTransformation(init, update)


def state_specs(state: Any, shapes: Params, specs: Params, default: Any) -> Any:
    """A spec for every leaf of an optimizer state: a parameter's own where the leaf mirrors one, else `default`.

    state: shapes of the optimizer state.
    """
    known = by_path(shapes)
    of = dict(zip(known, jax.tree.leaves(specs, is_leaf=lambda x: x is None), strict=True))

    def choose(path: Any, leaf: Any) -> Any:
        parameter = mirrored(path, leaf, known)
        return default if parameter is None else of[parameter]

    return jax.tree_util.tree_map_with_path(choose, state)


ByPath = dict[tuple[Any, ...], jax.ShapeDtypeStruct]


def by_path(shapes: Params) -> ByPath:
    """JAX's path of each parameter -> its shape, in the order of the tree."""
    return dict(jax.tree_util.tree_leaves_with_path(shapes))


def mirrored(path: tuple[Any, ...], leaf: Any, known: ByPath) -> tuple[Any, ...] | None:
    """The parameter whose path ends `path` and whose shape `leaf` has, None when there is none.

    Moments mirror one; counters and factored statistics do not.
    """
    for start in range(len(path)):
        shape = known.get(path[start:])
        if shape is not None and shape.shape == leaf.shape:
            return path[start:]
    return None
