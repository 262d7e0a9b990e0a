"""The state of a step as a checkpoint holds it, and back: the same tree on every mesh. What is frozen is not in it.

Names are paths: params/blocks/attention/query/kernel, optimizer/0/mu/embed/table, step. Layers stand in the
model's order, tables have no padding. Where the stages hold an array that way already, it is saved as it lies.
Else it is rearranged on the devices, one array at a time: what cut its rows is put on another dim first, by an
all-to-all, so that no device holds more than its share (where an axis divides no other dim, its peers hold
the same for that moment), and what is saved goes to host memory at once.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from meshkit import optimizer
from meshkit.pipeline.stage import Params, canonical, padded
from meshkit.train_step import State, TrainStep

Tree = dict[str, Any]
"""Nested dict of arrays, or of what stands for them."""

Name = tuple[str, ...]
Move = Callable[[jax.Array], jax.Array]

TOP = {"opt": "optimizer"}
"""Parts of the state that a checkpoint calls otherwise."""

HOST = "pinned_host"


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of the state. name: its path in a checkpoint; parameter: that of what it is laid out like.

    stored, saved: shape, dtype and sharding on the devices and in a checkpoint; equal where nothing moves.
    """

    name: Name
    parameter: Name | None
    stored: jax.ShapeDtypeStruct
    saved: jax.ShapeDtypeStruct

    @property
    def moves(self) -> bool:
        """Whether rows are reordered, added or left out on the way."""
        return self.saved != self.stored


