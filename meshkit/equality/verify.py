"""`meshkit verify`: the layout of a config trains as one device would, measured on the config itself.

Two sides run the same steps from the same seed: the user's layout on simulated CPU devices (TrainStep),
and the model called whole on one device (`one_device`). In float64 they may differ by the order of
summation alone. A config in float32 or bfloat16 is run in that too, on both sides (see `compare`).
"""

import dataclasses
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.table import Table

from meshkit import assemble, mesh, optimizer
from meshkit.config import RunConfig
from meshkit.equality import compare, one_device, uneven
from meshkit.equality.compare import Course, Leaves, Row
from meshkit.equality.one_device import Batch
from meshkit.equality.shrink import layout, shrink
from meshkit.equality.uneven import Cost
from meshkit.errors import MeshkitError
from meshkit.models.build import builder
from meshkit.pipeline.stage import Params, Stages, canonical, functional, initial, padded
from meshkit.report import ineffective
from meshkit.simulate import QUICK, simulate_cpu_devices
from meshkit.train_step import TrainStep

STEPS = 3
SEED_OF_TOKENS = 0
DOCUMENTS_A_TOKEN = 0.3  # that begin there, where documents are kept apart


@dataclasses.dataclass(frozen=True)
class Report:
    """What was compared, on which layout, and what is to be known about it."""

    layout: str
    notes: list[str]
    rows: list[Row]
    costs: list[Cost] = dataclasses.field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every row is within its bound, and every cost that of the formula."""
        return all(row.ok for row in self.rows) and all(cost.ok for cost in self.costs)

    def to_json(self) -> str:
        """The report as a JSON object; a number that is not finite is null."""
        rows = [
            {k: v if isinstance(v, str) or math.isfinite(v) else None for k, v in dataclasses.asdict(row).items()}
            | {"ok": row.ok}
            for row in self.rows
        ]
        costs = [dataclasses.asdict(cost) | {"ok": cost.ok} for cost in self.costs]
        return json.dumps({"ok": self.ok, "layout": self.layout, "notes": self.notes, "rows": rows, "costs": costs})

    def print(self, console: Console | None = None) -> None:
        """The report as a table."""
        table = Table("quantity", "error", "bound", "max abs error")
        precision = ""
        for row in self.rows:
            if row.precision != precision:
                table.add_section()
                precision = row.precision
                table.add_row(f"[bold]in {precision}[/]")
            # Gradients have a row for every leaf, parameters one for the worst.
            separator = " " if row.quantity == "gradient" else "\n  worst: " if row.leaf else ""
            colour = "green" if row.ok else "bold red"
            found = f"{row.error:.1e}" if row.compared else "nothing compared:"
            error = f"[{colour}]{found}{'' if row.ok else ' FAILED'}[/]"
            quantity = f"{row.quantity} ({row.compared:.0%} of them)" if row.compared < 1 else row.quantity
            table.add_row(f"{quantity}{separator}{row.leaf}", error, f"{row.bound:.1e}", f"{row.absolute:.1e}")
        console = console or Console()
        tables = [table, self._costs()] if self.costs else [table]
        console.print(f"[bold]{self.layout}[/]", *tables, *(f"– {note}" for note in self.notes), sep="\n")
        console.print(f"[bold]This layout {'trains' if self.ok else 'does NOT train'} as one device would.[/]")

    def _costs(self) -> Table:
        table = Table("stages of unequal length", "the step", "by the formula")
        for cost in self.costs:
            colour = "green" if cost.ok else "bold red"
            found = f"[{colour}]{cost.compiled:,.10g}{'' if cost.ok else ' FAILED'}[/]"
            unit = f", {cost.unit}" if cost.unit else ""
            table.add_row(f"{cost.quantity}{unit}", found, f"{cost.formula:,.10g}")
        return table


def verify(config: RunConfig, full: bool = False) -> Report:
    """Compare the layout of `config` with one device; `full` keeps the model's sizes.

    It runs in this process, where JAX must not have started with fewer CPU devices than the mesh has.
    Raises MeshkitError for that, and for a config that does not fit together.
    """
    sizes = assemble.model_sizes(config, None)
    shape = layout(config, sizes)
    config, notes = (config.model_copy(update={"mesh": shape}), []) if full else shrink(config, sizes, shape)
    config = _learning_at_once(config)
    devices = cpu_devices(shape.devices)
    with jax.default_device(devices[0]):
        rows, costs = _compared(config, devices)
    notes += _legend(config, costs)
    p = config.pipeline
    what = f"{shape}: {p.schedule}, microbatches {p.microbatches}, zero {config.zero}, recompute {config.recompute}"
    return Report(f"{what}, {config.optimizer.name}", notes, rows, costs)


def cpu_devices(count: int) -> list[Any]:
    """`count` CPU devices: simulated, or some of those that this process already has.

    Raises MeshkitError when JAX already runs with fewer.
    """
    settings: Any = jax.config  # has no type for its flags
    try:
        simulate_cpu_devices(max(count, settings.jax_num_cpu_devices))
    except MeshkitError:
        if len(jax.devices("cpu")) < count:
            raise
    return jax.devices("cpu")[:count]


def random_batches(config: RunConfig, vocab: int, count: int = STEPS) -> list[Batch]:
    """Random tokens, and masks that leave some samples with few targets and some with all."""
    random = np.random.default_rng(SEED_OF_TOKENS)
    m, batch, sequence = config.pipeline.microbatches, config.data.batch, config.data.sequence
    share = np.linspace(0.1, 1, batch).reshape(m, batch // m, 1)
    batches = []
    for _ in range(count):
        tokens = random.integers(0, vocab, (m, batch // m, sequence + 1), np.int32)
        weights = (random.random((m, batch // m, sequence)) < share).astype(np.float32)
        batches.append({"tokens": tokens[..., :-1], "targets": tokens[..., 1:], "weights": weights})
        if config.data.documents == "apart":
            begins = random.random(weights.shape) < DOCUMENTS_A_TOKEN
            batches[-1]["segments"] = begins.cumsum(-1, dtype=np.int32)
    return batches


# --- the two sides ------------------------------------------------------------------------------


def _compared(config: RunConfig, devices: list[Any]) -> tuple[list[Row], list[Cost]]:
    """The rows of all precisions; the costs of stages of unequal length."""
    own = config.precision
    with jax.enable_x64(own == "float64"):
        step = _train_step(config, devices, own)
        batches = random_batches(config, step.stages.vocab)
        start = drawn_on_one_device(step)
        rows = [compare.drawn(drawn_on_mesh(step), start, str(jnp.dtype(step.wide)))]
    with jax.enable_x64(True):
        # Accumulating in less than float64 is part of the config's own precision.
        double = _train_step(config.model_copy(update={"grad_dtype": "float32"}), devices, "float64")
        _check_loss_is_wide(double)
        exact = on_one_device(double, start, batches)
        if not np.isfinite(exact.losses).all():
            raise MeshkitError(
                f"on one device the losses of {len(exact.losses)} steps are {exact.losses.tolist()}: there is nothing "
                "to compare; lower optimizer.learning_rate, or mend model and loss"
            )
        course, compiled = on_mesh(double, start, batches)
        rows += compare.exactly(course, exact)
        costs = [] if double.stages.placement.even else uneven.costs(double, compiled)
    if own != "float64":
        with jax.enable_x64(False):
            (course, _), one = on_mesh(step, start, batches), on_one_device(step, start, batches)
        rows += compare.roughly(course, one, exact, own, _epsilon(step))
    return rows, costs


def _check_loss_is_wide(step: TrainStep) -> None:
    """Raises MeshkitError for a loss of one's own that rounds float64 to less: no layout could be proven with it."""
    if step.loss is None:
        return
    logits = jax.ShapeDtypeStruct((1, step.config.data.sequence, step.stages.vocab), jnp.float64)
    losses = jax.eval_shape(step.loss, logits, jax.ShapeDtypeStruct(logits.shape[:2], jnp.int32))
    if losses.dtype != jnp.float64:
        raise MeshkitError(
            f"loss = {step.config.loss!r}: of float64 logits it makes {losses.dtype} losses, and verify compares to "
            f"{compare.BOUND:g}: compute in the dtype of the logits, which is float32 or wider"
        )


