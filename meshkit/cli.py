"""The command line: `meshkit train | verify | demo | data`.

Exit codes: 0 success, 1 a mistake the user can mend or a check that failed, 2 wrong usage,
130 Ctrl-C. With --json, standard output holds one JSON value and nothing else.

Each command imports what it needs when it runs, so that `meshkit --help` starts no JAX.
"""

import argparse
import contextlib
import dataclasses
import json
import sys
import textwrap
import tomllib
import types
import typing
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshkit import __version__
from meshkit.config import RunConfig, keys, load
from meshkit.errors import MeshkitError, nearest

# Options of `train` and `verify` that are not config keys.
OWN_OPTIONS = {"-h", "--help", "--json", "--full"}


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


# --- commands -----------------------------------------------------------------------------------


def _train(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    config = load(options.config, overrides)
    if config.devices is not None:
        from meshkit.simulate import simulate_cpu_devices

        simulate_cpu_devices(config.devices)
        print(f"simulating {config.devices} CPU devices", file=sys.stderr)

    from meshkit.trainer import train

    with _stdout_kept_for_json(options.json):
        result = train(config)
    if options.json:
        print(json.dumps({"run_dir": str(result.run_dir), **result.summary}))
    return 0


def _verify(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    config = load(options.config, overrides)

    from meshkit.verify import verify

    with _stdout_kept_for_json(options.json):
        report = verify(config, full=options.full)
    return _show(report, options.json)


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


def _show(report: Any, as_json: bool) -> int:
    """Print a report of `verify` or `demo`; 1 when it found an inequality."""
    if as_json:
        print(report.to_json())
    else:
        report.print()
    return 0 if report.ok else 1


def _stdout_kept_for_json(as_json: bool) -> contextlib.AbstractContextManager[Any]:
    """While a command works, its progress goes to standard error if standard output is for a program."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


# --- overrides: --dotted.key VALUE --------------------------------------------------------------


def split_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """What argparse shall read, and the config's overrides, from `train` and `verify` arguments.

    Every `--name VALUE` or `--name=VALUE` that is not the command's own option is an override;
    `config.load` judges it, so that a wrong name gets the same answer here as in a file.
    Raises MeshkitError when a value is missing or a key is given twice.
    """
    rest: list[str] = []
    overrides: dict[str, Any] = {}
    words = iter(argv)
    for word in words:
        if not word.startswith("--") or word in OWN_OPTIONS:
            rest.append(word)
            continue
        key, equals, text = word.removeprefix("--").partition("=")
        if not equals:
            following = next(words, None)
            if following is None or following.startswith("--"):
                hint = "" if key in keys() else f"; {nearest(key, [*keys(), *OWN_OPTIONS])}"
                raise MeshkitError(f"--{key} needs a value: --{key} VALUE{hint}")
            text = following
        if key in overrides:
            raise MeshkitError(f"--{key} is given twice: give it once")
        overrides[key] = parse_value(key, text)
    return rest, overrides


def parse_value(key: str, text: str) -> Any:
    """`text` as the TOML value it spells, else as a string; a lone string for a list key is its one element."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        table = {"value": text}
    value = table["value"] if len(table) == 1 else text
    field = keys().get(key)
    if field is None:
        return value
    kinds = _kinds(field.annotation)
    if str in kinds and not isinstance(value, str):
        return text  # a folder may be called 2026
    return [text] if list in kinds and not isinstance(value, list) else value


def _kinds(annotation: Any) -> set[Any]:
    """The plain types that a value of `annotation` may have."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _kinds(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return {type(choice) for choice in typing.get_args(annotation)}
    if origin in (typing.Union, types.UnionType):
        return set().union(*map(_kinds, typing.get_args(annotation)))
    return {origin or annotation}


# --- help ---------------------------------------------------------------------------------------


def key_help() -> str:
    """Every config key with its type, default and meaning, table by table."""
    tables: dict[str, list[str]] = {}
    for key, field in keys().items():
        table, _, _ = key.rpartition(".")
        default = "" if field.default is None else f" (default: {_spell(field.default)})"
        meaning = textwrap.fill(f"{field.description}{default}", 96, initial_indent=" " * 6, subsequent_indent=" " * 6)
        tables.setdefault(table, []).append(f"  --{key} {_spell_type(field.annotation)}\n{meaning}")
    parts = ["config keys, the same in the TOML file and here; values are written as in TOML:"]
    for table, lines in tables.items():
        title = f"{table}: {RunConfig.model_fields[table].description}" if table else "the run:"
        parts += ["", title, *lines]
    return "\n".join(parts)


def _spell_type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _spell_type(arguments[0])
    if origin is typing.Literal:
        return "|".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return "|".join(_spell_type(kind) for kind in arguments if kind is not type(None))
    if origin is list:
        return f"[{_spell_type(arguments[0])}, …]"
    return {int: "INT", float: "FLOAT", str: "TEXT", bool: "true|false"}.get(annotation, "{…}")


def _spell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# --- the parser ---------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "meshkit", description="Train Transformers on any data × tensor × pipe mesh.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"meshkit {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    train = _command(commands, "train", _train, "train a model", usage="%(prog)s CONFIG [--json] [--KEY VALUE …]")
    train.epilog = key_help()
    train.add_argument("config", metavar="CONFIG", help="a TOML file")

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
    return parser


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
