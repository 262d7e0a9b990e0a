"""train(): the loop around the train step, its logging, evaluation, saving and summary.

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

from meshkit import assemble, optimizer, report, run_folder
from meshkit.checkpoint import store
from meshkit.checkpoint.find import home
from meshkit.checkpoint.layout import Layout
from meshkit.checkpoint.record import Record, of_run
from meshkit.checkpoint.resume import Beginning, begin
from meshkit.checkpoint.store import Checkpoints, History
from meshkit.config import NEVER, RunConfig, load
from meshkit.data.loader import Loader
from meshkit.data.sources import UserDataset, open_sources
from meshkit.distributed import agreement, processes
from meshkit.distributed.preemption import Preemption
from meshkit.distributed.watchdog import HOUR, Watchdog
from meshkit.health import Health
from meshkit.mesh import build
from meshkit.metrics import MetricsWriter, Progress
from meshkit.pipeline.vocab import TokenLoss
from meshkit.profile import profiler
from meshkit.profile.profiler import Profiler
from meshkit.run_folder import RunFolder
from meshkit.simulate import simulate_cpu_devices
from meshkit.train_step import State, TrainStep

EVALUATION_SEED = 0  # the held-out samples judged are the same in every run
EVALUATION_BATCHES = 8  # of one evaluation, or an epoch of them


@dataclasses.dataclass(frozen=True)
class Result:
    """What `train` returns.

    state: the final TrainStep state, on the devices. history: the logged metrics, a dict a record, from the
    run's first step on. summary: what was printed at the end, ready for JSON. run_dir: the folder of the
    run's files. saved: whether a checkpoint of that state was written. preempted: it ended early, on a SIGTERM.
    """

    state: State
    history: History
    summary: dict[str, Any]
    run_dir: Path
    saved: bool
    preempted: bool


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

    A run whose folder holds checkpoints goes on from the newest (see the config key `resume`). After a SIGTERM it
    saves, and returns what it has.

    Raises MeshkitError for anything the user can mend, and what a run's steps show to be wrong (see `health`).
    """
    if isinstance(model, Mapping):
        model, overrides["model"] = None, model
    if isinstance(loss, str):
        loss, overrides["loss"] = None, loss
    settings = load(config, overrides)
    if model is not None:  # what `model.options` hold is for it, not for a family
        family = f"{getattr(model, '__module__', '')}:{getattr(model, '__qualname__', type(model).__name__)}"
        settings = settings.model_copy(update={"model": settings.model.model_copy(update={"family": family})})
    if settings.devices is not None:
        simulate_cpu_devices(settings.devices)
    processes.start()
    if settings.precision == "float64":
        with jax.enable_x64(True):
            return _train(settings, model, loss, dataset, profile)
    return _train(settings, model, loss, dataset, profile)


def _train(config: RunConfig, model: Any, loss: TokenLoss | None, dataset: UserDataset | None, profile: int) -> Result:
    agreement.on_start(config)
    mesh = build(config.mesh)
    sources = open_sources(config.data, dataset)
    agreement.on_data(sources.identity)
    step = assemble.train_step(config, mesh, sources.vocab, model, loss)
    config = config.model_copy(update={"mesh": step.config.mesh})  # no axis is -1 any more
    layout = Layout(step)
    record = of_run(config, assemble.model_sizes(config, sources.vocab), sources.identity)
    with run_folder.reserved(config) as lock:
        beginning = begin(config, layout, record, run_folder.note)
        profiler.check(config.steps - beginning.step, profile)
        with (
            _loader(step, mesh, sources.train, config.seed, beginning.samples) as batches,
            _loader(step, mesh, sources.held_out, EVALUATION_SEED) as held_out,
        ):
            # Made last: a config that cannot run leaves no folder behind.
            folder = RunFolder.create(config, fresh=config.resume == NEVER, lock=lock)
            with (
                folder,
                folder.metrics(beginning.history) as writer,
                folder.progress(config.steps, beginning.step) as progress,
                Checkpoints(home(config, folder.path), config.checkpoint, progress.note, beginning.own) as checkpoints,
                Preemption() as preemption,
                Watchdog(folder.path, processes.process(), jax.process_index()) as watchdog,
            ):
                for line in report.opening(step, sources):
                    progress.note(line)
                recorder = Profiler(folder.path / profiler.FOLDER, profile, beginning.step)
                watchers = writer, progress, checkpoints, preemption, recorder, watchdog
                run = _Run(config, step, layout, record, beginning, batches, held_out, *watchers)
                state = run.loop()
    summary = report.summary(step, run.compiled, run.history, run.number, sources, folder.path)
    if recorder.done:
        summary |= recorder.report(step, run.compiled)
    folder.show(summary)
    saved = checkpoints.whole == run.number
    return Result(state, run.history, summary, folder.path, saved, preemption.asked)


def _loader(step: TrainStep, mesh: Mesh, source: Any, seed: int, start: int = 0) -> Loader:
    config = step.config
    return Loader(
        source,
        batch=config.data.batch,
        seed=seed,
        microbatches=config.pipeline.microbatches,
        mesh=mesh,
        start=start,
        sequence=config.data.sequence,
        vocab=step.stages.vocab,
    )


