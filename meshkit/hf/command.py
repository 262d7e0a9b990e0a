"""`meshkit hf import | export`."""

import argparse
import json
from typing import Any

from meshkit.commands import add_command


def add(commands: Any) -> None:
    """Add them to the parser."""
    hf = commands.add_parser("hf", help="published weights", description="Weights of Hugging Face's, in and out.")
    actions = hf.add_subparsers(title="commands", required=True, metavar="COMMAND")
    into = add_command(actions, "import", _import, "a checkpoint of published weights")
    into.add_argument("path", metavar="PATH", help="a folder with config.json and safetensors files")
    into.add_argument("--to", required=True, metavar="CHECKPOINT", help="folder or bucket for the checkpoint")
    out = add_command(actions, "export", _export, "a folder of weights that others load, from a checkpoint")
    out.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a run's folder, a folder of checkpoints, or one checkpoint"
    )
    out.add_argument("--to", required=True, metavar="PATH", help="folder to write")
    out.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="(default: the checkpoint's)")
    out.add_argument(
        "--merge", action="store_true", help="add adapters to their base (default: alone, as `peft` reads them)"
    )
    out.add_argument("--like", metavar="PATH", help="a published folder whose tokenizer and token ids go with it")


def _transfer() -> Any:
    """The module that moves weights, on the CPU: nothing is computed."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    from meshkit.hf import transfer

    return transfer


def _import(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    return _say(_transfer().import_folder(options.path, options.to), options.json)


def _export(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    return _say(
        _transfer().export_checkpoint(options.checkpoint, options.to, options.dtype, options.like, options.merge),
        options.json,
    )


def _say(path: Any, as_json: bool) -> int:
    print(json.dumps({"path": str(path)}) if as_json else path)
    return 0
