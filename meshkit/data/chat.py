"""Conversations to token files: rendered by the tokenizer's chat template, with the loss on answers alone.

A line of a .jsonl file is a conversation: {"messages": [{"role": …, "content": …}, …]}, or {"prompt": …, "answer": …}.
The template is that of the published tokenizer, a Jinja program beside tokenizer.json, run in Jinja's sandbox. What an
assistant's message adds to the rendered text before it, its closing mark included, is an answer.

Beside the token files (tokens.py) the folder holds

    train.targets.npy         bool [tokens]: whether a token is part of an answer
    held_out.targets.npy
    chat.json                 sequence, and what `Summary` counts

No conversation crosses a multiple of `sequence`: what is left there is filled with end tokens. One that is longer is
cut at its end, and counted.
"""

import dataclasses
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from meshkit.data import documents
from meshkit.data.text import FileTokenizer
from meshkit.data.tokens import SPLITS, Header, TokenFile
from meshkit.data.writer import TokenWriter
from meshkit.errors import MeshkitError

ABOUT = "chat.json"
USER, ASSISTANT = "user", "assistant"
Message = dict[str, Any]
Messages = list[Message]


@dataclasses.dataclass
class Summary:
    """What `prepare` made. cut: conversations longer than `sequence`; filled: tokens that fill the ends of samples;
    answers: tokens that are targets; skipped: sentences about lines left out."""

    folder: Path
    sequence: int
    header: Header | None = None
    conversations: int = 0
    cut: int = 0
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
    sequence: int,
    held_out: float = 0.05,
    skip: bool = False,
) -> Summary:
    """Write the conversations of `text` (.jsonl files, folders, globs) into the new folder `out`.

    About `held_out` of the conversations, chosen by their content, become the held-out split. skip: leave out lines
    that cannot be used. Raises MeshkitError naming file and line of one otherwise; when `tokenizer` is None or has no
    template; when fewer than two conversations are there, or `out` is taken.
    """
    out, encoder = Path(out), Encoder.of(tokenizer)
    if out.exists():
        raise MeshkitError(f"{out}: already there: choose another folder, or remove it first")
    summary = Summary(out, sequence)
    split: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in SPLITS}
    for where, line in _lines(text):
        try:
            ids, answers = encoder.encode(parse(line))
        except ValueError as error:
            if not skip:
                raise MeshkitError(f"{where}: {error}") from None
            summary.skipped.append(f"{where}: {error}")
            continue
        summary.cut += len(ids) >= sequence
        held = zlib.crc32(line) < held_out * 2**32
        split[SPLITS[held]].append((ids[: sequence - 1], answers[: sequence - 1]))
    summary.conversations = sum(map(len, split.values()))
    if summary.conversations < 2:
        raise MeshkitError(f"data.text: {summary.conversations} conversations are too few to hold some out")
    for wanted, other in (SPLITS, SPLITS[::-1]):
        split[wanted] = split[wanted] or [split[other].pop()]
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
    return np.load(file.folder / f"{file.split}.targets.npy", mmap_mode="r")


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
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from None
    if isinstance(found, dict) and found.keys() >= {"prompt", "answer"}:
        found = {
            "messages": [{"role": USER, "content": found["prompt"]}, {"role": ASSISTANT, "content": found["answer"]}]
        }
    if not isinstance(found, dict) or not isinstance(found.get("messages"), list):
        raise ValueError('neither {"messages": […]} nor {"prompt": …, "answer": …}')
    messages = found["messages"]
    for message in messages:
        if not isinstance(message, dict) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
            raise ValueError(f'a message is {{"role": text, "content": text}}, not {json.dumps(message)[:80]}')
    if not any(message["role"] == ASSISTANT for message in messages):
        raise ValueError(f"no message has the role {ASSISTANT!r}: there is nothing to learn")
    return messages


