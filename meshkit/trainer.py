"""train(): the loop around the train step, its logging, evaluation and summary.

The host runs one step ahead of what it reads: while step k computes, the metrics of step k − 1 come in,
so that reading them never makes a device wait.
"""

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from meshkit import assemble, distributed, optimizer, profiler, report
from meshkit.config import RunConfig, load
from meshkit.data.loader import Batch, Loader
from meshkit.data.sources import UserDataset, open_sources
from meshkit.errors import MeshkitError
from meshkit.mesh import build
from meshkit.metrics import MetricsWriter, Progress
from meshkit.pipeline.vocab import TokenLoss
from meshkit.profiler import Profiler
from meshkit.run_folder import RunFolder
from meshkit.simulate import simulate_cpu_devices
from meshkit.train_step import State, TrainStep

EVALUATION_SEED = 0  # the held-out samples judged are the same in every run


@dataclasses.dataclass(frozen=True)
class Result:
    """What `train` returns.

    state: the final TrainStep state, on the devices. history: the logged metrics, a dict a record.
    summary: what was printed at the end, ready for JSON. run_dir: the folder of the run's files.
    """

    state: State
    history: list[dict[str, float]]
    summary: dict[str, Any]
    run_dir: Path


def train(
    config: str | os.PathLike[str] | Mapping[str, Any] | RunConfig,
    *,
    model: Any = None,
    loss: TokenLoss | str | None = None,
    dataset: UserDataset | None = None,
    profile: int = 0,
    **overrides: Any,
) -> Result:
    """Train as `config` (a TOML file, a mapping or a RunConfig) says, with `overrides` on top.

    Overrides are nested or dotted keys: `mesh={"data": 2}`, `**{"mesh.data": 2}`. model: an NNX class
    called as model(sizes, rngs, vocab_multiple). loss: (logits [B, S, V], targets [B, S]) -> [B, S].
    dataset: (data table, "train" or "held_out") -> an object with __len__ and __getitem__. A table for
    `model` or a name for `loss` overrides the config's keys of these names, as any other key does.
    profile: record so many steps, and write what each device did when into the run's folder.

    Raises MeshkitError for anything the user can mend, and when `max_skipped` steps in a row had
    gradients that are not finite.
    """
    if isinstance(model, Mapping):
        model, overrides["model"] = None, model
    if isinstance(loss, str):
        loss, overrides["loss"] = None, loss
    settings = load(config, overrides)
    if settings.devices is not None:
        simulate_cpu_devices(settings.devices)
    distributed.start()
    if settings.precision == "float64":
        with jax.enable_x64(True):
            return _train(settings, model, loss, dataset, profile)
    return _train(settings, model, loss, dataset, profile)


def _train(config: RunConfig, model: Any, loss: TokenLoss | None, dataset: UserDataset | None, profile: int) -> Result:
    mesh = build(config.mesh)
    sources = open_sources(config.data, dataset)
    if config.sample_tokens and sources.files is None:
        raise MeshkitError(
            f"sample_tokens = {config.sample_tokens} needs a tokenizer, which a data set of one's own has not: set it "
            "to 0, or use data.text or data.tokens"
        )
    step = assemble.train_step(config, mesh, sources.vocab, model, loss)
    profiler.check(config, profile)
    with (
        _loader(step, mesh, sources.train, config.seed) as batches,
        _loader(step, mesh, sources.held_out, EVALUATION_SEED) as held_out,
    ):
        # Made last: a config that cannot run leaves no folder behind.
        folder = RunFolder.create(step.config)
        with folder.metrics() as writer, folder.progress(config.steps) as progress:
            for line in report.opening(step, sources):
                progress.note(line)
            recorder = profiler.Profiler(folder.path / profiler.FOLDER, profile)
            run = _Run(step, batches, held_out, writer, progress, recorder)
            state = run.loop()
    summary = report.summary(step, run.compiled, run.history, sources, state, folder.path)
    if profile:
        summary |= recorder.report(step, run.compiled)
    folder.show(summary)
    return Result(state, run.history, summary, folder.path)


