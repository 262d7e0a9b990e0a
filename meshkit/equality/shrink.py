"""A small config of the same structure, for `meshkit verify`: what the layout depends on is kept. No JAX.

Kept: family, layers, tied, mesh, schedule, microbatches, zero, recompute, optimizer, loss; query heads
a key/value head; whether a size divides by an axis that could cut it. Shrunk: everything else.
"""

from typing import Any

from meshkit.config import MeshShape, RunConfig
from meshkit.errors import MeshkitError
from meshkit.mesh import resolve
from meshkit.models.families import STYLES
from meshkit.models.presets import Sizes, check_cut
from meshkit.pipeline.placement import place

WIDTH, MLP_WIDTH, HEAD_DIM, VOCAB, SEQUENCE, WINDOW = 16, 24, 4, 33, 8, 3
LAYERS_OF_A_STAGE = 16
HEADS_OF_A_DEVICE, SAMPLES_OF_A_MICROBATCH = 2, 2


def layout(config: RunConfig, sizes: Sizes) -> MeshShape:
    """The mesh of `config`, checked against its sizes.

    A free axis (−1) takes what `devices` leaves; without `devices` the smallest size above 1 that is
    legal (over an axis of 1 there is nothing to prove), else 1.
    Raises MeshkitError for a mesh that the model, the batch or the devices do not fit.
    """
    shape = config.mesh
    free = [axis for axis, size in shape.sizes.items() if size == -1]
    if config.devices is not None:
        shape = resolve(shape, config.devices, simulated=True)
    elif free:
        candidates = [shape.model_copy(update={free[0]: size}) for size in (2, 3, 4, 5, 6, 7, 8)]
        fitting = [candidate for candidate in candidates if _fits(config, sizes, candidate)]
        shape = fitting[0] if fitting else shape.model_copy(update={free[0]: 1})
    _check(config, sizes, shape)
    return shape


def shrink(config: RunConfig, sizes: Sizes, shape: MeshShape) -> tuple[RunConfig, list[str]]:
    """`config` with small sizes for a mesh of `shape`, and sentences about what is not as it was."""
    group = sizes.heads // sizes.kv_heads
    kv_heads = shape.tensor * min(sizes.kv_heads // shape.tensor, HEADS_OF_A_DEVICE)
    layers = _layers(config, sizes, shape)
    sequence = smaller(config.data.sequence, max(SEQUENCE, 2 * shape.tensor), shape.tensor)
    context = smaller(sizes.context, sequence, shape.data)
    model = {
        "layers": layers,
        "width": smaller(sizes.width, WIDTH, shape.data),
        "heads": kv_heads * group,
        "kv_heads": kv_heads,
        "head_dim": HEAD_DIM,
        "mlp_width": smaller(sizes.mlp_width, MLP_WIDTH, shape.tensor),
        "vocab": smaller(sizes.vocab, VOCAB, shape.pipe * shape.tensor),
        "context": context,
        "options": _options(config, sizes),
    }
    samples = min(config.microbatch_size(shape.data), SAMPLES_OF_A_MICROBATCH)
    data = {"sequence": sequence, "batch": shape.data * config.pipeline.microbatches * samples}
    notes = [
        f"sizes shrunk: width {sizes.width} to {model['width']}, heads {sizes.heads} to {model['heads']}, "
        f"vocabulary {sizes.vocab} to {model['vocab']}, sequence {config.data.sequence} to {sequence}, "
        f"batch {config.data.batch} to {data['batch']} (--full keeps them)"
    ]
    if layers != sizes.layers:
        notes.append(f"layers shrunk: {sizes.layers} to {layers}, cut into stages alike (--full keeps them)")
    changed = {
        "model": config.model.model_copy(update=model),
        "data": config.data.model_copy(update=data),
        "mesh": shape,
    }
    return config.model_copy(update=changed), notes


def _options(config: RunConfig, sizes: Sizes) -> dict[str, Any]:
    """The options with a window that hides something of the small sequence too, if it did of the whole."""
    hides = sizes.family in STYLES and (sizes.style.window or config.data.sequence) < config.data.sequence
    return config.model.options | ({"window": WINDOW} if hides else {})


def smaller(size: int, at_least: int, axis: int) -> int:
    """The smallest number from `at_least` on that divides by `axis` if `size` does, and not if not."""
    if size <= at_least:
        return size
    return next(n for n in range(at_least, size + 1) if (n % axis == 0) == (size % axis == 0))


def _layers(config: RunConfig, sizes: Sizes, shape: MeshShape) -> int:
    """Fewer layers with the same remainder over the groups of layers; all, where the config says how to cut."""
    groups = shape.pipe * config.pipeline.virtual
    whole, rest = divmod(sizes.layers, groups)
    if config.pipeline.layers_per_stage is not None:
        return sizes.layers
    return groups * min(whole, max(1, LAYERS_OF_A_STAGE // config.pipeline.virtual)) + rest


def _check(config: RunConfig, sizes: Sizes, shape: MeshShape) -> None:
    check_cut(sizes, shape, config.data.sequence)
    config.microbatch_size(shape.data)
    place(sizes.layers, shape.pipe, config.pipeline.virtual, config.pipeline.layers_per_stage)


def _fits(config: RunConfig, sizes: Sizes, shape: MeshShape) -> bool:
    try:
        _check(config, sizes, shape)
    except MeshkitError:
        return False
    return True
