"""The command line: `meshkit train | verify | schedule | demo | data | checkpoint`.

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
    if not result.saved:
        raise MeshkitError(f"the last checkpoint of {result.run_dir} could not be written: see above")
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


def _checkpoints() -> Any:
    """The module that looks at checkpoints, on the CPU: a GPU may be busy with training."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    from meshkit.checkpoint import inspect

    return inspect


def _checkpoint_list(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    inspect = _checkpoints()
    rows = inspect.listed(options.path)
    if options.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        loss = "" if row.get("held_out_loss") is None else f", held-out loss {row['held_out_loss']:.4f}"
        what = (
            row.get("error") or f"step {row['step']}  {row['samples']:,} samples  {row['holds']}{loss}  {row['saved']}"
        )
        print(f"{row['path']}  {row['bytes'] / 2**20:,.1f} MiB  {what}")
    return 0


def _checkpoint_show(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    inspect = _checkpoints()
    shown = inspect.shown(options.path)
    if options.json:
        print(json.dumps(shown))
        return 0
    arrays = shown.pop("arrays")
    for name, value in shown.items():
        print(f"{name:<14} {json.dumps(value)}")
    for name, (dtype, shape) in arrays.items():
        print(f"  {name:<60} {dtype:<9} {shape}")
    return 0


def _checkpoint_verify(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    inspect = _checkpoints()
    found = inspect.verified(options.path)
    if options.json:
        print(json.dumps({"ok": not any(found.values()), "checkpoints": found}))
    else:
        for folder, wrong in found.items():
            print(f"{folder}: {'damaged' if wrong else 'whole'}", *wrong, sep="\n  ")
    return 1 if any(found.values()) else 0


def _checkpoint_convert(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    inspect = _checkpoints()
    copy = inspect.convert(options.path, options.out, options.weights, options.dtype)
    print(json.dumps({"path": str(copy)}) if options.json else copy)
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
    _checkpoint_commands(commands)
    return parser


def _checkpoint_commands(commands: Any) -> None:
    checkpoint = commands.add_parser("checkpoint", help="checkpoints", description="Look at checkpoints, copy them.")
    actions = checkpoint.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _command(actions, "list", _checkpoint_list, "the checkpoints there")
    _command(actions, "show", _checkpoint_show, "what a checkpoint holds (the newest, if PATH holds several)")
    _command(actions, "verify", _checkpoint_verify, "read every file and compare its checksum")
    convert = _command(actions, "convert", _checkpoint_convert, "a copy of a checkpoint in another form or place")
    convert.add_argument("--out", required=True, metavar="DIR", help="folder or bucket for the copy")
    convert.add_argument("--weights", action="store_true", help="the parameters alone, to begin another training with")
    convert.add_argument("--dtype", choices=["float32", "bfloat16", "float16", "float64"], help="of the weights")
    for action in actions.choices.values():
        action.add_argument("path", metavar="PATH", help="a run's folder, a folder of checkpoints, or one checkpoint")


def _command(commands: Any, name: str, run: Any, purpose: str, usage: str | None = None) -> argparse.ArgumentParser:
    """A sub-command with --json, dispatched to `run(options, overrides)`."""
    command = commands.add_parser(
        name,
        help=purpose,
        description=f"{purpose[0].upper()}{purpose[1:]}.",
        usage=usage,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("--json", action="store_true", help="print the result as JSON, for a program")
    command.set_defaults(run=run)
    return command
