"""The command line: `meshkit train | verify | eval | generate | schedule | plan | compile | launch | view | demo |
data | checkpoint | hf`.

Exit codes: 0 success, 1 a mistake the user can mend or a check that failed, 2 wrong usage, 75 to 77 a run that may go
on when started again (`errors.RESTART`, `SAVED`, `LATE`), 130 Ctrl-C, 141 who reads what it prints has left. With
--json, standard output holds one JSON value and nothing else.

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
from typing import Any

from meshkit import __version__
from meshkit.checkpoint import command as checkpoint
from meshkit.commands import add_command, quiet_start, show, stdout_kept_for_json
from meshkit.config import load
from meshkit.data import command as data
from meshkit.distributed.launchers import ADDRESS, COUNT, NUMBER, preempted_exit
from meshkit.errors import MeshkitError
from meshkit.hf import command as hf
from meshkit.launch import command as launch
from meshkit.overrides import key_help, split_overrides
from meshkit.planner import arguments as planner
from meshkit.show import command as schedules
from meshkit.use import command as use
from meshkit.view import arguments as view


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command with `argv` (default: the process's own) and return its exit code."""
    quiet_start()
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        overrides: dict[str, Any] = {}
        if argv[:1] in (["train"], ["verify"], ["compile"], ["eval"], ["launch"], ["view"]):
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

    _add_train(commands)
    _add_verify(commands)
    for part in (use, schedules, launch, planner, view):
        part.add(commands)
    add_command(commands, "demo", _demo, "a perceptron cut in every way, against NumPy")
    for part in (data, checkpoint, hf):
        part.add(commands)
    return parser


def _add_train(commands: Any) -> None:
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


def _add_verify(commands: Any) -> None:
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
