"""`meshkit schedule`: its arguments. What works it out is imported when it runs."""

import argparse
from pathlib import Path
from typing import Any

from meshkit.commands import add_command
from meshkit.errors import MeshkitError


def add(commands: Any) -> None:
    """Add it to the parser."""
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


def _schedule(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from meshkit.show import examine as show
    from meshkit.show import words as given

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
