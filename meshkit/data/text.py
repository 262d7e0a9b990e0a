"""From text to token ids and back: one token a byte, or a tokenizer.json of the `tokenizers` package."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from meshkit.data.corrupt import CorruptError
from meshkit.data.tokens import BYTES, Header
from meshkit.errors import MeshkitError

CHUNK = 1 << 20  # bytes read at a time

# How published tokenizers call the token that ends a document.
END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<｜end▁of▁sentence｜>")


class Tokenizer(Protocol):
    """Ids 0 … vocab − 1; `end` closes a document and never stands for text.

    bytewise: the ids of two halves of a file, wherever it is cut, are those of the whole.
    """

    vocab: int
    end: int
    bytewise: bool

    def encode(self, text: str) -> np.ndarray:
        """The ids of `text`, int [n], without the end token."""

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode` of each text, faster than one by one."""

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of `ids`; end tokens give nothing."""

    def encode_file(self, file: IO[bytes], size: int) -> Iterator[np.ndarray]:
        """The ids of the next `size` bytes of `file`, piece by piece; MeshkitError when they cannot be encoded."""


class ByteTokenizer:
    """One token a byte, and one more for the end of a document: 257 ids, for any text in any encoding."""

    vocab, end, bytewise = 257, 256, True

    def encode(self, text: str) -> np.ndarray:
        """The UTF-8 bytes of `text`, uint8 [n]."""
        return np.frombuffer(text.encode("utf-8"), np.uint8)

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The UTF-8 bytes of each text."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD, end tokens nothing."""
        return bytes(int(i) for i in ids if i != self.end).decode("utf-8", errors="replace")

    def encode_file(self, file: IO[bytes], size: int) -> Iterator[np.ndarray]:
        """The next `size` bytes of `file`, uint8, a chunk at a time."""
        while size and (chunk := file.read(min(size, CHUNK))):
            size -= len(chunk)
            yield np.frombuffer(chunk, np.uint8)


class FileTokenizer:
    """A tokenizer.json. Special tokens written out in the text are read as plain text, so no text can end a document.

    Raises MeshkitError when the `tokenizers` package or the file is missing, or the file is no tokenizer.
    """

    bytewise = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            import tokenizers
        except ImportError:
            raise MeshkitError(
                f"data.tokenizer = {str(path)!r} needs the `tokenizers` package: pip install 'meshkit[hf]', "
                "or leave data.tokenizer out for one token a byte"
            ) from None
        if not Path(path).is_file():
            raise MeshkitError(f"{path}: no such tokenizer file (data.tokenizer)")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises bare Exception for a file it cannot parse
            raise MeshkitError(f"{path}: not a tokenizer.json: {error}") from None
        # A published file may ask to cut or pad every text to a model's context.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        size = max(ids.values(), default=-1) + 1
        self.end: int = next((ids[name] for name in END_NAMES if name in ids), size)
        self.vocab: int = max(size, self.end + 1)

    def encode(self, text: str) -> np.ndarray:
        """The ids of `text`, int64 [n], without any token that the tokenizer would put around it."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text; the package works on several cores unless TOKENIZERS_PARALLELISM=false."""
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)  # without places in the text
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of `ids`; end tokens give nothing."""
        return self._tokenizer.decode([int(i) for i in ids if i != self.end], skip_special_tokens=False)

    def encode_file(self, file: IO[bytes], size: int) -> Iterator[np.ndarray]:
        """The ids of the next `size` bytes of `file`, read whole (see `read_text`)."""
        yield self.encode(read_text(file, size))


def read_text(file: IO[bytes], size: int) -> str:
    """The next `size` bytes of `file`, a text for a tokenizer: whole, as a cut could fall inside a token.

    Raises CorruptError naming the position of the first byte that is not UTF-8.
    """
    start, data = file.tell(), file.read(size)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptError(
            f"{file.name}: byte {start + error.start} (0x{data[error.start]:02x}) is not UTF-8, which a tokenizer "
            "reads: convert the file, leave it out of data.text, or leave data.tokenizer out for one token a byte"
        ) from None


def load_tokenizer(path: str | os.PathLike[str] | None) -> Tokenizer:
    """The tokenizer of a `data.tokenizer` value; None: one token a byte."""
    return ByteTokenizer() if path is None else FileTokenizer(path)


def tokenizer_of(folder: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer that made the tokens of a prepared folder."""
    name = Header.read(Path(folder)).tokenizer
    return load_tokenizer(None if name == BYTES else Path(folder) / name)
