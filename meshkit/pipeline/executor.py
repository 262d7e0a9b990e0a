"""Runs a Schedule: one scan over ticks, whatever the table says.

The function `run` is traced inside `jax.shard_map` with data and pipe manual and tensor left to the
compiler. A tick does, in this order: look up the embedding of the microbatch that enters; forward;
loss of the microbatch that leaves; backward; gradient of the embedding; hand over to the neighbours.

Shapes: M microbatches, B microbatch size, S sequence, H width, V vocabulary.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from meshkit.mesh import PIPE, TENSOR
from meshkit.pipeline import recompute as rc
from meshkit.pipeline import vocab
from meshkit.pipeline.batch import Batch
from meshkit.pipeline.buffers import MESH_GATE, STAGE_GATE, Space, empty_activations, gate, get, put, put_if
from meshkit.pipeline.chunks import Chunk, LayerMoves, chunk_of, parted, whole
from meshkit.pipeline.collectives import after, axis_index, axis_size, psum, shift, widened
from meshkit.pipeline.context import Context
from meshkit.pipeline.schedule import IDLE, Schedule
from meshkit.pipeline.slots import PHASE, Phase, SlotTable, allocate, phases
from meshkit.pipeline.stage import Params, Stages, outer

Here = dict[str, Any]
"""A column of the slot table as one stage sees it: name -> int32 scalar (see `slots.Columns`)."""


class Carry(NamedTuple):
    """What goes from tick to tick."""

    inputs: jax.Array  # [slot, B, S, H] stage inputs that wait for their forward
    kept: Any  # what forwards keep for their backwards, leaves [slot, …]
    gradients: jax.Array  # [slot, B, S, H] gradients of stage outputs that wait for their backward
    held: Any  # what input gradients hold for their weight gradients, leaves [slot, layer, …]
    y_BSH: jax.Array  # this tick's forward result, for the hop
    dx_BSH: jax.Array  # this tick's backward result, for the hop
    accumulators: Params  # gradients of the parameters, added up so far
    loss: jax.Array


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A model, a schedule and a memory policy: all that the executor needs besides arrays.

    recompute: a key of `recompute.POLICIES`. unroll: layers unrolled in a trip of the layer loop.
    kept_in: the memory, device or host, for what forwards keep for their backwards.
    zero: how a layer's weights are fetched for use and its gradient deposited.
    """

    stages: Stages
    schedule: Schedule
    recompute: str
    unroll: int
    loss: vocab.TokenLoss | None
    zero: LayerMoves
    kept_in: Space

    def run(
        self, params: Params, accumulators: Params, batch: Batch, key: jax.Array | None
    ) -> tuple[jax.Array, Params]:
        """Sum of weighted losses of this replica, and `accumulators` with its gradients added.

        An evaluation schedule, without backwards, takes and gives an empty tree of them; any other, those of the
        trained parameters. The loss is the same on every stage and tensor peer. Gradients of blocks and tables are
        those of this stage's slice; of all others the same on every stage.
        """
        slots = allocate(self.schedule)
        run = _Run(self, params, batch, key)
        if self.schedule.trains:
            accumulators = accumulators | {"blocks": parted(self.stages.placement, self.unroll, accumulators["blocks"])}
        carry = run.empty(slots, accumulators)
        for number, phase in enumerate(phases(slots.columns)):
            columns = dataclasses.asdict(slots.columns[phase.start : phase.stop])
            tick = functools.partial(run.tick, phase)
            with jax.named_scope(f"{PHASE}_{number}"):
                carry, _ = lax.scan(tick, carry, jax.tree.map(jnp.asarray, columns))
        if not self.schedule.trains:
            return carry.loss, {}
        return carry.loss, carry.accumulators | {"blocks": whole(carry.accumulators["blocks"])}


