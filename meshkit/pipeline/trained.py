"""Parameters that are trained and parameters that are frozen: two trees that together have the names of the whole.

A model with adapters (`nnx.LoRAParam`) trains them alone; any other trains all it has. No gradient is made of a frozen
parameter, and no optimizer state: neither tree holds what belongs to the other.
"""

from typing import Any

Tree = dict[str, Any]
"""Nested dict of arrays, or of what stands for them."""


def part(tree: Tree, chosen: Tree, wanted: bool) -> Tree:
    """The leaves of `tree` at which `chosen`, a tree of bools, is `wanted`. Of its names `tree` may lack some."""
    found: Tree = {}
    for name, inside in chosen.items():
        if name in tree and isinstance(inside, dict):
            found |= {name: inner} if (inner := part(tree[name], inside, wanted)) else {}
        elif name in tree and inside is wanted:
            found[name] = tree[name]
    return found


def joined(one: Tree, other: Tree) -> Tree:
    """The leaves of both; where both have one, that of `one`."""
    both = {k: joined(one[k], other[k]) for k in one.keys() & other.keys() if isinstance(one[k], dict)}
    return other | one | both


def like(tree: Tree, other: Tree) -> Tree:
    """The leaves of `tree` that `other` has too."""
    return {
        name: like(tree[name], inside) if isinstance(inside, dict) else tree[name] for name, inside in other.items()
    }
