"""How a run begins: at step 0, or from a checkpoint that goes with its config, on whatever mesh it has."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp

from meshkit.checkpoint.find import Note, Origin, few, find
from meshkit.checkpoint.layout import Layout, Leaf, tree_of
from meshkit.checkpoint.record import Record
from meshkit.checkpoint.slices import arrays_of
from meshkit.checkpoint.store import History
from meshkit.config import RunConfig
from meshkit.errors import MeshkitError
from meshkit.hf.load import load, load_frozen
from meshkit.pipeline.trained import joined
from meshkit.train_step import State, TrainStep

MAY_CHANGE = {"model.dropout"}
"""Of the model's sizes, what need not be as it was."""


@dataclasses.dataclass(frozen=True)
class Beginning:
    """step, samples: done and read before; history: what was logged of them. origin: None at step 0. init_from: the
    weights that step 0 begins with, or that are frozen, if any."""

    step: int = 0
    samples: int = 0
    history: History = dataclasses.field(default_factory=list)
    origin: Origin | None = None
    init_from: str | None = None

    @property
    def own(self) -> int | None:
        """The step of the run's own checkpoint that it goes on from."""
        return self.step if self.origin is not None and self.origin.own else None

    def state(self, step: TrainStep, layout: Layout) -> State:
        """The state on the mesh of `step`: drawn, or each device reading its own part of the checkpoint.

        From weights alone: they, and a fresh optimizer. What is frozen comes from `init_from`.
        """
        begun = jax.jit(step.state, out_shardings=step.state_shardings, donate_argnums=0)
        if self.origin is None and self.init_from is not None:
            return begun(load(self.init_from, step))
        if self.origin is None:
            return step.init(step.config.seed)
        target = tree_of({leaf.name: leaf.saved for leaf in _needed(self.origin, layout)})
        tree = ocp.StandardCheckpointer().restore(self.origin.folder / "state", target)
        frozen = load_frozen(self.init_from, step) if self.init_from is not None else {}
        if self.origin.record.holds == "state":
            state = layout.to_state(tree)
            return state | {"params": joined(state["params"], frozen)}
        return begun(joined(layout.to_params(tree), frozen))


def begin(config: RunConfig, layout: Layout, now: Record, note: Note) -> Beginning:
    """Where `config.resume` says to begin; `now` is the record of this run at step 0.

    Raises MeshkitError naming what differs when the checkpoint does not go with the config.
    """
    origin = find(config, note)
    if origin is None:
        if config.model.init_from is not None:
            note(f"begins with the weights of {config.model.init_from}")
        return Beginning(init_from=config.model.init_from)
    _check(origin, layout, now)
    then = origin.record
    if then.holds == "weights":
        note(f"begins with the weights of {origin.folder}")
        return Beginning(origin=origin, init_from=now.base)
    changed = [
        d for d in _differences(_flat(then.config), _flat(now.config)) if not UNTOLD.fullmatch(d.split(" = ")[0])
    ]
    note(f"goes on after step {then.step} from {origin.folder}" + (f"; {few(changed, 6)}" if changed else ""))
    samples = then.samples
    if then.data != now.data:
        note(f"the data are read from their beginning: {few(list(_differences(then.data, now.data)))}")
        samples = 0
    return Beginning(then.step, samples, origin.history, origin, now.base)


UNTOLD = re.compile(r"run_dir|resume|devices|log_every|checkpoint\..*")
"""Keys of the config whose change means nothing for the course of a run."""


def _check(origin: Origin, layout: Layout, now: Record) -> None:
    """MeshkitError naming what differs between a checkpoint and the run that shall begin from it."""
    then = origin.record
    wrong = [d for d in _differences(then.model, now.model) if d.split(" = ")[0] not in MAY_CHANGE]
    if then.holds == "state":
        wrong += _differences(*({"optimizer.name": of.config["optimizer"]["name"]} for of in (then, now)))
    wrong += _differences({"the frozen base": then.base}, {"the frozen base": now.base})
    if origin.own:
        wrong += _differences(then.data, now.data)
    # The sizes say more than shapes do, but not all of a model of one's own.
    wrong = wrong or list(_shapes_that_differ(origin, layout))
    if wrong:
        way_out = (
            "choose another run_dir, or set resume = 'never'"
            if origin.own
            else "choose another checkpoint, or begin with its weights alone (meshkit checkpoint convert … --weights)"
        )
        raise MeshkitError(f"{origin.folder} does not go with this config: {few(wrong, 6)}: set them back, {way_out}")


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """A clause for every key whose values differ: "model.width = 64 then and 128 now"."""
    for key in sorted(then.keys() | now.keys()):
        if then.get(key) != now.get(key):
            yield f"{key} = {then.get(key)!r} then and {now.get(key)!r} now"


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys of nested tables."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def _shapes_that_differ(origin: Origin, layout: Layout) -> Iterator[str]:
    then = {name: _spell(leaf, origin) for name, leaf in arrays_of(origin.folder).items()}
    now = {leaf.name: _spell(leaf.saved, origin) for leaf in _needed(origin, layout)}
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            yield f"{'/'.join(name)} is {then.get(name, 'not there')} then and {now.get(name, 'not there')} now"


def _spell(array: Any, origin: Origin) -> str:
    """Weights alone are cast on the way; a state goes on in its own dtypes."""
    return f"{list(array.shape)}" if origin.record.holds == "weights" else f"{array.dtype} {list(array.shape)}"


def _needed(origin: Origin, layout: Layout) -> list[Leaf]:
    return layout.leaves if origin.record.holds == "state" else layout.weights
