"""From sizes to a model that can be built for a mesh."""

from collections.abc import Callable
from typing import Any

from flax import nnx

from meshkit.imports import check_callable, load_object
from meshkit.models.families import FAMILIES
from meshkit.models.lora import attach
from meshkit.models.presets import Sizes


def builder(sizes: Sizes, vocab_multiple: int, model: Any = None) -> Callable[[nnx.Rngs], Any]:
    """A function of Rngs that makes the model: `model` if given, else what `sizes.family` names.

    Raises MeshkitError when the family cannot be imported, or takes other arguments.
    """
    if model is None:
        model = load_object(FAMILIES.get(sizes.family, sizes.family), "model.family", FAMILIES)
    check_callable(model, "model.family", "sizes", "rngs", "vocab_multiple")
    if sizes.adapters is None:
        return lambda rngs: model(sizes, rngs, vocab_multiple)
    adapters = sizes.adapters

    def with_adapters(rngs: nnx.Rngs) -> Any:
        made = model(sizes, rngs, vocab_multiple)
        attach(made, adapters, rngs.params())
        return made

    return with_adapters
