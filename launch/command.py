"""`meshkit launch local | slurm | k8s`: their arguments."""

import argparse
import re
from typing import Any

from meshkit.commands import add_command
from meshkit.config import load
from meshkit.errors import MeshkitError


def add(commands: Any) -> None:
    """Add them to the parser."""
    launch = commands.add_parser("launch", help="start a run on many processes", description="Start a run.")
    ways = launch.add_subparsers(title="commands", required=True, metavar="COMMAND")

    local = add_command(ways, "local", _local, "processes on this machine, supervised")
    local.add_argument("--processes", type=int, default=1, metavar="N", help="(default: 1)")
    local.add_argument("--devices-per-process", type=int, metavar="N", help="simulated (default: the config's share)")
    local.add_argument(
        "--grace", type=float, default=60.0, metavar="S", help="between SIGTERM and SIGKILL (default: 60)"
    )
    for way in ways.choices.values():
        way.usage = "%(prog)s CONFIG [options] [--KEY VALUE …]"
        way.epilog = "KEY: any config key; meshkit train --help lists them."
        way.add_argument("config", metavar="CONFIG", help="a TOML file")
        way.add_argument("--restarts", type=int, default=0, metavar="N", help="restarts from the last checkpoint")
        way.add_argument(
            "--elastic", metavar="min=N", help="go on with fewer devices, but N, when a process or node is lost"
        )


def _local(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.launch import local

    config = load(options.config, overrides)
    job = local.job(options.config, config, overrides, options.processes, options.devices_per_process)
    return local.run(job, options.restarts, _least(options), options.grace)


def _least(options: argparse.Namespace) -> int | None:
    """Devices of `--elastic min=N`."""
    if options.elastic is None:
        return None
    match = re.fullmatch(r"min=([1-9]\d*)", options.elastic)
    if match is None:
        raise MeshkitError(f"--elastic {options.elastic}: write min=N, the fewest devices to go on with")
    if not options.restarts:
        raise MeshkitError("--elastic needs --restarts N: it chooses the mesh of a restart")
    return int(match[1])
