"""How fast: `make bench`. Ratios of medians, the contenders taken in turn in one process.

The rival is what one would write without meshkit: one `jax.jit`, layers in a Python loop, gradients
accumulated over the microbatches (as a scan and unrolled; the faster counts), the same AdamW. It runs
on one of the simulated devices. All share the cores of one machine, so the (2, 2, 2) mesh does the
same work with the same cores: its ratio is the price of being cut. Then schedules and memory
policies, each over what its table predicts: bench_schedules.py.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEVICES, MICROBATCHES = 8, 8
SIZES = dict(
    full=dict(layers=8, width=256, heads=8, kv_heads=4, mlp_width=704, vocab=4096, sequence=256, batch=32),
    small=dict(layers=4, width=128, heads=8, kv_heads=4, mlp_width=352, vocab=512, sequence=64, batch=16),
)
AIMS = {"meshkit (1,1,1)": 1.05, "meshkit (2,2,2)": 1.3}
Step = Callable[[Any, Any], tuple[Any, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--small", action="store_true", help="a smaller model, no schedules: in a minute")
    parser.add_argument("--rounds", type=int, default=7, help="timed steps of each contender")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), help="where the figures are written")
    parser.add_argument("--first-step", action="store_true", help=argparse.SUPPRESS)  # the child
    options = parser.parse_args()
    sizes = SIZES["small" if options.small else "full"]
    if options.first_step:
        print(first_step(sizes))
        return
    figures = {"model": sizes, "cores": os.cpu_count(), "import_seconds": import_seconds()}
    figures["first_step_seconds"] = first_step_in_a_new_process(options.small)
    figures["plan_seconds"] = plan_seconds()
    figures["steps"] = steps(sizes, options.rounds)
    if not options.small:
        figures |= json.loads(_python("-m", "tests.bench_schedules"))
    options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    show(figures)


# --- start -----------------------------------------------------------------------------------------


def import_seconds() -> float:
    """Seconds of `import meshkit` in a new process, without those of starting Python; no JAX comes with it."""
    program = (
        "import sys, time; start = time.perf_counter(); import meshkit; print(time.perf_counter() - start); "
        "assert 'jax' not in sys.modules"
    )
    return statistics.median(float(_python("-c", program)) for _ in range(5))


PLANS = (
    ("llama3-70b", "4096xh100", 512),
    ("llama3-405b", "16384xh100", 2048),
    ("llama3-405b", "15360xh100", 15360),
)
"""Model, cluster, global batch."""


def plan_seconds() -> dict[str, dict[str, float]]:
    """Plan -> seconds of the search in a process that has planned nothing before, and of the whole command."""
    found = {}
    for model, cluster, batch in PLANS:
        program = (
            "import sys, time, meshkit; from meshkit.planner import search; start = time.perf_counter(); "
            f"meshkit.plan(model={model!r}, cluster={cluster!r}, global_batch={batch}); "
            "print(time.perf_counter() - start)"
        )
        seconds = float(_python("-c", program))
        command = ("plan", "--model", model, "--cluster", cluster, "--global-batch", str(batch))
        start = time.perf_counter()
        _python("-m", "meshkit", *command)
        found[f"{model} on {cluster}"] = {"search": seconds, "command": time.perf_counter() - start}
    return found


def first_step_in_a_new_process(small: bool) -> float:
    """Seconds from a new process's start of work to the end of its first step on a (2, 2, 2) mesh."""
    return float(_python("-m", "tests.bench", "--first-step", *(["--small"] if small else [])))


def first_step(sizes: dict[str, int]) -> float:
    start = time.perf_counter()
    step, state, batch = meshkit_step(sizes, (2, 2, 2))
    _wait(step(state, batch))
    return time.perf_counter() - start


