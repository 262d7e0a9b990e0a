"""`meshkit data prepare | show`."""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from meshkit.commands import add_command
from meshkit.errors import MeshkitError

LISTED = 20  # corrupt parts named on the screen

EPILOG = """\
A file of text is a document (without --tokenizer any file is, by its bytes: leave pictures out); so is every line of a
.jsonl file, and every row of a .parquet file or of a folder that `datasets` saved (save_to_disk). Of such a folder with
several splits, train is trained on and validation, else test, is held out. Interrupted, the same command goes on where
it was, and DIR is the same to the byte, as it is for any number of workers. MB/s a core: text encoded, in 10^6 bytes,
over the CPU time of all workers."""


def add(commands: Any) -> None:
    """Add them to the parser."""
    data = commands.add_parser("data", help="token files", description="Make and inspect token files.")
    actions = data.add_subparsers(title="commands", required=True, metavar="COMMAND")
    prepare = add_command(actions, "prepare", _prepare, "make token files from text")
    prepare.epilog = EPILOG
    prepare.add_argument("text", nargs="+", metavar="TEXT", help="files, folders or globs")
    prepare.add_argument(
        "--chat", action="store_true", help="lines of .jsonl files are conversations; the loss is on answers (chat.py)"
    )
    prepare.add_argument("--sequence", type=int, metavar="N", help="with --chat: tokens of a sample (default: 4096)")
    prepare.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    prepare.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json; absent: one token a byte")
    prepare.add_argument(
        "--column", metavar="NAME", help="of JSON lines and tables, where the text is (default: text); not with --chat"
    )
    prepare.add_argument(
        "--held-out", type=float, default=0.05, metavar="SHARE", help="kept for evaluation (default: 0.05)"
    )
    prepare.add_argument(
        "--workers", type=int, metavar="N", help="processes (default: all cores; with --chat there is one)"
    )
    prepare.add_argument(
        "--skip-corrupt", action="store_true", help="leave out what cannot be read, and list it in DIR/skipped.txt"
    )
    show = add_command(actions, "show", _show, "what a folder of token files holds")
    show.add_argument("folder", type=Path, metavar="DIR", help="a folder made by `meshkit data prepare`")


def _prepare(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    for name in ("column", "workers") if options.chat else ("sequence",):
        if (value := getattr(options, name)) is not None:
            raise MeshkitError(f"--{name} {value} has no effect {'with' if options.chat else 'without'} --chat")
    if options.chat:
        return _prepare_chat(options)
    from meshkit.data.documents import COLUMN
    from meshkit.data.prepare import prepare
    from meshkit.data.progress import ByteProgress
    from meshkit.data.writer import SKIPPED

    with ByteProgress() as progress:
        summary = prepare(
            options.text,
            options.out,
            options.tokenizer,
            options.held_out,
            column=COLUMN if options.column is None else options.column,
            workers=len(os.sched_getaffinity(0)) if options.workers is None else options.workers,
            skip_corrupt=options.skip_corrupt,
            report=progress,
        )
    for sentence in summary.skipped[:LISTED]:
        print(f"skipped: {sentence}", file=sys.stderr)
    if len(summary.skipped) > LISTED:
        print(f"skipped: {len(summary.skipped) - LISTED:,} more, see {options.out / SKIPPED}", file=sys.stderr)
    if options.json:
        figures = {"megabytes_a_second_a_core": summary.megabytes_a_second}
        print(json.dumps(dataclasses.asdict(summary) | figures, default=str))
    else:
        print(summary)
    return 0


def _prepare_chat(options: argparse.Namespace) -> int:
    from meshkit.data import chat

    summary = chat.prepare(
        options.text,
        options.out,
        options.tokenizer,
        chat.SEQUENCE if options.sequence is None else options.sequence,
        options.held_out,
        options.skip_corrupt,
    )
    for sentence in summary.skipped:
        print(f"skipped: {sentence}", file=sys.stderr)
    if summary.lost:
        whole = summary.lost + summary.answers
        print(
            f"warning: {summary.lost:,} of {whole:,} tokens of answers are cut away, of {summary.cut:,} conversations "
            f"longer than {summary.sequence:,} tokens: raise --sequence to learn them",
            file=sys.stderr,
        )
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