def _loader(step: TrainStep, mesh: Mesh, source: Any, seed: int) -> Loader:
    config = step.config
    return Loader(
        source,
        batch=config.data.batch,
        seed=seed,
        microbatches=config.pipeline.microbatches,
        mesh=mesh,
        sequence=config.data.sequence,
        vocab=step.stages.vocab,
    )


class _Run:
    """The loop of one run: steps, and what is logged of them."""

    def __init__(
        self,
        step: TrainStep,
        batches: Loader,
        held_out: Loader,
        writer: MetricsWriter,
        progress: Progress,
        profiler: Profiler,
    ) -> None:
        self.step, self.config, self.profiler = step, step.config, profiler
        self.batches, self.held_out, self.writer, self.progress = batches, held_out, writer, progress
        self.history: list[dict[str, float]] = []
        # All at once: a rate computed on the device later would wait for the step that runs there.
        rate = optimizer.learning_rate(self.config.optimizer, self.config.steps)
        self.rates = np.asarray(jax.vmap(rate)(jnp.arange(self.config.steps)))
        self.clock, self.timed_from = 0.0, 0
        self.compiled: Any = None

    def loop(self) -> State:
        state = self.step.init(self.config.seed)
        batch = next(self.batches)
        self.clock = time.perf_counter()
        self.compiled = self.step.compile(state, batch)
        self.progress.note(f"compiled in {time.perf_counter() - self.clock:.1f} s")
        self.progress.begin()
        self.clock = time.perf_counter()
        pending = None
        for number in range(1, self.config.steps + 1):
            self.profiler.before(number, state)
            state, metrics = self.compiled(state, batch)
            self.profiler.after(number, state)
            if number < self.config.steps:
                batch = next(self.batches)
            if pending is not None:
                self._read(*pending)
            pending = number, metrics
            if number == self.config.steps or (self.config.evaluate_every and number % self.config.evaluate_every == 0):
                self._read(*pending, evaluate=state)
                pending = None
        return state

    def _read(self, number: int, metrics: Mapping[str, jax.Array], evaluate: State | None = None) -> None:
        """Fetch the metrics of a finished step; log those that are due; stop a run that went wrong."""
        values = {name: float(value) for name, value in jax.device_get(dict(metrics)).items()}
        if values.pop("skipped") >= self.config.max_skipped:
            raise MeshkitError(
                f"step {number}: {self.config.max_skipped} steps in a row had gradients that are not finite (loss "
                f"{values['loss']}, gradient norm {values['grad_norm']}): lower optimizer.learning_rate = "
                f"{self.config.optimizer.learning_rate}, raise optimizer.warmup_steps, or look at the data; "
                "max_skipped sets how many are borne"
            )
        if evaluate is None and number % self.config.log_every and number != 1:
            return
        values["learning_rate"] = float(self.rates[number - 1])
        values["tokens_per_second"] = self._throughput(number)
        if evaluate is not None:
            values["held_out_loss"] = self._evaluate(evaluate)
        self.history.append({"step": number, **values})
        self.writer.write(number, values)
        self.progress.update(number, values)
        self.clock = time.perf_counter()

    def _throughput(self, number: int) -> float:
        """Tokens a second since the last record."""
        steps, self.timed_from = number - self.timed_from, number
        return steps * self.config.data.batch * self.config.data.sequence / (time.perf_counter() - self.clock)

    def _evaluate(self, state: State) -> float:
        """Mean loss of a target token over `evaluate_batches` held-out batches, at most one epoch of them."""
        epoch = max(1, self.held_out.samples // self.config.data.batch)
        sums = [
            self._held_out_sums(state, self.held_out.at(k)) for k in range(min(self.config.evaluate_batches, epoch))
        ]
        loss, tokens = np.sum(jax.device_get(sums), axis=0)
        return float(loss / tokens)

    def _held_out_sums(self, state: State, batch: Batch) -> tuple[jax.Array, jax.Array]:
        sums = self.step.evaluate(state["params"], batch)
        return sums["loss"], sums["tokens"]
