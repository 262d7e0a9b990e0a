"""What a block may depend on besides its parameters and its input: Context, Memory; and dropout, which needs a Context.

Shapes: B microbatch size, S sequence, H width, T tokens remembered, K key/value heads, D head_dim.
"""

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
    """What a block may depend on besides its input; the same whatever the mesh.

    layer: this block's number in the model, int32 scalar (−1 in `enter`).
    samples_B: numbers of the samples in the global batch, int32 [B].
    key: the step's random key, or None when nothing is random (evaluation).
    share: 1 / samples of the global batch, what one counts for in a mean over them.
    first: how many tokens stand before x, where those are remembered (generation); None: none do.
    segments_BS: number of each token's document in its sample, int32, where documents are kept apart: attention stays
    inside a document, whose first token has position 0. None: a sample is one document.
    """

    layer: jax.Array | int
    samples_B: jax.Array
    key: jax.Array | None
    share: float = 1.0
    first: jax.Array | None = None
    segments_BS: jax.Array | None = None

    @property
    def positions_BS(self) -> jax.Array:
        """Position of each token in its document."""
        assert self.segments_BS is not None
        begins_BS = jnp.diff(self.segments_BS, axis=1, prepend=-1) != 0
        place_BS = jnp.broadcast_to(jnp.arange(begins_BS.shape[1]), begins_BS.shape)
        return place_BS - jax.lax.cummax(jnp.where(begins_BS, place_BS, 0), axis=1)

    def keys_B(self, site: int) -> jax.Array:
        """A random key for each sample, for the `site`-th random choice of this layer."""
        assert self.key is not None
        here = jax.random.fold_in(jax.random.fold_in(self.key, self.layer + 1), site)
        return jax.vmap(jax.random.fold_in, (None, 0))(here, self.samples_B)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """Keys and values of a layer, [B, T, K, D]: of the tokens read so far, and room for more.

    A block that is also called as block(x, context, memory) -> (x, memory) can write text (`meshkit.use.decode`).
    """

    k_BTKD: jax.Array
    v_BTKD: jax.Array

    def read_on(self, k_BSKD: jax.Array, v_BSKD: jax.Array, first: jax.Array) -> "Memory":
        """The memory with those of S more tokens, from position `first` on."""
        put = lambda whole, more: jax.lax.dynamic_update_slice_in_dim(whole, more, first, 1)
        return Memory(put(self.k_BTKD, k_BSKD), put(self.v_BTKD, v_BSKD))


def dropout(x_BSH: jax.Array, rate: float, context: Context, site: int) -> jax.Array:
    """Zero a share `rate` of the features, each sample by its own key: no mesh and no precision changes the choice."""
    if rate == 0 or context.key is None:
        return x_BSH
    share = jnp.float32(1 - rate)  # of a Python float JAX draws in float64 where that is on, and other numbers
    keep = jax.vmap(lambda key: jax.random.bernoulli(key, share, x_BSH.shape[1:]))(context.keys_B(site))
    return jnp.where(keep, x_BSH / (1 - rate), 0)
