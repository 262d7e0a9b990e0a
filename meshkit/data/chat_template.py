"""A tokenizer's chat template: conversations to ids, and which of them an assistant said.

The template is a Jinja program, published beside tokenizer.json; it is run in Jinja's sandbox. What an assistant's
message adds to the rendered text before it, its closing mark included, is an answer.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from meshkit.data.text import FileTokenizer
from meshkit.errors import MeshkitError

ASSISTANT = "assistant"
Messages = list[dict[str, Any]]
"""Of a conversation: role and content of each."""


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

        tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

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