@dataclasses.dataclass(frozen=True)
class _Run:
    """One trace of a Pipeline over given arrays."""

    pipeline: Pipeline
    params: Params
    batch: Batch
    key: jax.Array | None

    # --- one tick -----------------------------------------------------------------------------

    def tick(self, phase: Phase, carry: Carry, columns: Here) -> tuple[Carry, None]:
        stage = axis_index(PIPE)
        here = {name: column[stage] if column.ndim else column for name, column in columns.items()}
        # A hop of two ticks sends what the tick before made, while this one computes.
        arrived = self._sent(phase, carry) if self.pipeline.schedule.hop == 2 else None
        for scope, name, action in (
            (MESH_GATE, "embed", self._embed),
            (STAGE_GATE, "forward", self._forward),
            (MESH_GATE, "head", self._head),
            (STAGE_GATE, "backward", self._input_gradient if self.pipeline.schedule.splits else self._backward),
            (STAGE_GATE, "weight", self._weight_gradient),
            (MESH_GATE, "embed_gradient", self._embed_gradient),
        ):
            if name == "embed_gradient" and not self._trains_the_entrance:
                continue
            with jax.named_scope(name):
                carry = gate(scope, phase.occurs[name], here[name], functools.partial(action, here), carry)
            here = self._after(carry, here)
        x_BSH, dy_BSH = self._sent(phase, carry) if arrived is None else arrived
        if x_BSH is not None:
            slot = here["arrival"]
            carry = carry._replace(inputs=put_if(slot != IDLE, carry.inputs, x_BSH, slot))
        if dy_BSH is not None:
            slot = here["gradient_arrival"]
            carry = carry._replace(gradients=put_if(slot != IDLE, carry.gradients, dy_BSH, slot))
        return carry, None

    def _sent(self, phase: Phase, carry: Carry) -> tuple[jax.Array | None, jax.Array | None]:
        """The hop: activations to the next stage, gradients to the one before; what arrives here, if anything."""
        x_BSH = dy_BSH = None
        if phase.occurs["arrival"] != "never":
            with jax.named_scope("hop_forward"):
                x_BSH = shift(carry.y_BSH, PIPE, +1)
        if phase.occurs["gradient_arrival"] != "never":
            with jax.named_scope("hop_backward"):
                dy_BSH = shift(carry.dx_BSH, PIPE, -1)
        return x_BSH, dy_BSH

    def _after(self, carry: Carry, here: Here) -> Here:
        """`here` for the next action of the tick, whose exchanges begin when those of the last one are done."""
        made = carry.inputs, carry.gradients, carry.y_BSH, carry.dx_BSH, carry.loss
        slots, cut = P(None, None, TENSOR), P(None, TENSOR)
        order = after(jnp.zeros((), jnp.int32), made, (slots, slots, cut, cut, P()))
        return {name: index + order for name, index in here.items()}

    # --- actions of one stage -----------------------------------------------------------------

    def _forward(self, here: Here, carry: Carry) -> Carry:
        chunk = self._chunk(here["forward"], here["forward_chunk"])
        x_BSH, kept, slot = get(carry.inputs, here["input_slot"]), carry.kept, here["keep_slot"]
        if self._saves_layers:
            y_BSH, kept = rc.run_forward(*self._how, chunk, self._blocks, x_BSH, kept, slot)
        else:
            if self.pipeline.schedule.trains:
                kept = put(kept, x_BSH, slot)
            y_BSH = rc.forward_only(self.pipeline.stages.block, chunk, self._blocks, x_BSH)
        return carry._replace(y_BSH=y_BSH, kept=kept)

    def _backward(self, here: Here, carry: Carry) -> Carry:
        chunk = self._chunk(here["backward"], here["backward_chunk"])
        dy_BSH, (kept, slot) = get(carry.gradients, here["gradient_slot"]), self._saved(here, carry, chunk)
        gradients = carry.accumulators["blocks"]
        dx_BSH, gradients = rc.run_backward(*self._how, chunk, self._blocks, gradients, dy_BSH, kept, slot)
        return carry._replace(dx_BSH=dx_BSH, accumulators=carry.accumulators | {"blocks": gradients})

    def _input_gradient(self, here: Here, carry: Carry) -> Carry:
        chunk = self._chunk(here["backward"], here["backward_chunk"])
        dy_BSH, (kept, slot) = get(carry.gradients, here["gradient_slot"]), self._saved(here, carry, chunk)
        hold = carry.held, here["hold_slot"]
        dx_BSH, held = rc.run_input_gradient(*self._how, chunk, self._blocks, dy_BSH, kept, slot, *hold)
        return carry._replace(dx_BSH=dx_BSH, held=held)

    def _weight_gradient(self, here: Here, carry: Carry) -> Carry:
        chunk = self._chunk(here["weight"], here["weight_chunk"])
        gradients, hold = carry.accumulators["blocks"], (carry.held, here["held_slot"])
        gradients = rc.run_weight_gradient(*self._how, chunk, self._blocks, gradients, carry.dx_BSH, *hold)
        return carry._replace(accumulators=carry.accumulators | {"blocks": gradients})

    def _saved(self, here: Here, carry: Carry, chunk: Chunk) -> tuple[Any, Any]:
        """What the layers of a chunk saved going forward, and the slot it is in; made again if need be."""
        kept, slot = carry.kept, here["kept_slot"]
        if self._saves_layers:
            return kept, slot
        x_BSH = get(kept, slot)
        again = rc.empty(*self._how, chunk, self._blocks, x_BSH, slots=1)
        return rc.run_forward(*self._how, chunk, self._blocks, x_BSH, again, 0)[1], 0

    # --- actions of the whole mesh ------------------------------------------------------------

    def _embed(self, here: Here, carry: Carry) -> Carry:
        """All stages look up their rows of the entering microbatch; stage 0 takes the sum."""
        x_BSH = self._lookup(here["embed"])
        x_BSH = self.pipeline.stages.enter(outer(self.params), self.params, x_BSH, self._entering(here["embed"]))
        return carry._replace(inputs=put_if(axis_index(PIPE) == 0, carry.inputs, x_BSH, here["embed_slot"]))

    def _head(self, here: Here, carry: Carry) -> Carry:
        """All stages take their slice of the leaving microbatch's logits; the last one gets dy."""
        stages, params, i = self.pipeline.stages, self.params, here["head"]
        last = axis_index(PIPE) == axis_size(PIPE) - 1
        y_BSH = psum(jnp.where(last, carry.y_BSH, 0), PIPE)  # the last stage's output, to every stage
        h_BSH, pullback = jax.vjp(lambda own, y: stages.leave(own, params, y), stages.own(outer(params)), y_BSH)
        name = "embed" if stages.tied else "head"
        table = params[name]["table"]
        labels = self.batch.targets_MBS[i], self.batch.weights_MBS[i] * self.batch.scale
        own_loss = self.pipeline.loss
        if not self.pipeline.schedule.trains:
            loss = vocab.head_loss(table, h_BSH, *labels, stages.vocab, own_loss, stages.cap)
            return carry._replace(loss=carry.loss + loss)
        grad = carry.accumulators[name]["table"] if name in carry.accumulators else None
        done = vocab.head(table, grad, h_BSH, *labels, stages.vocab, own_loss, stages.cap)
        douter, dy_BSH = pullback(done.dh_BsH)
        trained = {name: {"table": done.grad_vH}} if name in carry.accumulators else {}
        return carry._replace(
            loss=carry.loss + done.loss,
            accumulators=_added(carry.accumulators, douter) | trained,
            gradients=put_if(last, carry.gradients, dy_BSH, here["head_slot"]),
        )

    def _embed_gradient(self, here: Here, carry: Carry) -> Carry:
        """Stage 0's dx, to every stage: each adds it to the rows that it holds."""
        stages, params, i = self.pipeline.stages, self.params, here["embed_gradient"]
        dx_BSH = psum(jnp.where(axis_index(PIPE) == 0, carry.dx_BSH, 0), PIPE)
        entering = self._entering(i)
        enter = lambda own, x_BSH: stages.enter(own, params, x_BSH, entering)
        _, pullback = jax.vjp(enter, stages.own(outer(params)), self._lookup(i))
        douter, dx_BSH = pullback(dx_BSH)
        gradients = _added(carry.accumulators, douter)
        if "embed" in gradients:
            table = vocab.lookup_grad(gradients["embed"]["table"], self.batch.tokens_MBS[i], dx_BSH)
            gradients |= {"embed": {"table": table}}
        return carry._replace(accumulators=gradients)

    # --- parts --------------------------------------------------------------------------------

    def empty(self, slots: SlotTable, accumulators: Params) -> Carry:
        """The carry before the first tick."""
        _, B, S = self.batch.tokens_MBS.shape
        table_vH = self.params["embed"]["table"]
        x_BSH = empty_activations((), jax.ShapeDtypeStruct((B, S, table_vH.shape[1]), table_vH.dtype))
        kept: Any = empty_activations((slots.kept,), x_BSH, self.pipeline.kept_in)
        if self._saves_layers:
            kept = rc.empty(*self._how, self._chunk(0, 0), self._blocks, x_BSH, slots.kept, self.pipeline.kept_in)
        held = []
        if self.pipeline.schedule.splits:
            held = rc.empty_held(*self._how, self._chunk(0, 0), self._blocks, x_BSH, slots.held)
        return Carry(
            inputs=empty_activations((slots.inputs,), x_BSH),
            kept=kept,
            gradients=empty_activations((slots.gradients,), x_BSH),
            held=held,
            y_BSH=x_BSH,
            dx_BSH=x_BSH,
            accumulators=accumulators,
            loss=jnp.zeros((), widened(x_BSH).dtype),
        )

    @property
    def _saves_layers(self) -> bool:
        """Whether a forward saves by the layer, or the stage's input alone."""
        # With the backward in the forward's own tick, one slot of layer inputs costs what recomputing
        # the stage would take as a temporary, and saves a forward.
        schedule = self.pipeline.schedule
        return schedule.trains and (self.pipeline.recompute != "full" or schedule.backward_at_once)

    @property
    def _trains_the_entrance(self) -> bool:
        """Whether anything before the first block may have a gradient."""
        return bool(self.pipeline.stages.own(self.params).keys() - {"blocks", "head"})

    @property
    def _how(self) -> tuple[rc.LayerPolicy, rc.Block]:
        return rc.POLICIES[self.pipeline.recompute], self.pipeline.stages.block

    @property
    def _blocks(self) -> Params:
        return self.params["blocks"]

    def _lookup(self, microbatch: jax.Array) -> jax.Array:
        return vocab.lookup(self.params["embed"]["table"], self.batch.tokens_MBS[microbatch])

    def _entering(self, microbatch: jax.Array) -> Context:
        return self.batch.context(self.key, microbatch, -1)

    def _chunk(self, microbatch: Any, chunk: Any) -> Chunk:
        pipeline = self.pipeline
        context = functools.partial(self.batch.context, self.key, microbatch)
        return chunk_of(pipeline.stages.placement, pipeline.unroll, pipeline.zero, chunk, context)


def _added(accumulated: Params, gradient: Params) -> Params:
    added = {k: jax.tree.map(lambda a, g: a + g.astype(a.dtype), accumulated[k], gradient[k]) for k in gradient}
    return accumulated | added
