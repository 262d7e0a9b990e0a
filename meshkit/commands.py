"""What the commands of the command line have in common."""

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

Run = Callable[[argparse.Namespace, dict[str, Any]], int]
"""(options, overrides of the config) -> exit code."""


def add_command(commands: Any, name: str, run: Run, purpose: str, usage: str | None = None) -> argparse.ArgumentParser:
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


def quiet_start() -> None:
    """Let JAX say in a line, not with a traceback, that a plugin for GPUs finds none, as where it is installed for
    its compiler alone."""
    logging.getLogger("jax._src.xla_bridge").addFilter(_plugin_in_a_line)


def _plugin_in_a_line(record: logging.LogRecord) -> bool:
    """A filter of log records: replaces those of plugins that fail."""
    if not (record.exc_info and str(record.msg).startswith("Jax plugin configuration error")):
        return True
    plugin = ", ".join(map(str, record.args)) if isinstance(record.args, tuple) else ""
    print(f"warning: JAX goes on without the devices of {plugin}: {record.exc_info[1]}", file=sys.stderr)
    return False


def show(report: Any, as_json: bool) -> int:
    """Print a report of `verify`, `compile` or `demo`; 1 when it found what must not be."""
    if as_json:
        print(report.to_json())
    else:
        report.print()
    return 0 if report.ok else 1


@contextlib.contextmanager
def stdout_kept_for_json(as_json: bool) -> Iterator[None]:
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