class Layout:
    """The way from the state of `step` to the tree of a checkpoint, and back."""

    def __init__(self, step: TrainStep) -> None:
        self._step = step
        self._moves: dict[Any, tuple[Move, Move]] = {}

    @functools.cached_property
    def leaves(self) -> list[Leaf]:
        """Every array of the state that is saved, in the order of its tree."""
        step, found = self._step, []
        known = optimizer.by_path(step.stages.own(step.stages.shapes))
        shapes = jax.tree_util.tree_leaves_with_path(step.saved(jax.eval_shape(step.init, 0)))
        for (path, shape), sharding in zip(shapes, jax.tree.leaves(step.saved(step.state_shardings)), strict=True):
            stored = jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)
            as_it_is = path[0].key == "opt" and step.config.optimizer.name in optimizer.CANONICAL
            mirrored = None if as_it_is else optimizer.mirrored(path, shape, known)
            parameter = None if mirrored is None else _name(mirrored)
            saved = stored if parameter is None else self._saved(parameter, stored)
            first, *rest = _name(path)
            found.append(Leaf((TOP.get(first, first), *rest), parameter, stored, saved))
        return found

    @property
    def weights(self) -> list[Leaf]:
        """The parameters among them."""
        return [leaf for leaf in self.leaves if leaf.name[0] == "params"]

    def to_saved(self, state: State) -> Tree:
        """The tree of a checkpoint. What moves is put into host memory, the rest stays where it lies."""
        arrays = zip(self.leaves, jax.tree.leaves(self._step.saved(state)), strict=True)
        return tree_of({leaf.name: self._pair(leaf)[0](array) if leaf.moves else array for leaf, array in arrays})

    def to_state(self, tree: Tree) -> State:
        """The inverse of `to_saved`, from arrays as `saved` of each leaf says. Empties `tree`, to hold none twice."""
        structure = jax.tree.structure(self._step.saved(self._step.state_shardings))
        return jax.tree.unflatten(structure, self._restored(tree, self.leaves))

    def to_params(self, tree: Tree) -> Params:
        """As `to_state`, of a tree that holds the parameters alone."""
        structure = jax.tree.structure(self._step.saved(self._step.state_shardings)["params"])
        return jax.tree.unflatten(structure, self._restored(tree, self.weights))

    def _restored(self, tree: Tree, leaves: list[Leaf]) -> list[jax.Array]:
        arrays = []
        for leaf in leaves:
            array = _take(tree, leaf.name)
            arrays.append(self._pair(leaf)[1](array) if leaf.moves else array)
        return arrays

    # --- one array ------------------------------------------------------------------------------

    def _saved(self, parameter: Name, stored: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """How a checkpoint holds an array that is laid out like `parameter`."""
        stages, (rows, *rest), reordered = self._step.stages, stored.shape or (0,), False
        if parameter[0] == "blocks":
            rows, reordered = stages.placement.layers, not stages.placement.in_order
        elif parameter[0] in ("embed", "head"):
            rows = stages.vocab
        if not reordered and (rows, *rest) == stored.shape:
            return stored
        return jax.ShapeDtypeStruct((rows, *rest), stored.dtype, sharding=_with_rows_whole(stored))

    def _pair(self, leaf: Leaf) -> tuple[Move, Move]:
        """`stored` -> `saved` in host memory, and back; compiled once for a parameter and all that mirror it."""
        key = leaf.parameter, leaf.stored
        if key not in self._moves:
            saved, stored, stages, parameter = (
                leaf.saved.sharding,
                leaf.stored.sharding,
                self._step.stages,
                leaf.parameter,
            )
            assert parameter is not None, "only what mirrors a parameter moves"

            def save(array: jax.Array) -> jax.Array:
                array = jax.lax.with_sharding_constraint(array, saved)
                return _get(canonical(_alone(parameter, array), stages), parameter)

            def restore(array: jax.Array) -> jax.Array:
                whole = _get(padded(_alone(parameter, array), stages), parameter)
                return jax.lax.with_sharding_constraint(whole, saved)

            self._moves[key] = (
                jax.jit(save, out_shardings=saved.with_memory_kind(HOST)),
                jax.jit(restore, out_shardings=stored),
            )
        return self._moves[key]


def _with_rows_whole(array: jax.ShapeDtypeStruct) -> NamedSharding:
    """The sharding of `array`, with what cuts dim 0 moved, axis by axis, to the longest dim that it divides.

    An axis that divides none is left out: its peers hold the same.
    """
    sharding = array.sharding
    assert isinstance(sharding, NamedSharding)
    mesh, cuts = sharding.mesh, [_axes(entry) for entry in sharding.spec]
    cuts += [()] * (len(array.shape) - len(cuts))
    rows, cuts[0] = cuts[0], ()
    for axis in rows:
        sizes = [size // math.prod(mesh.shape[a] for a in cut) for size, cut in zip(array.shape, cuts, strict=True)]
        fits = [dim for dim in range(1, len(sizes)) if sizes[dim] % mesh.shape[axis] == 0]
        if fits:
            longest = max(fits, key=lambda dim: sizes[dim])
            cuts[longest] = (*cuts[longest], axis)
    return NamedSharding(mesh, P(*(cut or None for cut in cuts)))


def _axes(entry: Any) -> tuple[str, ...]:
    return entry if isinstance(entry, tuple) else () if entry is None else (entry,)


# --- trees --------------------------------------------------------------------------------------


def tree_of(leaves: dict[Name, Any]) -> Tree:
    """The nested dict with these leaves."""
    tree: Tree = {}
    for name, leaf in leaves.items():
        inside = tree
        for part in name[:-1]:
            inside = inside.setdefault(part, {})
        inside[name[-1]] = leaf
    return tree


def leaves_of(tree: Tree, name: Name = ()) -> Iterator[tuple[Name, Any]]:
    """The leaves of a nested dict with their names."""
    for part, value in tree.items():
        if isinstance(value, dict):
            yield from leaves_of(value, (*name, part))
        else:
            yield (*name, part), value


def _get(tree: Tree, name: Name) -> Any:
    return functools.reduce(lambda inside, part: inside[part], name, tree)


def _take(tree: Tree, name: Name) -> Any:
    return _get(tree, name[:-1]).pop(name[-1])


def _alone(name: Name, leaf: jax.Array) -> Tree:
    """A tree of parameters with this one in it, as `canonical` and `padded` take them."""
    return {"blocks": {}} | tree_of({name: leaf})


def _name(path: Any) -> Name:
    return tuple(jax.tree_util.keystr((part,), simple=True) for part in path)
