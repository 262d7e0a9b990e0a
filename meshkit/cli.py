"""The command line: `meshkit train | verify | eval | generate | schedule | plan | compile | launch | view | demo |
data | checkpoint | hf`.

Exit codes: 0 success, 1 a mistake the user can mend or a check that failed, 2 wrong usage, 75 a run that may go on
when started again (`errors.RESTART`), 130 Ctrl-C, 141 who reads what it prints has left. With --json,
standard output holds one JSON value and nothing else.

Each command imports what it needs when it runs, so that `meshkit --help` starts no JAX. Commands about a part
of meshkit stand in that part's `command.py`.
"""

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from meshkit import __version__
from meshkit.checkpoint import command as checkpoint
from meshkit.commands import add_command, quiet_start, show, stdout_kept_for_json
from meshkit.config import load
from meshkit.data import command as data
from meshkit.errors import MeshkitError
from meshkit.hf import command as hf
from meshkit.launch import command as launch
from meshkit.distributed.launchers import ADDRESS, COUNT, NUMBER, preempted_exit
from meshkit.overrides import key_help, split_overrides
from meshkit.planner import arguments as planner
from meshkit.view import arguments as view


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command with `argv` (default: the process's own) and return its exit code."""
    quiet_start()
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        overrides: dict[str, Any] = {}
        if argv[:1] in (["train"], ["verify"], ["compile"], ["eval"], ["launch"]):
            argv, overrides = split_overrides(argv)
        with warnings.catch_warnings(), _quiet_when_nobody_reads():
            options = _parser().parse_args(argv)
            warnings.showwarning = _show_warning
            return options.run(options, overrides)
    except MeshkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        training = argv[:1] == ["train"]
        print("interrupted" + ": steps after the last checkpoint are lost; a SIGTERM saves" * training, file=sys.stderr)
        return 130


@contextlib.contextmanager
def _quiet_when_nobody_reads() -> Iterator[None]:
    """The quiet end of a command whose reader has left, as `head` does."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        output = select.poll()
        output.register(1, 0)
        if not output.poll(0):  # another pipe broke
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes what is left at exit
        raise SystemExit(UNREAD) from None


UNREAD = 128 + signal.SIGPIPE


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as a sentence for the user: where in the code it arose is of no use to them."""
    print(f"warning: {message}", file=sys.stderr)


PROFILED = 2
"""Steps that `--profile` records."""


# --- commands -----------------------------------------------------------------------------------


def _train(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    config = load(options.config, overrides)
    given = {ADDRESS: options.coordinator, COUNT: options.processes, NUMBER: options.process}
    os.environ.update({name: value for name, value in given.items() if value is not None})
    if config.devices is not None:
        from meshkit.simulate import simulate_cpu_devices

        simulate_cpu_devices(config.devices)
        print(f"simulating {config.devices} CPU devices", file=sys.stderr)

    import jax

    from meshkit.distributed.processes import failing_at_once
    from meshkit.trainer import train

    with stdout_kept_for_json(options.json), failing_at_once():
        result = train(config, profile=PROFILED if options.profile else 0)
    if options.json and jax.process_index() == 0:
        print(json.dumps({"run_dir": str(result.run_dir), **result.summary}))
    if not result.saved:
        raise MeshkitError(f"the last checkpoint of {result.run_dir} could not be written: see above")
    return preempted_exit() if result.preempted else 0


def _verify(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    config = load(options.config, overrides)

    from meshkit.equality.verify import verify

    with stdout_kept_for_json(options.json):
        report = verify(config, full=options.full)
    return show(report, options.json)


def _eval(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.use.evaluate import evaluate

    with stdout_kept_for_json(options.json):
        report = evaluate(options.model, options.text, overrides, options.tokenizer)
    return show(report, options.json)


def _generate(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.use.decode import generate

    with stdout_kept_for_json(options.json):
        written = generate(
            options.model,
            options.prompt,
            options.tokens,
            tokenizer=options.tokenizer,
            temperature=options.temperature,
            seed=options.seed,
            precision=options.precision,
        )
    print(json.dumps({"prompt": options.prompt, "text": written}) if options.json else options.prompt + written)
    return 0


def _schedule(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.show import words as given
    from meshkit.show import examine as show

    schedule = given.choose(options.schedule, options.stages, options.microbatches, options.virtual, options.overlap)
    costs = None if options.costs is None else given.costs(schedule, options.costs)
    model = None
    asked = {"sequence": options.sequence, "microbatch_size": options.microbatch_size, "precision": options.precision}
    asked = {name: value for name, value in asked.items() if value is not None}
    if options.model is not None:
        model = show.Model(options.model, **asked)
    elif asked:
        raise MeshkitError(f"--{next(iter(asked)).replace('_', '-')} is of a model: name one, as --model llama3-8b")
    layers = None if options.layers_per_stage is None else given.layers(schedule, options.layers_per_stage)
    report = show.examine(schedule, options.recompute, costs, model, layers)
    if options.trace is not None:
        show.write_trace(report.lock_step, options.trace)
    if options.grid is not None:
        show.write_grid(schedule, options.grid)
    if options.json:
        print(report.to_json())
    else:
        report.print()
    return 0


def _demo(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.demo import run_demo

    return show(run_demo(), options.json)


# --- the parser ---------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "meshkit", description="Train Transformers on any data × tensor × pipe mesh.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"meshkit {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    train = add_command(
        commands, "train", _train, "train a model", usage="%(prog)s CONFIG [--profile] [--json] [--KEY VALUE …]"
    )
    train.epilog = key_help()
    train.add_argument("config", metavar="CONFIG", help="a TOML file")
    train.add_argument("--coordinator", metavar="HOST:PORT", help=f"of process 0, as {ADDRESS} (see docs/launch.md)")
    train.add_argument("--processes", metavar="N", help=f"how many there are, as {COUNT}")
    train.add_argument("--process", metavar="I", help=f"the number of this one, as {NUMBER}")
    train.add_argument(
        "--profile", action="store_true", help=f"record {PROFILED} steps: a timeline of every device, for Perfetto"
    )

    verify = add_command(
        commands,
        "verify",
        _verify,
        "prove that a layout trains as one device would",
        usage="%(prog)s CONFIG [--full] [--json] [--KEY VALUE …]",
    )
    verify.epilog = "KEY: any config key; meshkit train --help lists them."
    verify.add_argument("config", metavar="CONFIG", help="a TOML file")
    verify.add_argument("--full", action="store_true", help="keep the model's sizes instead of shrinking its widths")

    evaluate = add_command(
        commands,
        "eval",
        _eval,
        "perplexity of a model on files, on any mesh",
        usage="%(prog)s MODEL TEXT … [--tokenizer FILE] [--json] [--KEY VALUE …]",
    )
    evaluate.epilog = "KEY: any config key, such as mesh.tensor, data.sequence, data.batch, precision, devices."
    evaluate.add_argument("model", metavar="MODEL", help="a run's folder, a checkpoint, or a published folder")
    evaluate.add_argument("text", nargs="+", metavar="TEXT", help="text files, folders or globs")
    evaluate.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json (default: the model's own)")

    generate = add_command(commands, "generate", _generate, "what a model writes after a prompt")
    generate.add_argument("model", metavar="MODEL", help="a run's folder, a checkpoint, or a published folder")
    generate.add_argument("prompt", metavar="PROMPT", help="text to go on from")
    generate.add_argument("--tokens", type=int, default=128, metavar="N", help="at most so many (default: 128)")
    generate.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="0: always the likeliest (default: 0.8)"
    )
    generate.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, another text (default: 0)")
    generate.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json (default: the model's own)")
    generate.add_argument("--precision", choices=["bfloat16", "float32"], default="float32", help="(default: float32)")

    schedule = add_command(commands, "schedule", _schedule, "draw a pipeline schedule; its time and memory")
    schedule.add_argument(
        "schedule", metavar="NAME_OR_FILE", help="gpipe, 1f1b, interleaved, zero-bubble, or a grid's file (.txt)"
    )
    schedule.add_argument("--stages", type=int, metavar="P", help="pipeline stages (a file says it itself)")
    schedule.add_argument("--microbatches", type=int, metavar="M", help="microbatches (a file says it itself)")
    schedule.add_argument("--virtual", type=int, metavar="V", help="chunks a stage, for interleaved (default: 1)")
    schedule.add_argument("--overlap", action="store_true", help="give a hop a whole tick")
    schedule.add_argument(
        "--costs", metavar="F=1,B=2", help="time of each kind of action, and hop=0.1 (default: by --recompute)"
    )
    schedule.add_argument(
        "--recompute", choices=["full", "selective", "none"], default="full", help="memory policy (default: full)"
    )
    schedule.add_argument("--model", metavar="PRESET", help="a preset, to see the memory of its activations")
    schedule.add_argument(
        "--layers-per-stage", metavar="3,2,2,1", help="layers of each stage (of each chunk: P·v; default: even)"
    )
    schedule.add_argument("--sequence", type=int, metavar="N", help="tokens a sample (default: 4096)")
    schedule.add_argument("--microbatch-size", type=int, metavar="N", help="samples a microbatch (default: 1)")
    schedule.add_argument("--precision", choices=["bfloat16", "float32", "float64"], help="(default: bfloat16)")
    schedule.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the lock-step timeline for Perfetto or chrome://tracing"
    )

    schedule.add_argument(
        "--grid", type=Path, metavar="FILE.txt", help="write it as text, which pipeline.schedule can name"
    )

    launch.add(commands)
    planner.add(commands)
    view.add(commands)
    add_command(commands, "demo", _demo, "a perceptron cut in every way, against NumPy")

    data.add(commands)
    checkpoint.add(commands)
    hf.add(commands)
    return parser
