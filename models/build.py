"""From a config's model table to a model that can be built on a mesh."""

from collections.abc import Callable
from typing import Any

from flax import nnx

from meshkit.imports import load_object
from meshkit.models.presets import FAMILIES, Sizes


def builder(sizes: Sizes, vocab_multiple: int) -> Callable[[nnx.Rngs], Any]:
    """A function of Rngs that makes the model. Raises MeshkitError when the family cannot be imported."""
    family = load_object(FAMILIES.get(sizes.family, sizes.family), "model.family", FAMILIES)
    return lambda rngs: family(sizes, rngs, vocab_multiple)
