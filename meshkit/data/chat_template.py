"""A tokenizer's chat template: conversations to ids, and which of them an assistant said.

The template is a Jinja program, published beside tokenizer.json; it is run in Jinja's sandbox. Answers are places in
the text of the whole conversation, as a template may write a message otherwise once others follow: Qwen3's leaves out
the reasoning of earlier turns. They are what the template itself puts between {% generation %} and {% endgeneration %};
where it has no such tags, what an assistant writes after the generation prompt, its closing mark included.
"""

import dataclasses
import datetime
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from meshkit.data.text import FileTokenizer
from meshkit.errors import MeshkitError

ASSISTANT = "assistant"
Messages = list[dict[str, Any]]
"""Of a conversation: role and content of each."""
Span = tuple[int, int]
"""Characters of a text: the first, and the one after the last."""

OPEN, CLOSE = "\ufdd0", "\ufdd1"  # marks in a text: Unicode keeps these two characters out of texts
PAIRS = re.compile(f"([^{OPEN}{CLOSE}]*{OPEN}[^{OPEN}{CLOSE}]*{CLOSE})*[^{OPEN}{CLOSE}]*")
NUMBER = re.compile(f"{OPEN}(\\d+){CLOSE}")  # the end of a message, by its place in the conversation


@dataclasses.dataclass(frozen=True)
class Encoder:
    """A tokenizer with its chat template. values: what templates read besides messages, such as bos_token."""

    tokenizer: FileTokenizer
    marks: Any  # the same tokenizer, for text in which special tokens mean something
    template: Any
    tells: bool  # whether the template has {% generation %}
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
        source = _text(own) if own.is_file() else config.get("chat_template")
        if isinstance(source, list):  # several, by name
            named = [entry for entry in source if isinstance(entry, dict) and entry.get("name") == "default"]
            source = named[0].get("template") if named else None
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
        tells = re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", source) is not None
        return cls(tokenizer, marks, _compiled(source, path), tells, values, special)

    def encode(self, messages: Messages) -> tuple[np.ndarray, np.ndarray]:
        """Ids of a conversation, and which of them are part of an answer.

        Raises ValueError for a text with a special token in it, for what the template refuses, and where it does not
        tell an answer from the rest.
        """
        for message in messages:
            written = [token for token in (*self.special, OPEN, CLOSE) if token in message["content"]]
            if written:
                raise ValueError(f"the text of a message holds the special token {written[0]!r}")
        text = self._render(messages)
        answered = np.zeros(len(text) + 1, bool)
        for start, stop in self._told(messages, text) if self.tells else self._found(messages, text):
            answered[start:stop] = True
        if not answered.any():
            raise ValueError("the chat template marks no answer in it")
        encoding = self.marks.encode(text, add_special_tokens=False)
        starts = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
        return np.array(encoding.ids, dtype=np.int64), answered[starts]

    def _told(self, messages: Messages, text: str) -> list[Span]:
        """What the template puts between its own tags."""
        marked = self._render(messages, generation_begins=OPEN, generation_ends=CLOSE)
        parts = re.split(f"[{OPEN}{CLOSE}]", marked)
        if "".join(parts) != text or not PAIRS.fullmatch(marked):
            raise ValueError("the chat template changes what {% generation %} holds: no place of an answer is sure")
        ends = np.cumsum([len(part) for part in parts]).tolist()
        return list(zip(ends[0::2], ends[1::2], strict=False))

    def _found(self, messages: Messages, text: str) -> list[Span]:
        """Of each answer, what follows the message before and the generation prompt, up to where the next begins.

        Messages get a mark at their ends, but for blank ones: templates may strip white space across these, or leave
        them out. What stands between the last mark and an answer, and between an answer and what follows, is seen where
        the conversation ends there; it must stand so in the whole.
        """
        shown = [k for k, message in enumerate(messages) if message["content"].strip()]
        marked = [
            message | {"content": _marked(message["content"], k)} if k in shown else message
            for k, message in enumerate(messages)
        ]
        whole = self._render(marked)
        ends: dict[int, list[int]] = {}  # of messages, in `text`
        taken = 0
        for mark in NUMBER.finditer(whole):
            ends.setdefault(int(mark[1]), []).append(mark.start() - taken)
            taken += len(mark[0])
        if NUMBER.sub("", whole) != text:
            raise ValueError("the chat template does not show where texts end: no place of an answer is sure")

        def after(count: int, prompt: bool) -> int:
            """The place after the first `count` messages and the generation prompt, if any."""
            last = max((k for k in shown if k < count), default=None)
            _, mark, follows = self._render(marked[:count], prompt).rpartition(f"{OPEN}{last}{CLOSE}")
            places = [0] if last is None else ends.get(last, [])
            if len(places) != 1 or bool(mark) != (last is not None) or not text.startswith(follows, places[0]):
                what = f"what stands before message {count + 1}" if prompt else f"message {count}"
                raise ValueError(f"the chat template writes {what} otherwise once others follow")
            return places[0] + len(follows)

        answers = [k for k, message in enumerate(messages) if message["role"] == ASSISTANT]
        return [(after(k, prompt=True), after(k + 1, prompt=False)) for k in answers]

    def _render(self, messages: Messages, prompt: bool = False, **marks: str) -> str:
        try:
            text = self.template.render(messages=messages, add_generation_prompt=prompt, **self.values, **marks)
            text.encode()  # fails on half of a character, which a string of JSON may hold
        except UnicodeEncodeError as error:
            raise ValueError(f"not UTF-8: {error.reason}") from None
        except Exception as error:  # a template is a program, and fails as programs do
            raise ValueError(f"the chat template refuses it: {str(error) or type(error).__name__}") from None
        return text


def _marked(content: str, number: int) -> str:
    """`content` with a mark at its end, before the white space there, which templates strip."""
    end = len(content.rstrip())
    return f"{content[:end]}{OPEN}{number}{CLOSE}{content[end:]}"


def _config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise MeshkitError(f"{path}: cannot be read as JSON: {error}") from None
    return found if isinstance(found, dict) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MeshkitError(f"{path}: cannot be read as UTF-8: {error}") from None


def _compiled(source: str, path: str) -> Any:
    """The template, in an environment such as `transformers` gives it."""
    try:
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
    except ImportError:
        raise MeshkitError(f"{path}: its chat template needs jinja2: pip install 'meshkit[hf]'") from None

    class Generation(jinja2.ext.Extension):
        """{% generation %} … {% endgeneration %}: its content, between the marks that `_told` gives, else nothing."""

        tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            body = jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True))
            begins, ends = (
                jinja2.nodes.Output([jinja2.nodes.Name(f"generation_{name}", "load")]) for name in ("begins", "ends")
            )
            return [begins, body, ends]

    def refuse(reason: str) -> None:
        raise jinja2.TemplateError(reason)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **how: json.dumps(value, **{"ensure_ascii": False} | how)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = datetime.datetime.now().strftime  # one moment for all conversations
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise MeshkitError(f"{path}: line {error.lineno} of its chat template: {error.message}") from None
