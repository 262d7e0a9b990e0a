"""Conversations to token files: rendered by the tokenizer's chat template, with the loss on answers alone.

A line of a .jsonl file is a conversation: {"messages": [{"role": …, "content": …}, …]}, or {"prompt": …, "answer": …}.

Beside the token files (tokens.py) the folder holds

    train.targets.npy         bool [tokens]: whether a token is part of an answer
    held_out.targets.npy
    chat.json                 sequence, and what `Summary` counts

No conversation crosses a multiple of `sequence`: what is left there is filled with end tokens. One that is longer is
cut at its end, and counted, as are the tokens of answers that it loses.
"""

import dataclasses
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from meshkit.data import documents
from meshkit.data.chat_template import ASSISTANT, Encoder, Messages
from meshkit.data.text import FileTokenizer
from meshkit.data.tokens import SPLITS, Header, TokenFile
from meshkit.data.writer import TokenWriter
from meshkit.errors import MeshkitError

ABOUT = "chat.json"
SEQUENCE = 4096  # tokens of a sample, unless told otherwise
UNREAD = ("tools", "functions", "tool_calls", "function_call", "images")  # keys of data sets for what is no text
Conversation = tuple[np.ndarray, np.ndarray]
"""Ids, and whether each is part of an answer."""


@dataclasses.dataclass
class Summary:
    """What `prepare` made. cut: conversations longer than `sequence`; lost: tokens of answers cut away from them;
    filled: tokens that fill the ends of samples; answers: tokens that are targets; skipped: sentences about lines left
    out."""

    folder: Path
    sequence: int
    header: Header | None = None
    conversations: int = 0
    cut: int = 0
    lost: int = 0
    answers: int = 0
    filled: int = 0
    skipped: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        assert self.header is not None, "only what is finished is shown"
        total = sum(counts.tokens for counts in self.header.splits.values())
        return (
            f"{self.folder}: {self.conversations:,} conversations in {total:,} tokens, {self.answers:,} of answers "
            f"and {self.filled:,} to fill samples of {self.sequence:,}; {self.cut:,} conversations were longer and are "
            f"cut, {len(self.skipped):,} lines are left out"
        )


def prepare(
    text: Sequence[str],
    out: str | os.PathLike[str],
    tokenizer: str | None,
    sequence: int = SEQUENCE,
    held_out: float = 0.05,
    skip: bool = False,
) -> Summary:
    """Write the conversations of `text` (.jsonl files, folders, globs) into the new folder `out`.

    About `held_out` of the conversations, chosen by their content, become the held-out split. skip: leave out lines
    that cannot be used. Raises MeshkitError naming file and line of one otherwise; when `tokenizer` is None or has no
    template; when fewer than two conversations are there, no token of an answer is left, or `out` is taken.
    """
    if sequence < 2:
        raise MeshkitError(f"--sequence {sequence}: a sample has at least 2 tokens, such as 4096")
    documents.check_share(held_out)
    out, encoder = Path(out), Encoder.of(tokenizer)
    if out.exists():
        raise MeshkitError(f"{out}: already there: choose another folder, or remove it first")
    summary = Summary(out, sequence)
    split: dict[str, list[Conversation]] = {name: [] for name in SPLITS}
    for where, line in _lines(text):
        try:
            ids, answers = encoder.encode(parse(line))
        except ValueError as error:
            if not skip:
                raise MeshkitError(f"{where}: {error}") from None
            summary.skipped.append(f"{where}: {error}")
            continue
        summary.cut += len(ids) >= sequence
        summary.lost += int(answers[sequence - 1 :].sum())
        held = zlib.crc32(line) < held_out * 2**32
        split[SPLITS[held]].append((ids[: sequence - 1], answers[: sequence - 1]))
    summary.conversations = sum(map(len, split.values()))
    if summary.conversations < 2:
        raise MeshkitError(f"data.text: {summary.conversations} conversations are too few to hold some out")
    for wanted, other in (SPLITS, SPLITS[::-1]):
        split[wanted] = split[wanted] or [split[other].pop()]
    for name, conversations in split.items():
        if not any(answers.any() for _, answers in conversations):
            raise MeshkitError(
                f"data.text: no token of an answer is left in the {name} split: {summary.cut} of "
                f"{summary.conversations} conversations are longer than {sequence} tokens, and lose {summary.lost} "
                "tokens of answers: raise --sequence, or shorten what stands before the answers"
            )
    _write(split, encoder.tokenizer, Path(str(tokenizer)), summary)
    return summary