def _python(*arguments: str, **environment: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


# --- contenders ------------------------------------------------------------------------------------


def meshkit_step(sizes: dict[str, int], shape: tuple[int, int, int]) -> tuple[Any, Any, Any]:
    """A compiled train step, its state and a batch, on the first devices."""
    import jax

    from meshkit import assemble, mesh, simulate

    simulate.simulate_cpu_devices(DEVICES)
    config = run_config(sizes, shape)
    train = assemble.train_step(config, mesh.build(config.mesh, jax.devices()[: config.mesh.devices]))
    state = train.init(0)
    batch = {name: jax.device_put(array, train.batch_sharding) for name, array in random_batch(sizes).items()}
    return train.step.lower(state, batch).compile(), state, batch


def run_config(sizes: dict[str, int], shape: tuple[int, int, int]) -> Any:
    from meshkit import config

    model = {name: size for name, size in sizes.items() if name not in ("sequence", "batch")}
    return config.load(
        {
            "mesh": dict(zip(("data", "tensor", "pipe"), shape, strict=True)),
            "pipeline": {"microbatches": MICROBATCHES, "unroll": sizes["layers"]},
            "precision": "float32",
            "recompute": "none",
            "model": {"preset": "tiny", **model},
            "data": {"sequence": sizes["sequence"], "batch": sizes["batch"]},
        }
    )


def random_batch(sizes: dict[str, int]) -> dict[str, Any]:
    """[M, B, S] tokens, their followers, weights of one."""
    import numpy as np

    shape = MICROBATCHES, sizes["batch"] // MICROBATCHES, sizes["sequence"] + 1
    tokens = np.random.default_rng(0).integers(0, sizes["vocab"], shape).astype(np.int32)
    return {
        "tokens": tokens[..., :-1],
        "targets": tokens[..., 1:],
        "weights": np.ones_like(tokens[..., 1:], np.float32),
    }


def plain_step(sizes: dict[str, int], unrolled: bool) -> tuple[Any, Any, Any]:
    """The rival: no mesh, no pipeline, layers one after another in Python."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    from meshkit import optimizer
    from meshkit.models.build import builder
    from meshkit.models.presets import sizes as model_sizes
    from meshkit.pipeline.context import Context
    from meshkit.pipeline.stage import functional, initial

    config = run_config(sizes, (1, 1, 1))
    build = builder(model_sizes(config.model), 1)
    stages = functional(build)
    rule = optimizer.build(config.optimizer, config.steps, stages)

    def loss(params: Any, tokens_BS: jax.Array, targets_BS: jax.Array) -> jax.Array:
        model = stages.model(params)
        context = Context(-1, jnp.arange(len(tokens_BS)), None)
        x_BSH = model.enter(model.embed.lookup(tokens_BS), context)
        for k in range(sizes["layers"]):
            x_BSH = nnx.merge(stages.block_graph, jax.tree.map(lambda a, k=k: a[k], params["blocks"]))(x_BSH, context)
        logits_BSV = model.head.logits(model.leave(x_BSH))
        return optax.softmax_cross_entropy_with_integer_labels(logits_BSV, targets_BS).mean()

    def accumulate(params: Any, total: Any, microbatch: Any) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, *microbatch)
        return jax.tree.map(lambda a, g: a + g / MICROBATCHES, total, gradients), value

    def step(state: Any, batch: dict[str, jax.Array]) -> tuple[Any, jax.Array]:
        params, opt = state
        microbatches = batch["tokens"], batch["targets"]
        gradients, losses = jax.lax.scan(
            functools.partial(accumulate, params),
            jax.tree.map(jnp.zeros_like, params),
            microbatches,
            unroll=MICROBATCHES if unrolled else 1,
        )
        norm = optax.tree.norm(gradients)
        gradients = jax.tree.map(lambda g: g * jnp.minimum(1.0, config.optimizer.clip_norm / norm), gradients)
        updates, opt = rule.update(gradients, opt, params)
        return (optax.apply_updates(params, updates), opt), losses.mean()

    params = jax.jit(lambda: initial(build, 0))()
    state = params, jax.jit(rule.init)(params)
    batch = jax.device_put(random_batch(sizes))
    return jax.jit(step, donate_argnums=0).lower(state, batch).compile(), state, batch


# --- steps -----------------------------------------------------------------------------------------


def steps(sizes: dict[str, int], rounds: int) -> dict[str, Any]:
    """Contender -> median seconds of a step, ratio to the faster rival, memory of all its devices."""
    from meshkit import simulate

    simulate.simulate_cpu_devices(DEVICES)
    contenders = {
        "plain, scanned": (plain_step(sizes, unrolled=False), 1),
        "plain, unrolled": (plain_step(sizes, unrolled=True), 1),
        "meshkit (1,1,1)": (meshkit_step(sizes, (1, 1, 1)), 1),
        "meshkit (2,2,2)": (meshkit_step(sizes, (2, 2, 2)), DEVICES),
    }
    states = {name: state for name, ((_, state, _), _) in contenders.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(1 + rounds):
        for name, ((step, _, batch), _) in contenders.items():
            start = time.perf_counter()
            states[name], _ = _wait(step(states[name], batch))
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}  # the first warms up
    rival = min(medians["plain, scanned"], medians["plain, unrolled"])
    return {
        name: {
            "seconds": medians[name],
            "ratio": medians[name] / rival,
            "mebibytes": devices * _peak_bytes(step) / 2**20,
        }
        for name, ((step, _, _), devices) in contenders.items()
    }


def _peak_bytes(step: Any) -> int:
    memory = step.memory_analysis()
    own = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + own + memory.temp_size_in_bytes


def _wait(result: Any) -> Any:
    import jax

    return jax.block_until_ready(result)


def show(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("step", "seconds", "ratio", "aim", "MiB, all devices")
    for name, row in figures["steps"].items():
        aim = f"≤ {AIMS[name]}" if name in AIMS else ""
        table.add_row(name, f"{row['seconds']:.3f}", f"{row['ratio']:.3f}", aim, f"{row['mebibytes']:.0f}")
    console = Console()
    console.print(table)
    for key, title in (("schedules", "schedule, microbatches"), ("policies", "recompute")):
        if key in figures:
            console.print(_predictions(title, figures[key]))
    console.print(f"import meshkit: {figures['import_seconds']:.3f} s (aim < 0.3, without JAX)")
    for name, took in figures["plan_seconds"].items():
        console.print(f"meshkit plan, {name}: search {took['search']:.2f} s, command {took['command']:.2f} s (aim < 2)")
    console.print(f"to the end of the first step, (2,2,2): {figures['first_step_seconds']:.1f} s")


def _predictions(title: str, rows: list[dict[str, Any]]) -> Any:
    """Table of measured steps over predicted ones."""
    from rich.table import Table

    table = Table(title, "seconds", "predicted", "ratio", "MiB a device")
    for row in rows:
        name = row.get("recompute") or f"{row['schedule']}, {row['microbatches']}"
        seconds, predicted = f"{row['seconds']:.3f}", f"{row['predicted_seconds']:.3f}"
        table.add_row(name, seconds, predicted, f"{row['ratio']:.3f}", f"{row['mebibytes_a_device']:.0f}")
    return table


if __name__ == "__main__":
    main()
