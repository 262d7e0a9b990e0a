"""`meshkit checkpoint list | show | verify | convert`."""

import argparse
import json
from typing import Any

from meshkit.commands import add_command


def add(commands: Any) -> None:
    """Add them to the parser."""
    checkpoint = commands.add_parser("checkpoint", help="checkpoints", description="Look at checkpoints, copy them.")
    actions = checkpoint.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_command(actions, "list", _list, "the checkpoints there")
    add_command(actions, "show", _show, "what a checkpoint holds (the newest, if PATH holds several)")
    add_command(actions, "verify", _verify, "read every file and compare its checksum")
    convert = add_command(actions, "convert", _convert, "a copy of a checkpoint in another form or place")
    convert.add_argument("--out", required=True, metavar="DIR", help="folder or bucket for the copy")
    convert.add_argument("--weights", action="store_true", help="the parameters alone, to begin another training with")
    convert.add_argument("--dtype", choices=["float32", "bfloat16", "float16", "float64"], help="of the weights")
    for action in actions.choices.values():
        action.add_argument("path", metavar="PATH", help="a run's folder, a folder of checkpoints, or one checkpoint")


def _checkpoints() -> Any:
    """The module that looks at checkpoints, on the CPU: a GPU may be busy with training."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    from meshkit.checkpoint import inspect

    return inspect


def _list(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
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


def _show(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
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


def _verify(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    inspect = _checkpoints()
    found = inspect.verified(options.path)
    if options.json:
        print(json.dumps({"ok": not any(found.values()), "checkpoints": found}))
    else:
        for folder, wrong in found.items():
            print(f"{folder}: {'damaged' if wrong else 'whole'}", *wrong, sep="\n  ")
    return 1 if any(found.values()) else 0


def _convert(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    inspect = _checkpoints()
    copy = inspect.convert(options.path, options.out, options.weights, options.dtype)
    print(json.dumps({"path": str(copy)}) if options.json else copy)
    return 0
