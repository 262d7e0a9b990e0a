"""One optimizer step: loss -> gradients -> clip -> Optax update. The only jit of training.

Gradients are made in one `jax.shard_map` region, manual over data and pipe: gather the working
weights over data, run the pipeline, reduce the gradients over data. All else (clip, update, skip) is
elementwise on the master layout and left to the compiler.

Shapes: M microbatches, B samples of a microbatch over all replicas, S sequence.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import memory
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshkit import gates, optimizer, sharding
from meshkit.config import RunConfig
from meshkit.mesh import DATA, PIPE, TENSOR
from meshkit.pipeline import builders, collectives
from meshkit.pipeline.batch import Batch
from meshkit.pipeline.executor import Pipeline
from meshkit.pipeline.schedule import Schedule
from meshkit.pipeline.stage import Params, Stages, initial, stored
from meshkit.pipeline.trained import joined
from meshkit.pipeline.vocab import TokenLoss
from meshkit.zero import Zero

State = dict[str, Any]
"""params: master weights; opt: optimizer state of those that are trained; step: steps tried; skipped: in a row,
skipped_total."""

COMPUTE = {"bfloat16": jnp.bfloat16, "float32": jnp.float32, "float64": jnp.float64}


@dataclasses.dataclass(frozen=True)
class TrainStep:
    """Everything about one step that does not depend on arrays.

    `init(seed)` -> state, `step(state, batch)` -> (state, metrics), `evaluate(params, batch)` -> sums;
    each is jitted once and donates the state. A batch is a dict of [M, B, S] arrays `tokens`,
    `targets`, `weights`, and where documents are kept apart `segments`, with B cut over data.
    """

    config: RunConfig
    mesh: Mesh
    stages: Stages
    build_model: Any
    loss: TokenLoss | None = None

    # --- layouts ------------------------------------------------------------------------------

    @functools.cached_property
    def zero(self) -> Zero:
        """What replicas hold and exchange."""
        data, shapes, specs = self.mesh.shape[DATA], self.stages.shapes, self.stages.specs
        level, trained = self.config.zero, self.stages.trained
        uncut = jax.tree.map(lambda _: sharding.UNCUT, shapes)
        dims = sharding.zero_dims(shapes, specs, data) if level > 0 and data > 1 else uncut
        dims = dims if level == 3 else jax.tree.map(lambda own, dim: dim if own else sharding.UNCUT, trained, dims)
        return Zero(level, dims, sharding.automatic(specs), trained)

    @functools.cached_property
    def master_specs(self) -> Params:
        """PartitionSpec of every master weight."""
        return sharding.master_specs(self.stages.specs, self.zero.dims)

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """The Optax update."""
        return optimizer.build(self.config.optimizer, self.config.steps, self.stages)

    @functools.cached_property
    def state_shardings(self) -> State:
        """NamedSharding of every leaf of the state."""
        shapes, own_specs = self.stages.own(self.stages.shapes), self.stages.own(self.master_specs)
        opt = jax.eval_shape(self.optimizer.init, shapes)
        specs = {
            "params": self.master_specs,
            "opt": optimizer.state_specs(opt, shapes, own_specs, default=P()),
            "step": P(),
            "skipped": P(),
            "skipped_total": P(),
        }
        return sharding.named(self.mesh, specs)

    @property
    def batch_sharding(self) -> NamedSharding:
        """[M, B, S]: B cut over data, the same on every stage and tensor peer."""
        return NamedSharding(self.mesh, P(None, DATA))

    @functools.cached_property
    def dtype(self) -> Any:
        """Dtype of forward and backward."""
        return COMPUTE[self.config.precision]

    @functools.cached_property
    def wide(self) -> Any:
        """Dtype of master weights, moments and losses."""
        return jnp.promote_types(self.dtype, jnp.float32)

    @functools.cached_property
    def accumulated(self) -> Any:
        """Dtype that gradients of microbatches are added up in."""
        return self.wide if self.config.grad_dtype == "float32" else COMPUTE[self.config.grad_dtype]

    # --- state --------------------------------------------------------------------------------

    @functools.cached_property
    def init(self) -> Any:
        """seed (int32 scalar) -> fresh state, drawn in place on the devices that will hold it."""

        return jax.jit(lambda seed: self.state(self.fresh(seed)), out_shardings=self.state_shardings)

    def fresh(self, seed: jax.Array) -> Params:
        """Drawn master weights. For use under `jax.jit`."""
        drawn = stored(initial(self.build_model, seed), self.stages.placement)
        return jax.tree.map(lambda p, dtype: p.astype(dtype), drawn, self.dtypes)

    @functools.cached_property
    def dtypes(self) -> Params:
        """Of every master weight: what is frozen is kept as it is computed with."""
        return jax.tree.map(lambda own: self.wide if own else self.dtype, self.stages.trained)

    def state(self, params: Params) -> State:
        """A state at step 0 with these master weights. For use under `jax.jit`."""
        zero = jnp.zeros((), jnp.int32)
        opt = self.optimizer.init(self.stages.own(params))
        return {"params": params, "opt": opt, "step": zero, "skipped": zero, "skipped_total": zero}

    def saved(self, state: State) -> State:
        """What a checkpoint holds of a state, or of a tree like it: all but the frozen parameters."""
        return state | {"params": self.stages.own(state["params"])}

    # --- the step -----------------------------------------------------------------------------

    @functools.cached_property
    def step(self) -> Any:
        """(state, batch) -> (state, metrics); the state's buffers are donated."""
        metrics = NamedSharding(self.mesh, P())
        return jax.jit(self._step, donate_argnums=0, out_shardings=(self.state_shardings, metrics))

    def compile(self, state: State, batch: dict[str, jax.Array], options: dict[str, Any] | None = None) -> Any:
        """`step` compiled for arguments like these. Raises MeshkitError when it would hang (see `gates`)."""
        compiled = self.step.lower(state, batch).compile(options)
        gates.check(compiled, self.mesh)
        return compiled

    def _step(self, state: State, batch: dict[str, jax.Array]) -> tuple[State, dict[str, jax.Array]]:
        loss, tokens, gradients = self.gradients(state["params"], batch, state["step"])
        with jax.named_scope("update"):
            norm = optax.tree.norm(gradients)
            finite = jnp.isfinite(norm) & jnp.isfinite(loss)
            clip = self.config.optimizer.clip_norm
            scale = 1.0 if clip == 0 else jnp.minimum(1.0, clip / norm).astype(norm.dtype)
            own = self.stages.own(state["params"])
            updates, opt = self.optimizer.update(jax.tree.map(lambda g: g * scale, gradients), state["opt"], own)
            changed, kept = (optax.apply_updates(own, updates), opt), (own, state["opt"])
            # A step with gradients that are not finite changes nothing but its counters.
            own, opt = jax.tree.map(lambda new, old: jnp.where(finite, new, old), changed, kept)
        new = {
            "params": joined(own, state["params"]),
            "opt": opt,
            "step": state["step"] + 1,
            "skipped": jnp.where(finite, 0, state["skipped"] + 1),
            "skipped_total": state["skipped_total"] + jnp.where(finite, 0, 1),
        }
        metrics = {"loss": loss, "grad_norm": norm, "target_tokens": tokens}
        return new, metrics | {name: new[name] for name in ("skipped", "skipped_total")}

    def gradients(
        self, params: Params, batch: dict[str, jax.Array], step: jax.Array
    ) -> tuple[jax.Array, jax.Array, Params]:
        """Mean loss of a target token, target tokens, and gradients of what is trained, in the master layout.

        For use under `jax.jit`.
        """
        pipeline = self._pipeline(self.schedule)
        key = jax.random.fold_in(jax.random.key(self.config.seed), step)

        def region(master: Params, local: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array, Params]:
            with jax.named_scope("gather_weights"):
                working = self.zero.working(master, self.dtype)
            tokens, shared = self._shared(local)
            accumulators = self.zero.accumulators(master, working, self.accumulated)
            loss, gradients = pipeline.run(working, accumulators, shared, key)
            with jax.named_scope("reduce_gradients"):
                loss, gradients = self.zero.reduced(loss, gradients)
                gradients = jax.tree.map(lambda g: g.astype(self.wide), gradients)
            return loss, tokens, gradients

        own_specs = self.stages.own(self.master_specs)
        return self._manual(region, (P(), P(), sharding.manual(own_specs)))(params, batch)

    # --- evaluation ---------------------------------------------------------------------------

    @functools.cached_property
    def evaluate(self) -> Any:
        """(params, batch) -> {"loss": sum of token losses, "tokens": how many}, without dropout."""
        stages, chunks = self.mesh.shape[PIPE], self.config.pipeline.virtual
        pipeline = self._pipeline(builders.forward_only(stages, self.config.pipeline.microbatches, chunks))

        def region(master: Params, local: dict[str, jax.Array]) -> dict[str, jax.Array]:
            tokens, shared = self._shared(local)
            loss, _ = pipeline.run(self.zero.working(master, self.dtype), {}, shared, key=None)
            return {"loss": collectives.psum(loss, DATA) * tokens, "tokens": tokens}

        return jax.jit(self._manual(region, P()), out_shardings=NamedSharding(self.mesh, P()))

    # --- parts --------------------------------------------------------------------------------

    @functools.cached_property
    def schedule(self) -> Schedule:
        """The table that a step runs."""
        return builders.from_config(self.config.pipeline, self.mesh.shape[PIPE])

    def _pipeline(self, schedule: Schedule) -> Pipeline:
        return Pipeline(
            stages=self.stages,
            schedule=schedule,
            recompute=self.config.recompute,
            unroll=self.config.pipeline.unroll,
            loss=self.loss,
            zero=self.zero,
            kept_in=memory.Space.Host if self.config.offload else memory.Space.Device,
        )

    def _manual(self, region: Any, out_specs: Any) -> Any:
        specs = sharding.manual(self.master_specs), P(None, DATA)
        return jax.shard_map(
            region, mesh=self.mesh, in_specs=specs, out_specs=out_specs, axis_names={DATA, PIPE}, check_vma=False
        )

    def _shared(self, local: dict[str, jax.Array]) -> tuple[jax.Array, Batch]:
        """Target tokens of the global batch, and this replica's batch.

        Dividing by the global number makes the loss the same on any mesh, whatever the masks.
        """
        weights = local["weights"]
        tokens = collectives.psum(weights.sum(dtype=self.wide), DATA)
        M, B, _ = weights.shape
        row = collectives.axis_index(DATA) * B + jnp.arange(B)
        samples = jnp.arange(M)[:, None] * (B * self.mesh.shape[DATA]) + row
        # A batch without any target has loss 0.
        scale = jnp.where(tokens > 0, 1 / tokens, 0)
        share = 1 / (M * B * self.mesh.shape[DATA])
        return tokens, Batch(local["tokens"], local["targets"], weights, samples, scale, share, local.get("segments"))


def vocab_multiple(mesh: Mesh) -> int:
    """Tables are padded to a multiple of this, so that pipe × tensor devices hold equal parts."""
    return mesh.shape[PIPE] * mesh.shape[TENSOR]
