"""A replica's batch as the pipeline takes it, microbatch by microbatch.

Shapes: M microbatches, B microbatch size, S sequence.
"""

from typing import Any, NamedTuple

import jax

from meshkit.pipeline.context import Context


class Batch(NamedTuple):
    """`scale` is 1 / the number of target tokens (the sum of weights) of the global batch, `share` 1 / the number of
    its samples; `samples_MB` the samples' numbers in it."""

    tokens_MBS: jax.Array
    targets_MBS: jax.Array
    weights_MBS: jax.Array
    samples_MB: jax.Array
    scale: jax.Array
    share: float
    segments_MBS: jax.Array | None = None  # see `Context`

    def context(self, key: jax.Array | None, microbatch: Any, layer: Any) -> Context:
        """What a layer is told of a microbatch in a step with this random key."""
        segments_BS = None if self.segments_MBS is None else self.segments_MBS[microbatch]
        return Context(layer, self.samples_MB[microbatch], key, self.share, segments_BS=segments_BS)
