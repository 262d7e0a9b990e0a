"""Buffers of slots, read and written in place, and gates around work that not every device does.

Gates. Where only some devices act, the work stands in a loop of zero or one trip: unlike `lax.cond`
it updates its carry in place, and an idle device does no work. A *stage gate* differs between stages,
so inside it only tensor peers of one stage may talk; a *mesh gate* is open on all devices or on none.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax, memory
from jax.sharding import PartitionSpec as P

from meshkit.mesh import TENSOR
from meshkit.pipeline.collectives import axis_size
from meshkit.pipeline.schedule import IDLE

C = TypeVar("C")
Space = Any
"""A `jax.memory.Space`: the memory of a device, or its host's."""

STAGE_GATE, MESH_GATE = "stage_gate", "mesh_gate"

EMPTY = 0.0
"""What a slot holds before anything is put there. No result depends on it (a test puts NaN)."""


def empty(leading: tuple[int, ...], value: Any, space: Space = memory.Space.Device) -> jax.Array:
    """An empty buffer [*leading, *value.shape] of value's dtype, in a device's or its host's memory."""
    # A scalar moved and then spread is allocated where it shall be; a whole buffer would be copied there.
    return jnp.broadcast_to(jax.device_put(jnp.asarray(EMPTY, value.dtype), space), (*leading, *value.shape))


def empty_activations(leading: tuple[int, ...], x_BSH: Any, space: Space = memory.Space.Device) -> jax.Array:
    """An empty buffer [*leading, B, S, H], its sequence cut over tensor."""
    array = empty(leading, x_BSH, space)
    if axis_size(TENSOR) == 1:
        return array
    return lax.with_sharding_constraint(array, P(*(None,) * len(leading), None, TENSOR, None))


def get(buffer: jax.Array, *index: Any) -> jax.Array:
    """`buffer[index]` for traced integers, in the device's memory."""
    rest = buffer.shape[len(index) :]
    value = lax.dynamic_slice(buffer, _start(buffer, index), (1,) * len(index) + rest)
    return _moved(value, memory.Space.Device).reshape(rest)


def put(buffer: jax.Array, value: jax.Array, *index: Any) -> jax.Array:
    """`buffer` with `value` at `index`, in place."""
    value = value.astype(buffer.dtype).reshape((1,) * len(index) + value.shape)
    return lax.dynamic_update_slice(buffer, _moved(value, _space(buffer)), _start(buffer, index))


def put_if(valid: Any, buffer: jax.Array, value: jax.Array, slot: jax.Array) -> jax.Array:
    """`put` where `valid` holds; `slot` may be IDLE where it does not."""
    slot = jnp.maximum(slot, 0)
    return put(buffer, jnp.where(valid, value.astype(buffer.dtype), get(buffer, slot)), slot)


def gate(scope: str, occurs: str, index: jax.Array, action: Callable[[C], C], carry: C) -> C:
    """Do `action` where `index` is not IDLE; without a gate if it always or never is (`Phase.occurs`)."""
    if occurs == "never":
        return carry
    if occurs == "always":
        return action(carry)

    def trip(i: jax.Array, carry: C) -> C:
        # XLA moves what is the same in every trip in front of a loop: here a stage's whole forward, and
        # an idle stage would do it. Tied to i, nothing that is read from the carry is the same.
        return action(lax.optimization_barrier((carry, i))[0])

    with jax.named_scope(scope):
        return lax.fori_loop(0, (index != IDLE).astype(jnp.int32), trip, carry)


def _space(array: jax.Array) -> Space:
    return jax.typeof(array).memory_space


def _moved(array: jax.Array, space: Space) -> jax.Array:
    return array if _space(array) == space else jax.device_put(array, space)


def _start(buffer: jax.Array, index: tuple[Any, ...]) -> list[jax.Array]:
    # Along a dim of size 1 the index is known, which lets the compiler see through the buffer.
    known = [0 if size == 1 else i for i, size in zip(index, buffer.shape, strict=False)]
    return [jnp.asarray(i, jnp.int32) for i in (*known, *(0,) * (buffer.ndim - len(index)))]