def _epsilon(step: TrainStep) -> float:
    """Of the dtype computed in, or of a narrow one that gradients are summed in, whose rounding adds up."""
    computed, config = float(jnp.finfo(step.dtype).eps), step.config
    if config.grad_dtype == "float32":
        return computed
    return max(computed, math.sqrt(config.pipeline.microbatches) * float(jnp.finfo(config.grad_dtype).eps))


def _train_step(config: RunConfig, devices: list[Any], precision: str) -> TrainStep:
    config = config.model_copy(update={"precision": precision})
    return assemble.train_step(config, mesh.build(config.mesh, devices))


def drawn_on_mesh(step: TrainStep) -> Leaves:
    """The initial parameters of the layout."""
    return canonical_leaves(step.init.lower(step.config.seed).compile(QUICK)(step.config.seed)["params"], step.stages)


def drawn_on_one_device(step: TrainStep) -> Leaves:
    """The initial parameters of the same config without a mesh."""
    build = _model(step)
    draw = jax.jit(lambda seed: initial(build, seed), compiler_options=QUICK)
    drawn = jax.tree.map(lambda p, dtype: p.astype(dtype), draw(step.config.seed), step.dtypes)
    return canonical_leaves(drawn, functional(build))


def on_mesh(step: TrainStep, start: Leaves, batches: list[Batch]) -> tuple[Course, Any]:
    """The layout's course, and its compiled step. Raises AssertionError if a padded row of a table is not zero."""
    params = jax.tree.map(lambda p, dtype: p.astype(dtype), _tree(start, step.stages, step.wide), step.dtypes)
    state = jax.jit(step.state, out_shardings=step.state_shardings, compiler_options=QUICK)(params)
    placed = [jax.device_put(batch, step.batch_sharding) for batch in batches]
    value_and_grad = jax.jit(step.gradients, compiler_options=QUICK)
    update = step.compile(state, placed[0], QUICK)
    stages, gradients, metrics = step.stages, [], []
    for batch in placed:
        gradients.append(canonical_leaves(value_and_grad(state["params"], batch, state["step"])[2], stages))
        state, shown = update(state, batch)
        metrics.append(shown)
    losses, norms = (np.array([shown[name] for shown in metrics], float) for name in ("loss", "grad_norm"))
    return Course(losses, norms, gradients, canonical_leaves(stages.own(state["params"]), stages)), update


