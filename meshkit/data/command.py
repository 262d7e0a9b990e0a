"""`meshkit data prepare | show`."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from meshkit.commands import add_command


def add(commands: Any) -> None:
    """Add them to the parser."""
    data = commands.add_parser("data", help="token files", description="Make and inspect token files.")
    actions = data.add_subparsers(title="commands", required=True, metavar="COMMAND")
    prepare = add_command(actions, "prepare", _prepare, "make token files from text")
    prepare.add_argument("text", nargs="+", metavar="TEXT", help="text files, .jsonl files, folders or globs")
    prepare.add_argument("--skip-bad", action="store_true", help="leave out lines of .jsonl files that cannot be read")
    prepare.add_argument(
        "--chat", action="store_true", help="lines of .jsonl files are conversations; the loss is on answers (chat.py)"
    )
    prepare.add_argument(
        "--sequence", type=int, default=4096, metavar="N", help="with --chat: tokens of a sample (default: 4096)"
    )
    prepare.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    prepare.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json; absent: one token a byte")
    prepare.add_argument(
        "--held-out", type=float, default=0.05, metavar="SHARE", help="kept for evaluation (default: 0.05)"
    )
    show = add_command(actions, "show", _show, "what a folder of token files holds")
    show.add_argument("folder", type=Path, metavar="DIR", help="a folder made by `meshkit data prepare`")


def _prepare(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    if options.chat:
        return _prepare_chat(options)
    from meshkit.data.lines import refuse
    from meshkit.data.prepare import prepare

    skip = lambda sentence: print(f"skipped: {sentence}", file=sys.stderr)
    bad = skip if options.skip_bad else refuse
    summary = prepare(options.text, options.out, options.tokenizer, options.held_out, bad=bad)
    if options.json:
        print(json.dumps(dataclasses.asdict(summary), default=str))
    else:
        print(summary)
    return 0


def _prepare_chat(options: argparse.Namespace) -> int:
    from meshkit.data import chat

    summary = chat.prepare(
        options.text, options.out, options.tokenizer, options.sequence, options.held_out, options.skip_bad
    )
    for sentence in summary.skipped:
        print(f"skipped: {sentence}", file=sys.stderr)
    print(json.dumps(dataclasses.asdict(summary), default=str) if options.json else summary)
    return 0


def _show(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
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
