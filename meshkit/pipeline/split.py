"""A layer's backward in two halves: input gradient now, weight gradients later (arXiv 2401.10241).

Nothing is asked of the model: the backward is traced, and its equations are parted by what they are
needed for. Those that only matrices' gradients need (for a linear: input × output gradient) wait;
what they read is held meanwhile. So the weight half repeats no part of the backward chain. Gradients
of vectors (norms, biases) are sums of the same size as what they read, and are made in the first half.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

VECTOR_DIMS = 1


class SplitBackward:
    """`backward(ready, passing) -> (dparams, dx)` in two halves.

    ready: a tree that will be there again for the second half (weights, context); passing: one that
    will not (what the forward saved, dy). Both may be shapes: only their types matter here.
    """

    def __init__(self, backward: Callable[[Any, Any], tuple[Any, jax.Array]], ready: Any, passing: Any) -> None:
        closed, shapes = jax.make_jaxpr(backward, return_shape=True)(ready, passing)
        self._jaxpr, self._consts, self._tree = closed.jaxpr, closed.consts, jax.tree.structure(shapes[0])
        self._ready = self._jaxpr.invars[: len(jax.tree.leaves(ready))]
        *dparams, self._dx = self._jaxpr.outvars
        self._dparams = dparams

        early = [v for v in dparams if len(v.aval.shape) <= VECTOR_DIMS]
        needed = _needed(self._jaxpr.eqns, [self._dx, *early])
        self._first = [e for e, n in zip(self._jaxpr.eqns, needed, strict=True) if n]
        self._second = [e for e, n in zip(self._jaxpr.eqns, needed, strict=True) if not n]
        again = {*self._ready, *self._jaxpr.constvars}
        made_late = {v for e in self._second for v in e.outvars}
        read_late = [v for e in self._second for v in e.invars if not isinstance(v, Literal)]
        kept_early = [v for v in dparams if not isinstance(v, Literal) and v not in made_late]
        self._held = list(dict.fromkeys(v for v in read_late + kept_early if v not in again | made_late))

    @property
    def held(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes of what the first half leaves for the second."""
        return [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in self._held]

    def first(self, ready: Any, passing: Any) -> tuple[jax.Array, list[jax.Array]]:
        """dx, and what is held."""
        values = jax.tree.leaves((ready, passing))
        dx, *held = self._run(self._first, self._jaxpr.invars, [self._dx, *self._held], values)
        return dx, held

    def second(self, ready: Any, held: Sequence[jax.Array]) -> Any:
        """dparams."""
        values = [*jax.tree.leaves(ready), *held]
        return jax.tree.unflatten(
            self._tree, self._run(self._second, [*self._ready, *self._held], self._dparams, values)
        )

    def _run(self, equations: Any, inputs: Any, outputs: Any, values: Any) -> list[jax.Array]:
        # Held values that are inputs too pass through: an output may be an input variable.
        part = self._jaxpr.replace(eqns=equations, invars=list(inputs), outvars=list(outputs), debug_info=None)
        return jaxpr_as_fun(ClosedJaxpr(part, self._consts))(*values)


def _needed(equations: Sequence[Any], outputs: Sequence[Any]) -> list[bool]:
    """Which equations the outputs depend on."""
    wanted = {v for v in outputs if not isinstance(v, Literal)}
    needed = []
    for equation in reversed(equations):
        use = bool(wanted.intersection(equation.outvars)) or bool(equation.effects)
        if use:
            wanted.update(v for v in equation.invars if not isinstance(v, Literal))
        needed.append(use)
    return needed[::-1]