def on_one_device(step: TrainStep, start: Leaves, batches: list[Batch]) -> Course:
    """The course of the same config without mesh, pipeline and padding."""
    config, stages = step.config, functional(_model(step))
    rule = optimizer.build(config.optimizer, config.steps, stages)
    if config.optimizer.clip_norm:
        rule = optax.chain(optax.clip_by_global_norm(config.optimizer.clip_norm), rule)
    params = _tree(start, stages, step.wide)
    losses, gradients, params = one_device.train(
        stages, params, batches, rule, config.seed, step.loss, step.dtype, compiler_options=QUICK
    )
    norms = [float(optax.tree.norm(tree)) for tree in gradients]
    *trees, after = [canonical_leaves(tree, stages) for tree in (*gradients, stages.own(params))]
    return Course(np.array(losses), np.array(norms), trees, after)


def _model(step: TrainStep) -> Any:
    return builder(assemble.model_sizes(step.config, None), vocab_multiple=1)


def _tree(leaves: Leaves, stages: Stages, dtype: Any) -> Params:
    """The inverse of `canonical_leaves`: the tree of parameters as the stages hold them."""
    with_values = jax.tree_util.tree_map_with_path(
        lambda path, _: jnp.asarray(leaves[_name(path)], dtype), stages.shapes
    )
    return padded(with_values, stages)


def canonical_leaves(params: Params, stages: Stages) -> Leaves:
    """Dotted name -> array: layers in the model's order, tables without padding, which must be zero."""
    params = jax.tree.map(np.asarray, params)
    tree = canonical(params, stages)
    for kept, all_of_it in zip(jax.tree.leaves(tree), jax.tree.leaves(params), strict=True):
        # Nothing but the padding is left out, and that is zero.
        assert np.count_nonzero(kept) == np.count_nonzero(all_of_it), "padded rows or empty layers are not zero"
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


# --- words --------------------------------------------------------------------------------------


def _learning_at_once(config: RunConfig) -> RunConfig:
    """A long warm-up would leave the parameters as they are, and equal whatever the update."""
    warmup = min(config.optimizer.warmup_steps, 1)
    return config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"warmup_steps": warmup})})


def _legend(config: RunConfig, costs: list[Cost]) -> list[str]:
    precise = [
        f"float64: largest |difference| ÷ largest |value| of a leaf (at least {compare.FLOOR:g} of the largest of any "
        f"leaf: some gradients are zero by mathematics); must be at most {compare.BOUND:g}"
    ]
    if config.grad_dtype != "float32":
        precise.append(f"grad_dtype = {config.grad_dtype}: float64 rows leave it out, and so does the one device")
    if costs:
        precise.append(
            "stages of unequal length: a tick lasts as long as the busiest stage, all hold rows for the longest; "
            "temporaries are a GPU compiler's to plan: meshkit compile CONFIG --cluster … shows them"
        )
    precise += ineffective(config, "cpu")
    if config.precision == "float64":
        return precise
    return [
        *precise,
        f"{config.precision}: distance from the float64 result (root mean square ÷ that of the leaf); must be at most "
        f"{compare.RATIO:g} times that of one device in {config.precision}, or of what dtypes round",
        f"parameters: in {config.precision} only those whose every gradient is more than {compare.DEVIATIONS:g} times "
        "what rounding makes of it; of a leaf that has none such, all",
    ]