@dataclasses.dataclass
class _Run:
    """The loop of one run: steps, what is logged of them, and what is saved."""

    config: RunConfig
    step: TrainStep
    layout: Layout
    record: Record
    beginning: Beginning
    batches: Loader
    held_out: Loader
    writer: MetricsWriter
    progress: Progress
    checkpoints: Checkpoints
    preemption: Preemption
    profiler: Profiler
    watchdog: Watchdog
    compiled: Any = None
    evaluated: bool = False  # the first time it is compiled too

    def __post_init__(self) -> None:
        self.number = self.beginning.step
        self.history: History = list(self.beginning.history)
        self.health = Health(self.config.optimizer, self.history, self.progress.note)
        # All at once: a rate computed on the device later would wait for the step that runs there.
        rate = optimizer.learning_rate(self.config.optimizer, self.config.steps)
        self.rates = np.asarray(jax.vmap(rate)(jnp.arange(self.config.steps)))
        self.clock, self.timed_from = 0.0, self.number

    def loop(self) -> State:
        self.watchdog.begins("making the state", granted=HOUR)
        state = self.beginning.state(self.step, self.layout)
        steps = self.config.steps
        if self.number >= steps:
            self.progress.note(
                f"nothing is left to do: {self.number} steps are done and steps = {steps}; raise it, choose another "
                "run_dir, or set resume = 'never'"
            )
            return state
        self.watchdog.begins("reading the first batch")
        batch = next(self.batches)
        self.watchdog.begins("compiling", granted=HOUR)
        self.clock = time.perf_counter()
        self.compiled = self.step.compile(state, batch)
        self.progress.note(f"compiled in {time.perf_counter() - self.clock:.1f} s")
        agreement.on_program(self.step.mesh, self.compiled)
        self.progress.begin()
        self.clock = time.perf_counter()
        pending = None
        while True:
            self.number += 1
            self.watchdog.begins(f"handing step {self.number} to the devices")
            self.profiler.before(self.number, state)
            state, metrics = self.compiled(state, batch)
            self.profiler.after(self.number, state)
            if self.number < steps:
                self.watchdog.begins(f"reading the batch of step {self.number + 1}")
                batch = next(self.batches)
            if pending is not None:
                self._read(*pending)
            pending = self.number, metrics
            last = self.number == steps or self.preemption.reached(self.number)
            evaluate, save = self._evaluation_is_due(), last or self._save_is_due()
            if evaluate or save:
                self._read(*pending, evaluate=state if evaluate else None)
                pending = None
            if save or (evaluate and self.checkpoints.is_best(self.history)):
                self._save(state)
            self.checkpoints.look()
            if last:
                return state

    def _logging_is_due(self, number: int) -> bool:
        return number == 1 or number % self.config.log_every == 0

    def _evaluation_is_due(self) -> bool:
        every = self.config.evaluate_every
        return self.number == self.config.steps or bool(every and self.number % every == 0)

    def _save_is_due(self) -> bool:
        return self.checkpoints.due(self.number, self._logging_is_due(self.number))

    def _read(self, number: int, metrics: Mapping[str, jax.Array], evaluate: State | None = None) -> None:
        """Fetch the metrics of a finished step; log those that are due; stop a run that went wrong."""
        self.watchdog.begins(f"waiting for step {number}")
        values = {name: float(value) for name, value in jax.device_get(dict(metrics)).items()}
        self.watchdog.finished(number)
        self.health.step(number, values)
        if evaluate is None and not self._logging_is_due(number):
            return
        self.health.tell(number)
        values["learning_rate"] = float(self.rates[number - 1])
        values["tokens_per_second"] = self._throughput(number)
        if evaluate is not None:
            self.watchdog.begins(f"evaluating after step {number}", granted=0 if self.evaluated else HOUR)
            loss, tokens = self._evaluate(evaluate)
            if tokens:
                values["held_out_loss"] = loss / tokens
            else:
                self.progress.note("warning: no held-out loss, the weights of the held-out data are all 0")
            self.evaluated = True
        self.history.append({"step": number, **values})
        try:
            self.writer.write(number, values)
        except OSError as error:  # as with a checkpoint, which holds them too: training goes on
            self.progress.note(f"error: the metrics of step {number} are not written yet ({error.strerror or error})")
        self.progress.update(number, values)
        if number == self.config.steps:
            self.health.end(number)
        self.clock = time.perf_counter()

    def _save(self, state: State) -> None:
        """Begin to save the state after step `number`; the next step need not wait for the writing."""
        self.watchdog.begins(f"saving step {self.number}", granted=2 * store.SECONDS)
        done = self.number - self.beginning.step
        last = self.history[-1]
        record = dataclasses.replace(
            self.record,
            step=self.number,
            samples=self.beginning.samples + done * self.config.data.batch,
            held_out_loss=last.get("held_out_loss") if last["step"] == self.number else None,
        )
        self.checkpoints.save(self.layout.to_saved(state), record, self.history)

    def _throughput(self, number: int) -> float:
        """Tokens a second since the last record."""
        steps, self.timed_from = number - self.timed_from, number
        return steps * self.config.data.batch * self.config.data.sequence / (time.perf_counter() - self.clock)

    def _evaluate(self, state: State) -> tuple[float, float]:
        """(loss summed over target tokens, how many) of EVALUATION_BATCHES held-out batches, at most one epoch."""
        epoch = max(1, self.held_out.samples // self.config.data.batch)
        batches = map(self.held_out.at, range(min(EVALUATION_BATCHES, epoch)))
        sums = jax.device_get([self.step.evaluate(state["params"], batch) for batch in batches])
        return sum(float(s["loss"]) for s in sums), sum(float(s["tokens"]) for s in sums)
