"""`meshkit plan`: its arguments. The planner itself is imported when it runs."""

import argparse
from pathlib import Path
from typing import Any

from meshkit.commands import add_command


def add(commands: Any) -> None:
    """Add it to the parser."""
    plan = add_command(commands, "plan", _plan, "rank the layouts of a model on a cluster by their time")
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


def _plan(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.planner import command

    return command.run(options)
