"""`meshkit view`: its arguments. The rest of the view is imported when it runs."""

import argparse
from pathlib import Path
from typing import Any

from meshkit.commands import add_command


def add(commands: Any) -> None:
    """Add it to the parser."""
    view = add_command(
        commands,
        "view",
        _view,
        "see a layout: devices, data, schedule, performance",
        usage="%(prog)s [CONFIG_OR_RUN] [--cluster 64xh100] [--export FILE] [--KEY VALUE …]",
    )
    view.epilog = "KEY: any config key, over the config's own; meshkit train --help lists them."
    view.add_argument(
        "source", metavar="CONFIG_OR_RUN", nargs="?", help="a TOML file or a run's folder (default: a 70B on 64 GPUs)"
    )
    view.add_argument(
        "--cluster", metavar="64xh100", default="h100", help="devices, their kind alone, or a TOML file (default: h100)"
    )
    view.add_argument("--export", type=Path, metavar="FILE", help="write the page as one file instead of serving it")
    view.add_argument("--port", type=int, default=0, metavar="N", help="of localhost (default: a free one)")
    view.add_argument("--no-browser", action="store_true", help="print the address, open nothing")


def _view(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.view import command

    return command.run(options, overrides)
