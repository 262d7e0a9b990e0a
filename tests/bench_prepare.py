"""How fast text becomes tokens: `python -m tests.bench_prepare [TEXT…] [--tokenizer FILE]`. No test: figures.

MB/s a core of `meshkit data prepare` on lines of JSON, beside a plain loop over `tokenizers`' encode_batch with one
thread, which reads nothing and writes nothing. By turns, medians. Without arguments: Python's own sources, and a
byte-level BPE of 8192 ids trained on them.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tokenizers

from meshkit.data.documents import find
from meshkit.data.prepare import prepare

MEGABYTES = 30
BATCH = 1000  # texts given to encode_batch at a time


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench_prepare", description=__doc__)
    parser.add_argument("text", nargs="*", default=["{stdlib}/**/*.py"])
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = _texts(options.text)
        size = sum(len(text.encode()) for text in texts) / 1e6
        tokenizer = options.tokenizer or _trained(texts, folder / "tokenizer.json")
        lines = folder / "texts.jsonl"
        lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        loop, ours, wall = [], [], []
        for number in range(options.rounds):
            loop.append(size / _loop(tokenizer, texts))
            start = time.perf_counter()
            summary = prepare([str(lines)], folder / f"out{number}", str(tokenizer), workers=options.workers)
            wall.append(size / (time.perf_counter() - start))
            ours.append(summary.megabytes_a_second)
    print(f"{size:.1f} MB in {len(texts)} texts")
    print(f"encode_batch alone   {statistics.median(loop):6.2f} MB/s a core")
    ratio = statistics.median(ours) / statistics.median(loop)
    print(f"meshkit data prepare {statistics.median(ours):6.2f} MB/s a core, {ratio:.2f} of it")
    print(f"  with {options.workers} workers {statistics.median(wall):6.2f} MB/s in all, their start included")


def _texts(text: list[str]) -> list[str]:
    found, size = [], 0
    for document in find(text):
        content = document.path.read_text(encoding="utf-8", errors="ignore")
        if content:
            found.append(content)
            size += len(content)
        if size > MEGABYTES * 1e6:
            break
    return found


def _trained(texts: list[str], path: Path) -> Path:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=8192, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts[:300], trainer)
    tokenizer.save(str(path))
    return path


def _loop(path: Path, texts: list[str]) -> float:
    """CPU seconds."""
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    start = time.process_time()
    for first in range(0, len(texts), BATCH):
        [encoding.ids for encoding in tokenizer.encode_batch(texts[first : first + BATCH], add_special_tokens=False)]
    return time.process_time() - start


if __name__ == "__main__":
    main()