def targets_of(file: TokenFile, sequence: int, apart: bool) -> np.ndarray | None:
    """Whether each token of `file` is a target, bool [tokens]; None: all are, as in text.

    Raises MeshkitError when conversations would be read otherwise than they were laid.
    """
    about = file.folder / ABOUT
    if not about.is_file():
        return None
    laid = json.loads(about.read_text(encoding="utf-8"))["sequence"]
    if laid != sequence:
        raise MeshkitError(
            f"data.sequence = {sequence}: the conversations in {file.folder} are laid for samples of {laid} tokens: "
            f"set it to {laid}, or prepare them with --sequence {sequence}"
        )
    if not apart:
        raise MeshkitError(
            f"data.documents = 'joined': {file.folder} holds conversations, of which none shall see another: set it to "
            "'apart'"
        )
    targets = np.load(file.folder / f"{file.split}.targets.npy", mmap_mode="r")
    if not targets.any():
        raise MeshkitError(f"{file.folder}: no token of its {file.split} split is part of an answer: prepare it anew")
    return targets


# --- lines --------------------------------------------------------------------------------------


def _lines(text: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for document in documents.find(text):
        if document.path.suffix != documents.LINES:
            raise MeshkitError(f"{document.path}: conversations come as lines of {documents.LINES} files")
        with document.open() as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{document.path}: line {number}", line


def parse(line: bytes) -> Messages:
    """The messages of a line; ValueError saying what of it is not as it should be."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from None
    if isinstance(found, dict) and found.keys() >= {"prompt", "answer"}:
        found = {
            "messages": [{"role": "user", "content": found["prompt"]}, {"role": ASSISTANT, "content": found["answer"]}]
        }
    if not isinstance(found, dict) or not isinstance(found.get("messages"), list):
        raise ValueError('neither {"messages": […]} nor {"prompt": …, "answer": …}')
    messages = found["messages"]
    for part in (found, *(message for message in messages if isinstance(message, dict))):
        for key in UNREAD:
            if part.get(key):
                raise ValueError(
                    f"{key}: of a conversation only roles and texts are read: leave the key or the line out"
                )
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise ValueError(f'a message is {{"role": text, "content": text}}, which message {number} is not')
    if not any(message["role"] == ASSISTANT for message in messages):
        raise ValueError(f"no message has the role {ASSISTANT!r}: there is nothing to learn")
    return messages


# --- writing ------------------------------------------------------------------------------------


def _write(split: dict[str, list[Conversation]], tokenizer: FileTokenizer, path: Path, summary: Summary) -> None:
    """The folder, whole or not at all."""
    building = summary.folder.parent / f".{summary.folder.name}.{uuid.uuid4().hex}.chat"
    targets: dict[str, list[np.ndarray]] = {name: [] for name in SPLITS}
    try:
        with TokenWriter(building, tokenizer.vocab, tokenizer.end, path) as writer:
            for name, conversations in split.items():
                for ids, answers in _laid(conversations, summary.sequence, tokenizer.end):
                    writer.add(name, [ids])
                    targets[name].append(np.append(answers, False))  # the end token is the token file's
                    summary.answers += int(answers.sum())
                    summary.filled += len(ids) + 1
                summary.filled -= sum(len(ids) + 1 for ids, _ in conversations)
            summary.header = writer.finish()
        for name, parts in targets.items():
            np.save(building / f"{name}.targets.npy", np.concatenate(parts))
        counts = {
            k: v
            for k, v in vars(summary).items()
            if k in ("sequence", "conversations", "cut", "lost", "answers", "filled")
        }
        (building / ABOUT).write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
        building.rename(summary.folder)
    except OSError as error:
        raise MeshkitError(f"{summary.folder}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _laid(conversations: list[Conversation], sequence: int, end: int) -> Iterator[Conversation]:
    """The conversations, and between them what fills up a sample whose rest is too short for the next."""
    used = 0
    for ids, answers in conversations:
        room = sequence - used
        if len(ids) + 1 > room:
            yield _filler(room, end)
            used = 0
        yield ids, answers
        used = (used + len(ids) + 1) % sequence
    # One token more than whole samples: the target of the last.
    yield _filler((sequence - used) % sequence + 1, end)


def _filler(length: int, end: int) -> Conversation:
    """A document of `length` end tokens, the last of which the writer adds."""
    return np.full(length - 1, end), np.zeros(length - 1, bool)
