"""`meshkit plan` and `meshkit compile`: their arguments. The planner itself is imported when they run."""

import argparse
from pathlib import Path
from typing import Any

from meshkit.commands import add_command, show


def add(commands: Any) -> None:
    """Add them to the parser."""
    plan = add_command(commands, "plan", _plan, "rank the layouts of a model on a cluster by their time")
    plan.add_argument("config", metavar="CONFIG", nargs="?", help="a TOML file; or --model")
    plan.add_argument("--model", metavar="PRESET", help="a preset instead of a config")
    plan.add_argument(
        "--cluster",
        metavar="64xh100",
        default="8xh100",
        help="devices and their kind, or a TOML file (default: 8xh100). The file: accelerator, or [device]; nodes, "
        "per_node, per_rack; [links.node], [links.network], [links.spine]",
    )
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
    plan.add_argument("--check", type=int, metavar="N", help="compile the best N for these GPUs; correct their memory")

    compile_ = add_command(
        commands,
        "compile",
        _compile,
        "compile the train step for a cluster that is not there",
        usage="%(prog)s CONFIG --cluster 64xh100 [--nodes-of N] [--backend cuda|cpu] [--hlo FILE] [--json] "
        "[--KEY VALUE …]",
    )
    compile_.epilog = "KEY: any config key; meshkit train --help lists them. Exits with 1 if it does not fit."
    compile_.add_argument("config", metavar="CONFIG", help="a TOML file")
    compile_.add_argument("--cluster", required=True, metavar="NxGPU", help="GPUs and their kind: 64xh100")
    compile_.add_argument("--nodes-of", type=int, metavar="N", help="GPUs of a node (default: the kind's usual)")
    compile_.add_argument(
        "--backend",
        choices=["cuda", "cpu"],
        default="cuda",
        help="cuda: XLA's own compiler for these GPUs (default); cpu: check legality on simulated devices",
    )
    compile_.add_argument("--hlo", type=Path, metavar="FILE", help="write the compiled program's text")
    compile_.add_argument(
        "--timeout", type=float, default=1800.0, metavar="S", help="seconds the compiler may take (default: 1800)"
    )


def _plan(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.planner import command

    return command.run(options)


def _compile(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.config import load
    from meshkit.planner.cluster import parse
    from meshkit.planner.compile import compile_step

    config, cluster = load(options.config, overrides), parse(options.cluster, options.nodes_of)
    return show(compile_step(config, cluster, options.backend, options.hlo, options.timeout), options.json)