# --- tokens -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Encoder:
    """A tokenizer with its chat template. values: what templates read besides messages, such as bos_token."""

    tokenizer: FileTokenizer
    marks: Any  # the same tokenizer, for text in which special tokens mean something
    template: Any
    values: dict[str, Any]
    special: tuple[str, ...]

    @classmethod
    def of(cls, path: str | None) -> "Encoder":
        """That of a tokenizer.json, with tokenizer_config.json and chat_template.jinja beside it.

        Raises MeshkitError when there is no template, or a package to read it is missing.
        """
        if path is None:
            raise MeshkitError("--chat needs --tokenizer FILE: a tokenizer.json with a chat template beside it")
        tokenizer = FileTokenizer(path)
        import tokenizers

        config = _config(Path(path).with_name("tokenizer_config.json"))
        own = Path(path).with_name("chat_template.jinja")
        source = own.read_text(encoding="utf-8") if own.is_file() else config.get("chat_template")
        if isinstance(source, list):  # several, by name
            source = {entry["name"]: entry["template"] for entry in source}.get("default")
        if not isinstance(source, str):
            raise MeshkitError(
                f"{path}: has no chat template: neither {own.name} nor chat_template in tokenizer_config.json is there"
            )
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        tokens = {name: config.get(name) for name in names}
        values = {name: t.get("content") if isinstance(t, dict) else t for name, t in tokens.items() if t is not None}
        marks = tokenizers.Tokenizer.from_file(path)
        marks.no_truncation()
        marks.no_padding()
        special = tuple(token.content for token in marks.get_added_tokens_decoder().values() if token.special)
        return cls(tokenizer, marks, _compiled(source, path), values, special)

    def encode(self, messages: Messages) -> tuple[np.ndarray, np.ndarray]:
        """Ids of a conversation, and which of them are part of an answer.

        Raises ValueError for a text with a special token in it, or what the template refuses or writes otherwise once
        more follows.
        """
        for message in messages:
            written = [token for token in self.special if token in message["content"]]
            if written:
                raise ValueError(f"the text of a message holds the special token {written[0]!r}")
        text = self._render(messages, prompt=False)
        answered = np.zeros(len(text) + 1, bool)
        for k, message in enumerate(messages):
            if message["role"] == ASSISTANT:
                before, after = self._render(messages[:k], prompt=True), self._render(messages[: k + 1], prompt=False)
                if not (after.startswith(before) and text.startswith(after)):
                    raise ValueError(f"the chat template writes message {k + 1} otherwise once others follow")
                answered[len(before) : len(after)] = True
        encoding = self.marks.encode(text, add_special_tokens=False)
        starts = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
        return np.array(encoding.ids, dtype=np.int64), answered[starts]

    def _render(self, messages: Messages, prompt: bool) -> str:
        import jinja2

        try:
            return self.template.render(messages=messages, add_generation_prompt=prompt, **self.values)
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template refuses it: {error}") from None


def _config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise MeshkitError(f"{path}: cannot be read as JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def _compiled(source: str, path: str) -> Any:
    """The template, in an environment such as `transformers` gives it."""
    try:
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
    except ImportError:
        raise MeshkitError(f"{path}: its chat template needs jinja2: pip install 'meshkit[hf]'") from None

    class Generation(jinja2.ext.Extension):
        """{% generation %} … {% endgeneration %} marks answers for others; here it is its content."""

        tags: ClassVar = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(reason: str) -> None:
        raise jinja2.TemplateError(reason)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **how: json.dumps(value, ensure_ascii=False, **how)
    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise MeshkitError(f"{path}: line {error.lineno} of its chat template: {error.message}") from None


# --- writing ------------------------------------------------------------------------------------


def _write(
    split: dict[str, list[tuple[np.ndarray, np.ndarray]]], tokenizer: FileTokenizer, path: Path, summary: Summary
) -> None:
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
            k: v for k, v in vars(summary).items() if k in ("sequence", "conversations", "cut", "answers", "filled")
        }
        (building / ABOUT).write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
        building.rename(summary.folder)
    except OSError as error:
        raise MeshkitError(f"{summary.folder}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _laid(
    conversations: list[tuple[np.ndarray, np.ndarray]], sequence: int, end: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
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


def _filler(length: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """A document of `length` end tokens, the last of which the writer adds."""
    return np.full(length - 1, end), np.zeros(length - 1, bool)
