"""What a run says before its first step and after its last."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshkit.config import RunConfig
from meshkit.data.baselines import ngram_losses
from meshkit.data.sources import Sources
from meshkit.errors import counted
from meshkit.mesh import node_of
from meshkit.pipeline.costs import action_costs
from meshkit.pipeline.stage import canonical
from meshkit.planner.forecast import forecast
from meshkit.train_step import TrainStep

COUNTED_TOKENS = 1 << 26
"""N-gram models are counted on text of at most so many tokens (seconds); above it they are not shown."""


def opening(step: TrainStep, sources: Sources) -> Iterator[str]:
    """Lines before the first step: model, mesh, batch, and the losses that counting would give."""
    config, devices = step.config, jax.devices()
    layers = step.stages.placement.layers
    own, frozen = _parameters(step)
    size = f"{frozen:,} parameters, and {own:,} of adapters" if frozen else f"{own:,} parameters"
    yield f"model {config.model.preset}: {size} in {layers} layers, {config.precision}"
    simulated = "simulated " if config.devices else ""
    yield f"mesh {config.mesh} on {counted(len(devices), f'{simulated}device')} ({devices[0].device_kind})"
    yield (
        f"batch {config.data.batch} × {config.data.sequence} tokens = {counted(config.mesh.data, 'replica')} × "
        f"{counted(config.pipeline.microbatches, 'microbatch')} × "
        f"{counted(config.microbatch_size(config.mesh.data), 'sample')}, "
        f"schedule {config.pipeline.schedule}"
    )
    baselines = _baselines(sources)
    yield from ineffective(config, devices[0].platform)
    if baselines:
        yield "held-out loss of counting: " + "  ".join(f"{name} {loss:.4f}" for name, loss in baselines.items())


def ineffective(config: RunConfig, platform: str) -> list[str]:
    """What a config asks for and devices of a platform cannot give."""
    no_host = config.offload and platform == "cpu"
    return ["offload = true: on cpu the memory of host and device is one, so it saves nothing"] if no_host else []


def summary(
    step: TrainStep, compiled: Any, history: list[dict[str, float]], steps: int, sources: Sources, run_dir: Path
) -> dict[str, Any]:
    """The end of a run of `steps` steps as a dict for JSON; the same on every process.

    memory_bytes: XLA's peak for one device (arguments, results, temporaries). bubbles: idle share of the time of
    the stages, with the layers that each has: of an ideal pipeline, and of this table in lock-step. losses: nats a
    token. predicted_…: what the planner expected, or why it did not. Without `compiled` (None: there was no step
    left) no memory, without a last evaluation no held-out loss.
    """
    config, schedule, shares = step.config, step.schedule, step.stages.placement.shares
    steady = [record["tokens_per_second"] for record in history[1:]] or [history[-1]["tokens_per_second"]]
    return {
        "mesh": config.mesh.sizes,
        "schedule": f"{config.pipeline.schedule}, {counted(config.pipeline.microbatches, 'microbatch')}",
        "ideal_bubble": schedule.ideal_bubble(shares),
        "simulated_bubble": schedule.bubble(action_costs(schedule, config.recompute), shares),
        **({"memory_bytes_a_device": peak_bytes(compiled)} if compiled is not None else {}),
        "tokens_per_second": float(np.median(steady)),
        "step_seconds": config.data.batch * config.data.sequence / float(np.median(steady)),
        **_predicted(step),
        "skipped_steps": int(history[-1]["skipped_total"]),
        **{name: history[-1][name] for name in ("loss", "held_out_loss") if name in history[-1]},
        **({"held_out_loss_of_counting": baselines} if (baselines := _baselines(sources)) else {}),
        "steps": steps,
        "run_dir": str(run_dir),
    }


def _predicted(step: TrainStep) -> dict[str, Any]:
    devices = step.mesh.devices.flat
    found = forecast(
        step.config, step.stages.vocab, sum(_parameters(step)), devices[0].device_kind, [node_of(d) for d in devices]
    )
    said = {
        "predicted_step_seconds": found.step_seconds,
        "predicted_memory_bytes_a_device": found.memory_bytes and int(found.memory_bytes),
        "not_predicted": found.why or None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _parameters(step: TrainStep) -> tuple[int, int]:
    """How many are trained and how many frozen, without what pads the model's stacks and tables."""
    stages = step.stages
    shapes = jax.eval_shape(lambda params: canonical(params, stages), stages.shapes)
    own, frozen = (
        sum(math.prod(shape.shape) for shape in jax.tree.leaves(part))
        for part in (stages.own(shapes), stages.frozen(shapes))
    )
    return own, frozen


def peak_bytes(compiled: Any) -> int:
    """XLA's peak memory of a compiled program on one device."""
    memory = compiled.memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.argument_size_in_bytes + results + memory.temp_size_in_bytes)


def _baselines(sources: Sources) -> dict[str, float]:
    """Of one data set whose vocabulary is known and which is not too large; none of others."""
    if len(sources.files) != 1 or sources.vocab is None or sources.files[0][0].tokens.size > COUNTED_TOKENS:
        return {}
    return ngram_losses(*sources.files[0])
