"""Conversations: rendered by the tokenizer's template, learned where the assistant speaks, laid into whole samples."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshkit.cli import main
from meshkit.config import DataConfig
from meshkit.data.chat import parse, prepare
from meshkit.data.chat_template import Encoder
from meshkit.data.sources import open_sources
from meshkit.data.tokens import TokenFile
from meshkit.errors import MeshkitError

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

TEMPLATE = """{{ bos_token }}{% for m in messages %}
<|{{ m.role }}|> {{ m.content }} <|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|> {% endif %}"""
MARKS = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
SEQUENCE = 16


def turn(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    words = {f"w{k}": k for k in range(30)} | {"?": 30}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(MARKS)
    (tmp_path / "model").mkdir()
    made.save(str(tmp_path / "model" / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path / "model" / "tokenizer.json"


def write(folder: Path, lines: list[Any]) -> str:
    path = folder / "chats.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def test_answers_and_their_closing_marks_are_targets(tokenizer: Path) -> None:
    encoder = Encoder.of(str(tokenizer))
    system = {"role": "system", "content": "w9"}
    ids, answers = encoder.encode([system, *turn("w1 w2", "w3 w4"), *turn("w5", "w6")])
    words = [encoder.marks.id_to_token(k) for k in ids]
    assert " ".join(words) == (
        "<s> <|system|> w9 <|end|> <|user|> w1 w2 <|end|> <|assistant|> w3 w4 <|end|> "
        "<|user|> w5 <|end|> <|assistant|> w6 <|end|>"
    )
    assert [word for word, answer in zip(words, answers, strict=True) if answer] == [
        "w3",
        "w4",
        "<|end|>",
        "w6",
        "<|end|>",
    ]


# As Qwen3's: reasoning is left out of earlier turns, and written, if empty, in the last alone.
THINKING = """{% for m in messages %}{% set content = m.content.split('</think>')[-1].strip() %}
{{ '<|' + m.role + '|> ' }}{% if loop.last and m.role == 'assistant' %}w20 {% endif %}{{ content + ' <|end|> ' }}
{% endfor %}{% if add_generation_prompt %}<|assistant|> {% endif %}"""


def learned(encoder: Encoder, messages: list[dict[str, str]]) -> str:
    """Tokens of the conversation, those of answers in brackets."""
    ids, answers = encoder.encode(messages)
    words = [encoder.marks.id_to_token(k) for k in ids]
    return " ".join(f"[{word}]" if answer else word for word, answer in zip(words, answers, strict=True))


def test_answers_are_found_in_the_whole_conversation(tokenizer: Path) -> None:
    beside = tokenizer.with_name("chat_template.jinja")
    beside.write_text(THINKING)
    messages = [*turn("w1", "<think> w7 </think>w2\n"), *turn("w2", "w2"), *turn("w3", "<think> w8 </think> w4 ")]
    assert learned(Encoder.of(str(tokenizer)), messages) == (
        "<|user|> w1 <|end|> <|assistant|> [w2] [<|end|>] <|user|> w2 <|end|> <|assistant|> [w2] [<|end|>] "
        "<|user|> w3 <|end|> <|assistant|> [w20] [w4] [<|end|>]"
    )
    beside.write_text("{% for m in messages %}{{ m.content[:3] }}{% endfor %}")
    with pytest.raises(ValueError, match="does not show where texts end"):
        Encoder.of(str(tokenizer)).encode(turn("w1", "w2"))
    beside.write_text("{% for m in messages %}{{ m.content * 2 }}{% endfor %}")
    with pytest.raises(ValueError, match="writes what stands before message 2 otherwise"):
        Encoder.of(str(tokenizer)).encode(messages)


# As Llama 2's: the system prompt stands in the first question, and white space is stripped from both together.
INSTRUCTIONS = """{% if messages[0].role == 'system' %}{% set system, turns = messages[0].content, messages[1:] %}
{% else %}{% set system, turns = none, messages %}{% endif %}
{% for m in turns %}{% set content = m.content if system is none or loop.index0 else
'<|system|> ' + system + '\n w0 \n\n' + m.content %}
{% if m.role == 'user' %}{{ bos_token + ' w8 ' + content.strip() + ' w9' }}
{% else %}{{ ' ' + content.strip() + ' </s>' }}{% endif %}{% endfor %}"""


@pytest.mark.parametrize("blank", ["", " \n"])
def test_blank_messages_are_written_as_transformers_does(tokenizer: Path, blank: str) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer), chat_template=INSTRUCTIONS, bos_token="<s>"
    )
    tokenizer.with_name("chat_template.jinja").write_text(INSTRUCTIONS)
    encoder, system = Encoder.of(str(tokenizer)), {"role": "system", "content": "w7"}
    first = "<s> w8 <|system|> w7 w0 w9 [w1] [</s>] "
    for messages, said in {
        (blank, "w1", "w2", "w3"): first + "<s> w8 w2 w9 [w3] [</s>]",
        (blank, "w1", blank, "w3"): first + "<s> w8 w9 [w3] [</s>]",
        (blank, "w1", "w2", blank): first + "<s> w8 w2 w9 [</s>]",
    }.items():
        chat = [system, *turn(*messages[:2]), *turn(*messages[2:])]
        assert encoder.encode(chat)[0].tolist() == theirs.apply_chat_template(chat, return_dict=True)["input_ids"]
        assert learned(encoder, chat) == said
    assert learned(encoder, turn(blank, "w1")) == "<s> w8 w9 [w1] [</s>]"


GENERATION = """{% for m in messages %}{{ '<|' + m.role + '|> ' }}{% if m.role == 'assistant' %}
{% generation %}{{ 'w9 ' if not loop.last }}{{ m.content + ' ' }}{% endgeneration %}{% else %}{{ m.content + ' ' }}
{% endif %}<|end|> {% endfor %}"""


def test_a_template_that_tells_answers_is_heard_as_transformers_does(tokenizer: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizer), chat_template=GENERATION)
    tokenizer.with_name("chat_template.jinja").write_text(GENERATION)
    messages = [*turn("w1 w2", "w3"), *turn("w4", "w5 w6")]
    want = theirs.apply_chat_template(messages, return_assistant_tokens_mask=True, return_dict=True)
    encoder = Encoder.of(str(tokenizer))
    ids, answers = encoder.encode(messages)
    assert (ids.tolist(), answers.astype(int).tolist()) == (want["input_ids"], want["assistant_masks"])
    assert "<|assistant|> [w9] [w3] <|end|> <|user|> w4" in learned(encoder, messages)
    tokenizer.with_name("chat_template.jinja").write_text("{% set a %}" + GENERATION + "{% endset %}{{ a + a[:3] }}")
    assert "[w9] [w3]" in learned(Encoder.of(str(tokenizer)), messages)


def test_no_conversation_crosses_a_sample(tokenizer: Path, tmp_path: Path, capsys: Any) -> None:
    """9 tokens each with its end; one of 25, which is cut; every sample begins with a conversation or is filled."""
    lines = [{"messages": turn(f"w{k}", f"w{k + 1} w{k + 2}")} for k in range(20)]
    lines[3] = {"prompt": "w7", "answer": " ".join(["w8"] * 18)}
    command = ["data", "prepare", write(tmp_path, lines), "--out", str(tmp_path / "out"), "--chat"]
    command += ["--tokenizer", str(tokenizer), "--sequence", str(SEQUENCE), "--held-out", "0.2"]
    assert main(command) == 0
    said, warned = capsys.readouterr()
    assert "20 conversations in" in said
    assert "1 conversations were longer and are cut, 0 lines are left out" in said
    assert warned.startswith(
        "warning: 9 of 76 tokens of answers are cut away, of 1 conversations longer than 16 tokens"
    )
    config = DataConfig(tokens=str(tmp_path / "out"), sequence=SEQUENCE, documents="apart")
    sources = open_sources(config)
    seen = 0
    for source in (sources.train, sources.held_out):
        for k in range(len(source)):
            sample = source[k]
            assert sample["tokens"][0] == 31  # <s>: each sample here begins with a conversation
            learned = sample["targets"][sample["weights"] > 0]
            assert set(learned) <= {*range(30), 36}
            seen += (learned == 36).sum() + (len(learned) == SEQUENCE - 6)  # what is left of the one that is cut
            follows = np.append(sample["tokens"][1:], sample["targets"][-1])
            np.testing.assert_array_equal(sample["targets"], follows)
    assert seen == 20
    train = TokenFile.open(tmp_path / "out", "train")
    assert len(train.tokens) % SEQUENCE == 1


def test_a_run_learns_answers_alone(tokenizer: Path, tmp_path: Path) -> None:
    """Only the weights tell: what a source gives is what the folder says."""
    lines = [{"messages": turn("w1", "w2")}, {"messages": turn("w3", "w4")}]
    prepare([write(tmp_path, lines)], tmp_path / "out", str(tokenizer), 12)
    for changed, said in (
        ({"sequence": 8}, r"data\.sequence = 8: .* laid for samples of 12 tokens: set it to 12"),
        ({"documents": "joined"}, r"data\.documents = 'joined': .* set it to 'apart'"),
    ):
        with pytest.raises(MeshkitError, match=said):
            open_sources(
                DataConfig(**{"tokens": str(tmp_path / "out"), "sequence": 12, "documents": "apart"} | changed)
            )
    targets = tmp_path / "out" / "train.targets.npy"
    np.save(targets, np.zeros_like(np.load(targets)))
    with pytest.raises(MeshkitError, match="no token of its train split is part of an answer"):
        open_sources(DataConfig(tokens=str(tmp_path / "out"), sequence=12, documents="apart"))


def test_answers_that_are_all_cut_away_are_an_error(tokenizer: Path, tmp_path: Path) -> None:
    text = write(tmp_path, [{"prompt": " ".join(["w1"] * 20), "answer": f"w{k}"} for k in range(4)])
    with pytest.raises(MeshkitError, match=r"no token of an answer is left .* 4 of 4 .* lose 8 tokens .* --sequence"):
        prepare([text], tmp_path / "out", str(tokenizer), SEQUENCE)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("chat", [["--chat", "--workers", "0"], ["--chat", "--column", "zz"], ["--sequence", "8"]])
def test_options_without_effect_are_refused(chat: list[str], tmp_path: Path, capsys: Any) -> None:
    assert main(["data", "prepare", "chats.jsonl", "--out", str(tmp_path / "out"), *chat]) == 1
    assert f"error: {' '.join(chat[-2:])} has no effect with" in capsys.readouterr().err


def test_settings_out_of_range_are_named(tokenizer: Path, tmp_path: Path) -> None:
    text = write(tmp_path, [{"messages": turn("w1", "w2")}] * 2)
    for sequence, share, said in ((0, 0.1, "--sequence 0"), (-3, 0.1, "--sequence -3"), (SEQUENCE, 2, "held_out = 2")):
        with pytest.raises(MeshkitError, match=said):
            prepare([text], tmp_path / "out", str(tokenizer), sequence, share)


BAD = {
    "no JSON": ("{", "no JSON"),
    "another form": ({"text": "w1"}, r'neither \{"messages"'),
    "nobody answers": ({"messages": turn("w1", "w2")[:1]}, "there is nothing to learn"),
    "no text": ({"messages": [{"role": "assistant", "content": None}]}, "a message is"),
    "half of a character": ('{"prompt": "w1", "answer": "w2 \\ud800"}', "not UTF-8: surrogates not allowed"),
    "deep": ("[" * 100_000, "no JSON: maximum recursion"),
    "tools": (
        {"messages": turn("w1", "w2"), "tools": [{"name": "w3"}]},
        "tools: of a conversation only roles and texts",
    ),
    "a call": ({"messages": [turn("w1", "w2")[0], turn("w1", "w2")[1] | {"tool_calls": [{}]}]}, "tool_calls: "),
    "a special token": ({"messages": turn("w1 <|end|>", "w2")}, r"holds the special token '<\|end\|>'"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_used_is_named_or_left_out(what: str, tokenizer: Path, tmp_path: Path) -> None:
    line, said = BAD[what]
    good = [{"messages": turn("w1", "w2")}, {"messages": turn("w3", "w4")}]
    text = write(tmp_path, [good[0], line, good[1]])
    with pytest.raises(MeshkitError, match=rf"chats\.jsonl: line 2: .*{said}"):
        prepare([text], tmp_path / "out", str(tokenizer), SEQUENCE)
    assert not (tmp_path / "out").exists()
    summary = prepare([text], tmp_path / "out", str(tokenizer), SEQUENCE, skip=True)
    assert (summary.conversations, len(summary.skipped)) == (2, 1)


def test_templates_that_cannot_be_used_are_named(tokenizer: Path) -> None:
    beside = tokenizer.with_name("chat_template.jinja")
    messages = [*turn("w1", "w2"), *turn("w3", "w4")]
    beside.write_text("{% for m in messages %}{{ m.content if loop.last else 'w0' }} {% endfor %}")
    with pytest.raises(ValueError, match="writes what stands before message 2 otherwise once others follow"):
        Encoder.of(str(tokenizer)).encode(messages)
    beside.write_text("{{ raise_exception('no') }}")
    with pytest.raises(ValueError, match="the chat template refuses it: no"):
        Encoder.of(str(tokenizer)).encode(messages)
    beside.write_text("{% for m in messages %}{{ m.content }}{% endfor %}{% generation %}{% endgeneration %}")
    with pytest.raises(ValueError, match="marks no answer in it"):
        Encoder.of(str(tokenizer)).encode(messages)
    for wrong, said in (("{{ 1/0 }}", "division by zero"), ("{{ messages|length + 'a' }}", "unsupported operand")):
        beside.write_text(wrong)
        with pytest.raises(ValueError, match=f"the chat template refuses it: {said}"):
            Encoder.of(str(tokenizer)).encode(messages)
    beside.write_bytes(b"\xff\xfe")
    with pytest.raises(MeshkitError, match=r"chat_template\.jinja: cannot be read as UTF-8"):
        Encoder.of(str(tokenizer))
    beside.write_text("{% if %}")
    with pytest.raises(MeshkitError, match="line 1 of its chat template"):
        Encoder.of(str(tokenizer))
    beside.unlink()
    tokenizer.with_name("tokenizer_config.json").unlink()
    with pytest.raises(MeshkitError, match=r"has no chat template: neither chat_template\.jinja"):
        Encoder.of(str(tokenizer))
    with pytest.raises(MeshkitError, match="--chat needs --tokenizer FILE"):
        Encoder.of(None)


def test_a_template_is_rendered_as_transformers_does(tokenizer: Path) -> None:
    transformers = pytest.importorskip("transformers")
    template = "{{ strftime_now('%Y') == '' }} {{ bos_token | tojson(ensure_ascii=True) }}" + TEMPLATE
    tokenizer.with_name("chat_template.jinja").write_text(template)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer), chat_template=template, bos_token="<s>"
    )
    messages = parse(json.dumps({"messages": turn("w1 w2", "w3")}).encode())
    want = theirs.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
    assert Encoder.of(str(tokenizer)).encode(messages)[0].tolist() == want
