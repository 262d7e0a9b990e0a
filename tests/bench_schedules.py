"""Step time of every schedule and memory policy over what its table predicts: a part of `make bench`.

And of ZeRO's levels and a narrow sum of gradients, on D=2 P=2: seconds and memory, beside each other.

Simulated devices share the machine's cores, so that a bubble of one stage is time for another. Hence each
device computes on one thread, and the prediction is of that machine: a tick lasts as long as its busiest
stage, or as the work of all stages on so many cores. The unit is taken from one device without pipeline.

Run as `python -m tests.bench_schedules`; prints JSON, and on stderr how far it is.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

STAGES, MICROBATCHES = 4, (8, 16, 32)
SIZES = dict(layers=8, width=192, heads=8, kv_heads=4, mlp_width=512, vocab=512)
SEQUENCE, ROUNDS = 128, 5
SCHEDULES = {
    "gpipe": dict(schedule="gpipe"),
    "1f1b": dict(schedule="1f1b"),
    "interleaved, v=2": dict(schedule="interleaved", virtual=2),
    "zero-bubble": dict(schedule="zero-bubble"),
}
POLICIES = ("full", "selective", "none")
REPLICAS: dict[str, dict[str, Any]] = {
    **{f"zero = {level}": dict(zero=level) for level in range(4)},
    "zero = 1, grad_dtype = bfloat16": dict(zero=1, grad_dtype="bfloat16"),
}


def main() -> None:
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
    from meshkit.simulate import simulate_cpu_devices

    simulate_cpu_devices(STAGES)
    alone = run_config(MICROBATCHES[0], stages=1)
    by_schedule = {(name, m): run_config(m, **pipeline) for m in MICROBATCHES for name, pipeline in SCHEDULES.items()}
    by_policy = {policy: run_config(MICROBATCHES[0], policy, schedule="1f1b") for policy in POLICIES}
    by_replicas = {name: run_config(MICROBATCHES[0], data=2, stages=2, keys=keys) for name, keys in REPLICAS.items()}
    figures = measure({"alone": alone, **by_schedule, **by_policy, **by_replicas})
    unit = figures["alone"]["seconds"] / figures["alone"]["work"]  # of a forward of one of STAGES stages
    print(
        json.dumps(
            {
                "schedules": [
                    {"schedule": name, "microbatches": m, **compared(figures[name, m], unit)} for name, m in by_schedule
                ],
                "policies": [{"recompute": policy, **compared(figures[policy], unit)} for policy in by_policy],
                "replicas": [
                    {
                        "keys": name,
                        "seconds": figures[name]["seconds"],
                        "mebibytes_a_device": figures[name]["mebibytes"],
                    }
                    for name in by_replicas
                ],
            }
        )
    )


def run_config(
    m: int,
    recompute: str = "none",
    stages: int = STAGES,
    data: int = 1,
    keys: dict[str, Any] | None = None,
    **pipeline: Any,
) -> Any:
    """m microbatches of one sample a replica; `keys`: others of the config."""
    from meshkit import config

    return config.load(
        {
            **(keys or {}),
            "mesh": {"data": data, "tensor": 1, "pipe": stages},
            "pipeline": {"microbatches": m, **pipeline},
            "precision": "float32",
            "recompute": recompute,
            "model": {"preset": "tiny", **SIZES},
            "data": {"sequence": SEQUENCE, "batch": m * data},
        }
    )


def compared(figure: dict[str, float], unit: float) -> dict[str, float]:
    """A contender's figures beside the prediction, with `unit` seconds for a forward of a stage."""
    predicted = unit * figure["ticks"]
    return {
        "seconds": figure["seconds"],
        "predicted_seconds": predicted,
        "ratio": figure["seconds"] / predicted,
        "mebibytes_a_device": figure["mebibytes"],
    }


def measure(configs: dict[Any, Any]) -> dict[Any, dict[str, float]]:
    """Median seconds of a step, ticks and work by the table, peak memory; the steps of all taken in turn."""
    contenders, figures = {}, {}
    for i, (name, config) in enumerate(configs.items()):
        print(f"\rcompiling {i + 1} of {len(configs)}", end="", file=sys.stderr, flush=True)
        contenders[name], figures[name] = contender(config)
    seconds: dict[Any, list[float]] = {name: [] for name in contenders}
    for i in range(1 + ROUNDS):
        print(f"\rround {i + 1} of {1 + ROUNDS}    ", end="", file=sys.stderr, flush=True)
        for name, (step, state, batch) in contenders.items():
            start = time.perf_counter()
            contenders[name] = step, _wait(step(state, batch))[0], batch
            seconds[name].append(time.perf_counter() - start)
    print(file=sys.stderr)
    for name, times in seconds.items():
        figures[name]["seconds"] = statistics.median(times[1:])  # the first warms up
    return figures


def contender(config: Any) -> tuple[tuple[Any, Any, Any], dict[str, float]]:
    """(compiled step, its state, a batch), and what its table and its program say."""
    import jax
    import numpy as np

    from meshkit import assemble, mesh
    from meshkit.report import peak_bytes

    step = assemble.train_step(config, mesh.build(config.mesh, jax.devices()[: config.mesh.devices]))
    shape = config.pipeline.microbatches, config.mesh.data, SEQUENCE + 1
    tokens = np.random.default_rng(0).integers(0, SIZES["vocab"], shape).astype(np.int32)
    batch = {
        "tokens": tokens[..., :-1],
        "targets": tokens[..., 1:],
        "weights": np.ones_like(tokens[..., 1:], np.float32),
    }
    batch = {name: jax.device_put(array, step.batch_sharding) for name, array in batch.items()}
    state = step.init(0)
    compiled = step.compile(state, batch)
    columns = list(column_costs(step))
    cores = os.cpu_count() or 1
    return (compiled, state, batch), {
        "work": STAGES / config.mesh.pipe * sum(map(sum, columns)),
        "ticks": sum(max(*column, sum(column) / cores) for column in columns),
        "mebibytes": peak_bytes(compiled) / 2**20,
    }


def column_costs(step: Any) -> Iterator[list[float]]:
    """For each tick the work of each stage, in forwards of a stage, and a zero."""
    from meshkit.pipeline.costs import action_costs

    schedule = step.schedule
    costs = action_costs(schedule, step.config.recompute)
    for column in schedule.cells:
        yield [sum(costs[action.kind] for action in actions) / schedule.chunks for actions in column] + [0.0]


def _wait(result: Any) -> Any:
    import jax

    return jax.block_until_ready(result)


if __name__ == "__main__":
    main()
