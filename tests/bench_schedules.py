"""Step time of every schedule and memory policy over what its table predicts: a part of `make bench`.

Simulated devices share the machine's cores, so that a bubble of one stage is time for another. Hence each
device computes on one thread, and the prediction is of that machine: a tick lasts as long as its busiest
stage, or as the work of all stages on so many cores. The unit is taken from one device without pipeline.

Run as `python -m tests.bench_schedules`; prints JSON.
"""

import json
import os
import statistics
import time
from collections.abc import Iterable
from typing import Any

STAGES, MICROBATCHES = 4, (8, 16, 32)
SIZES = dict(layers=8, width=192, heads=8, kv_heads=4, mlp_width=512, vocab=512)
SEQUENCE, ROUNDS = 128, 3
SCHEDULES = {
    "gpipe": dict(schedule="gpipe"),
    "1f1b": dict(schedule="1f1b"),
    "interleaved, v=2": dict(schedule="interleaved", virtual=2),
    "zero-bubble": dict(schedule="zero-bubble"),
}
POLICIES = ("full", "selective", "none")


def main() -> None:
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
    from meshkit.simulate import simulate_cpu_devices

    simulate_cpu_devices(STAGES)
    rows = [
        {"schedule": name, **row}
        for m in MICROBATCHES
        for name, row in measure({name: run_config(m, **pipeline) for name, pipeline in SCHEDULES.items()}, m)
    ]
    m = MICROBATCHES[0]
    policies = measure({policy: run_config(m, policy, schedule="1f1b") for policy in POLICIES}, m)
    print(json.dumps({"schedules": rows, "policies": [{"recompute": name, **row} for name, row in policies]}))


def run_config(m: int, recompute: str = "none", stages: int = STAGES, **pipeline: Any) -> Any:
    from meshkit import config

    return config.load(
        {
            "mesh": {"data": 1, "tensor": 1, "pipe": stages},
            "pipeline": {"microbatches": m, **pipeline},
            "precision": "float32",
            "recompute": recompute,
            "model": {"preset": "tiny", **SIZES},
            "data": {"sequence": SEQUENCE, "batch": m},
        }
    )


def measure(configs: dict[str, Any], m: int) -> Iterable[tuple[str, dict[str, float]]]:
    """Each contender's (name, figures), the steps of all taken in turn, one device's among them."""
    alone = "one device"
    contenders = {name: contender(config) for name, config in {alone: run_config(m, stages=1), **configs}.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(1 + ROUNDS):
        for name, (compiled, state, batch, _) in contenders.items():
            start = time.perf_counter()
            contenders[name][1], _ = _wait(compiled(state, batch))
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}  # the first warms up
    unit = medians[alone] / work(contenders[alone][3])
    for name, (compiled, *_, step) in contenders.items():
        if name != alone:
            predicted = unit * ticks(step)
            yield (
                name,
                {
                    "microbatches": m,
                    "predicted_seconds": predicted,
                    "seconds": medians[name],
                    "ratio": medians[name] / predicted,
                    "mebibytes_a_device": peak(compiled) / 2**20,
                },
            )


def contender(config: Any) -> list[Any]:
    """[compiled step, its state, a batch, the TrainStep]."""
    import jax
    import numpy as np

    from meshkit import assemble, mesh

    step = assemble.train_step(config, mesh.build(config.mesh, jax.devices()[: config.mesh.devices]))
    shape = config.pipeline.microbatches, 1, SEQUENCE + 1
    tokens = np.random.default_rng(0).integers(0, SIZES["vocab"], shape).astype(np.int32)
    batch = {
        "tokens": tokens[..., :-1],
        "targets": tokens[..., 1:],
        "weights": np.ones_like(tokens[..., 1:], np.float32),
    }
    batch = {name: jax.device_put(array, step.batch_sharding) for name, array in batch.items()}
    state = step.init(0)
    return [step.compile(state, batch), state, batch, step]


# --- the prediction --------------------------------------------------------------------------------


def ticks(step: Any) -> float:
    """Forwards of a stage that the step lasts, by its table, on the cores of this machine."""
    total = 0.0
    for column in _costs(step):
        total += max(*column, sum(column) / (os.cpu_count() or 1))
    return total


def work(step: Any) -> float:
    """Forwards of one of STAGES stages that a single device does in a step."""
    return STAGES * sum(sum(column) for column in _costs(step))


def _costs(step: Any) -> Iterable[list[float]]:
    """For each tick the work of each stage, in forwards of a stage."""
    from meshkit.pipeline.costs import action_costs

    schedule = step.schedule
    costs = action_costs(schedule, step.config.recompute)
    for column in schedule.cells:
        yield [sum(costs[action.kind] for action in actions) / schedule.chunks for actions in column] + [0.0]


def peak(compiled: Any) -> int:
    from meshkit.report import peak_bytes

    return peak_bytes(compiled)


def _wait(result: Any) -> Any:
    import jax

    return jax.block_until_ready(result)


if __name__ == "__main__":
    main()
