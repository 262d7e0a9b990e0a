"""The command line: `meshkit train | verify | schedule | plan | view | demo | data`.

Exit codes: 0 success, 1 a mistake the user can mend or a check that failed, 2 wrong usage,
130 Ctrl-C. With --json, standard output holds one JSON value and nothing else.

Each command imports what it needs when it runs, so that `meshkit --help` starts no JAX.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from meshkit import __version__
from meshkit.config import load
from meshkit.errors import MeshkitError
from meshkit.overrides import key_help, split_overrides


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command with `argv` (default: the process's own) and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        overrides: dict[str, Any] = {}
        if argv[:1] in (["train"], ["verify"]):
            argv, overrides = split_overrides(argv)
        options = _parser().parse_args(argv)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return options.run(options, overrides)
    except MeshkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as a sentence for the user: where in the code it arose is of no use to them."""
    print(f"warning: {message}", file=sys.stderr)


PROFILED = 2
"""Steps that `--profile` records."""


# --- commands -----------------------------------------------------------------------------------


def _train(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    config = load(options.config, overrides)
    if config.devices is not None:
        from meshkit.simulate import simulate_cpu_devices

        simulate_cpu_devices(config.devices)
        print(f"simulating {config.devices} CPU devices", file=sys.stderr)

    import jax

    from meshkit.trainer import train

    with _stdout_kept_for_json(options.json):
        result = train(config, profile=PROFILED if options.profile else 0)
    if options.json and jax.process_index() == 0:
        print(json.dumps({"run_dir": str(result.run_dir), **result.summary}))
    return 0


def _verify(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    config = load(options.config, overrides)

    from meshkit.verify import verify

    with _stdout_kept_for_json(options.json):
        report = verify(config, full=options.full)
    return _show(report, options.json)


def _schedule(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit import show_schedule as show

    schedule = show.choose(options.schedule, options.stages, options.microbatches, options.virtual, options.overlap)
    costs = None if options.costs is None else show.given_costs(schedule, options.costs)
    model = None
    if options.model is not None:
        model = show.Model(options.model, options.sequence, options.microbatch_size, options.precision)
    report = show.examine(schedule, options.recompute, costs, model)
    if options.trace is not None:
        show.write_trace(report.lock_step, options.trace)
    if options.json:
        print(report.to_json())
    else:
        report.print()
    return 0


def _plan(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.planner import command

    return command.run(options)


def _view(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.view import command

    return command.run(options)


def _demo(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.demo import run_demo

    return _show(run_demo(), options.json)


def _data_prepare(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.data.prepare import prepare

    summary = prepare(options.text, options.out, options.tokenizer, options.held_out)
    if options.json:
        print(json.dumps(dataclasses.asdict(summary), default=str))
    else:
        print(summary)
    return 0


def _data_show(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.data.tokens import SPLITS, Header, TokenFile

    header = Header.read(options.folder)
    for split in SPLITS:
        TokenFile.open(options.folder, split)  # damage is an error, not a table
    if options.json:
        print(json.dumps({"folder": str(options.folder), **dataclasses.asdict(header)}))
        return 0
    print(f"{options.folder}: {header.dtype}, vocabulary {header.vocab:,}, tokenizer {header.tokenizer}")
    for split, counts in header.splits.items():
        print(f"  {split:<8} {counts.tokens:>15,} tokens {counts.documents:>11,} documents")
    return 0


def _show(report: Any, as_json: bool) -> int:
    """Print a report of `verify` or `demo`; 1 when it found an inequality."""
    if as_json:
        print(report.to_json())
    else:
        report.print()
    return 0 if report.ok else 1


@contextlib.contextmanager
def _stdout_kept_for_json(as_json: bool) -> Iterator[None]:
    """While a command works, its progress goes to standard error if standard output is for a program.

    So do the lines that libraries in C++ write to descriptor 1, such as Gloo's as processes meet.
    """
    if not as_json:
        yield
        return
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


# --- the parser ---------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "meshkit", description="Train Transformers on any data × tensor × pipe mesh.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"meshkit {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    train = _command(
        commands, "train", _train, "train a model", usage="%(prog)s CONFIG [--profile] [--json] [--KEY VALUE …]"
    )
    train.epilog = key_help()
    train.add_argument("config", metavar="CONFIG", help="a TOML file")
    train.add_argument(
        "--profile", action="store_true", help=f"record {PROFILED} steps: a timeline of every device, for Perfetto"
    )

    verify = _command(
        commands,
        "verify",
        _verify,
        "prove that a layout trains as one device would",
        usage="%(prog)s CONFIG [--full] [--json] [--KEY VALUE …]",
    )
    verify.epilog = "KEY: any config key; meshkit train --help lists them."
    verify.add_argument("config", metavar="CONFIG", help="a TOML file")
    verify.add_argument("--full", action="store_true", help="keep the model's sizes instead of shrinking its widths")

    schedule = _command(commands, "schedule", _schedule, "draw a pipeline schedule; its time and memory")
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
    schedule.add_argument("--sequence", type=int, default=4096, metavar="N", help="tokens a sample (default: 4096)")
    schedule.add_argument(
        "--microbatch-size", type=int, default=1, metavar="N", help="samples a microbatch (default: 1)"
    )
    schedule.add_argument(
        "--precision", choices=["bfloat16", "float32", "float64"], default="bfloat16", help="(default: bfloat16)"
    )
    schedule.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the lock-step timeline for Perfetto or chrome://tracing"
    )

    plan = _command(commands, "plan", _plan, "rank the layouts of a model on a cluster by their time")
    plan.add_argument("config", metavar="CONFIG", nargs="?", help="a TOML file; or --model")
    plan.add_argument("--model", metavar="PRESET", help="a preset instead of a config")
    plan.add_argument("--cluster", metavar="64xh100", default="8xh100", help="devices and their kind, or a TOML file")
    plan.add_argument("--nodes-of", type=int, metavar="N", help="devices of a node (default: the kind's)")
    plan.add_argument("--global-batch", type=int, metavar="N", help="samples of a step (default: 512, or the config's)")
    plan.add_argument("--sequence", type=int, metavar="N", help="tokens a sample (default: 4096, or the config's)")
    plan.add_argument("--mesh", metavar="D,T,P", help="a mesh to rank and explain in any case")
    plan.add_argument("--profile", default="meshkit", help="the framework: meshkit, megatron … (default: meshkit)")
    plan.add_argument("--top", type=int, default=10, metavar="N", help="rows to show (default: 10)")
    plan.add_argument(
        "--calibrate", type=Path, metavar="FILE", help="measure the devices present; write a file for --cluster"
    )
    plan.add_argument("--explain", type=int, metavar="K", help="the arithmetic of row K, and what would help")

    view = _command(commands, "view", _view, "see a layout: devices, data, schedule, performance", json_result=False)
    view.add_argument(
        "source", metavar="CONFIG_OR_RUN", nargs="?", help="a TOML file or a run's folder (default: a 70B on 64 GPUs)"
    )
    view.add_argument("--cluster", metavar="KIND", default="h100", help="kind of devices (default: h100)")
    view.add_argument("--export", type=Path, metavar="FILE", help="write the page as one file instead of serving it")
    view.add_argument("--port", type=int, default=0, metavar="N", help="of localhost (default: a free one)")
    view.add_argument("--no-browser", action="store_true", help="print the address, open nothing")

    _command(commands, "demo", _demo, "a perceptron cut in every way, against NumPy")

    data = commands.add_parser("data", help="token files", description="Make and inspect token files.")
    actions = data.add_subparsers(title="commands", required=True, metavar="COMMAND")
    prepare = _command(actions, "prepare", _data_prepare, "make token files from text")
    prepare.add_argument("text", nargs="+", metavar="TEXT", help="text files, folders or globs")
    prepare.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    prepare.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json; absent: one token a byte")
    prepare.add_argument(
        "--held-out", type=float, default=0.05, metavar="SHARE", help="kept for evaluation (default: 0.05)"
    )
    show = _command(actions, "show", _data_show, "what a folder of token files holds")
    show.add_argument("folder", type=Path, metavar="DIR", help="a folder made by `meshkit data prepare`")
    return parser


def _command(
    commands: Any, name: str, run: Any, purpose: str, usage: str | None = None, json_result: bool = True
) -> argparse.ArgumentParser:
    """A sub-command with --json (if it has a result), dispatched to `run(options, overrides)`."""
    command = commands.add_parser(
        name,
        help=purpose,
        description=f"{purpose[0].upper()}{purpose[1:]}.",
        usage=usage,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if json_result:
        command.add_argument("--json", action="store_true", help="print the result as JSON, for a program")
    command.set_defaults(run=run)
    return command
