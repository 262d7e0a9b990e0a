"""A layer's backward in two halves: input gradient now, weight gradients later (arXiv 2401.10241).

Nothing is asked of the model: the backward is traced, and its equations are parted by what they are
needed for. Those that only matrices' gradients need (for a linear: input × output gradient) wait;
what they read is held meanwhile. So the weight half repeats no part of the backward chain. Gradients
of vectors (norms, biases) are sums of the same size as what they read, and are made in the first half.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core

jaxprs: Any = jax.extend.core  # its types differ between versions of JAX

VECTOR_DIMS = 1

CALLS = ("jit", "pjit", "checkpoint", "remat2", "closed_call")
"""Primitives that only wrap equations."""


class SplitBackward:
    """`backward(ready, passing) -> (dparams, dx)` in two halves.

    ready: a tree that will be there again for the second half (weights, context); passing: one that
    will not (what the forward saved, dy). Both may be shapes: only their types matter here.
    """

    def __init__(self, backward: Callable[[Any, Any], tuple[Any, jax.Array]], ready: Any, passing: Any) -> None:
        closed: Any
        closed, shapes = jax.make_jaxpr(_inlined(backward), return_shape=True)(ready, passing)
        self._jaxpr, self._consts, self._tree = closed.jaxpr, closed.consts, jax.tree.structure(shapes[0])
        self._ready = self._jaxpr.invars[: len(jax.tree.leaves(ready))]
        self._inputs = [*self._jaxpr.invars, *self._jaxpr.constvars]
        *dparams, self._dx = self._jaxpr.outvars
        self._dparams = dparams

        equations, again = self._jaxpr.eqns, {*self._ready, *self._jaxpr.constvars}
        vectors = [v for v in dparams if len(v.aval.shape) <= VECTOR_DIMS]
        waiting = _waiting(equations, dparams, _needed(equations, [self._dx, *vectors]))
        operands = [v for e in waiting for v in e.invars]
        self._first = _without(_needed(equations, [self._dx, *vectors, *operands]), waiting)
        # What the first half makes from `ready` alone (broadcast scales, dropout masks) is made again, not held.
        once = _without(self._first, _made_from(equations, again))
        self._second = _needed(_without(equations, once), dparams)
        made = again.union(*(e.outvars for e in self._second))
        read = [v for e in self._second for v in e.invars] + dparams
        self._held = list(dict.fromkeys(v for v in read if not isinstance(v, jaxprs.Literal) and v not in made))

    @property
    def held(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes of what the first half leaves for the second."""
        return [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in self._held]

    def first(self, ready: Any, passing: Any) -> tuple[jax.Array, list[jax.Array]]:
        """dx, and what is held."""
        values = jax.tree.leaves((ready, passing))
        outputs = [self._dx, *self._held]
        dx, *held = _run(self._jaxpr, self._first, self._inputs, outputs, [*values, *self._consts])
        return dx, held

    def second(self, ready: Any, held: Sequence[jax.Array]) -> Any:
        """dparams."""
        inputs = [*self._ready, *self._jaxpr.constvars, *self._held]
        values = [*jax.tree.leaves(ready), *self._consts, *held]
        return jax.tree.unflatten(self._tree, _run(self._jaxpr, self._second, inputs, self._dparams, values))


def _inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` without calls around its equations: whole calls could not be parted."""

    def run(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        return jax.tree.unflatten(
            jax.tree.structure(shapes), _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(args))
        )

    return run


def _evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    read = lambda v: v.val if isinstance(v, jaxprs.Literal) else values[v]
    for equation in jaxpr.eqns:
        if equation.primitive.name in CALLS:
            inner = equation.params["jaxpr"]
            inner, inner_consts = (inner.jaxpr, inner.consts) if isinstance(inner, jaxprs.ClosedJaxpr) else (inner, ())
            results = _evaluate(inner, inner_consts, [read(v) for v in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        else:
            inputs = list(dict.fromkeys(v for v in equation.invars if not isinstance(v, jaxprs.Literal)))
            outputs = [v for v in equation.outvars if not isinstance(v, jaxprs.DropVar)]
            results = _run(jaxpr, [equation], inputs, outputs, [values[v] for v in inputs])
            values.update(zip(outputs, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _run(jaxpr: Any, equations: Any, inputs: Any, outputs: Any, values: Sequence[Any]) -> list[Any]:
    """Some equations of a jaxpr as a program of their own."""
    names = jaxpr.debug_info._replace(arg_names=("",) * len(inputs), result_paths=("",) * len(outputs))
    part = jaxpr.replace(
        eqns=list(equations), constvars=[], invars=list(inputs), outvars=list(outputs), debug_info=names
    )
    return jaxprs.jaxpr_as_fun(jaxprs.ClosedJaxpr(part, []))(*values)


def _needed(equations: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """The equations that the outputs depend on."""
    wanted = {v for v in outputs if not isinstance(v, jaxprs.Literal)}
    needed = []
    for equation in reversed(equations):
        if wanted.intersection(equation.outvars) or equation.effects:
            wanted.update(v for v in equation.invars if not isinstance(v, jaxprs.Literal))
            needed.append(equation)
    return needed[::-1]


def _waiting(equations: Sequence[Any], dparams: Sequence[Any], needed: Sequence[Any]) -> list[Any]:
    """The equations that can wait: from each gradient back to the product that makes it, if nothing else needs them.

    There the walk ends: what the product reads (say, an activation made again) is held, not what that is made of.
    """
    maker = {v: e for e in _without(equations, needed) for v in e.outvars}
    waiting: dict[int, Any] = {}
    walk = list(dparams)
    while walk:
        variable = walk.pop()
        equation = None if isinstance(variable, jaxprs.Literal) else maker.get(variable)
        if equation is not None and id(equation) not in waiting:
            waiting[id(equation)] = equation
            if equation.primitive.name != "dot_general":
                walk.extend(equation.invars)
    return [e for e in equations if id(e) in waiting]


def _without(equations: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    left_out = set(map(id, others))
    return [e for e in equations if id(e) not in left_out]


def _made_from(equations: Sequence[Any], inputs: set[Any]) -> list[Any]:
    """The equations that depend on nothing but `inputs`."""
    known, made = set(inputs), []
    for equation in equations:
        if all(isinstance(v, jaxprs.Literal) or v in known for v in equation.invars) and not equation.effects:
            known.update(equation.outvars)
            made.append(equation)
    return made
