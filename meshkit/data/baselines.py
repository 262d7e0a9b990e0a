"""What counting gives: held-out losses of n-gram models, to judge a Transformer's loss by."""

import math

import numpy as np

from meshkit.data.tokens import TokenFile
from meshkit.errors import MeshkitError

LARGEST_TABLE = 4096  # ids; the bigram table is vocab × vocab int64
CHUNK = 1 << 22  # tokens counted at a time


def ngram_losses(train: TokenFile, held_out: TokenFile) -> dict[str, float]:
    """Cross-entropy in nats a token of "uniform", "unigram" and "bigram" models on the held-out split.

    Counted on the train split with add-one smoothing, p(b | a) = (count(a, b) + 1) / (count(a) + vocab);
    all judged on the same tokens, every one but the first, as a Transformer is. "bigram" is left out
    for vocabularies over 4096 ids, whose table would not fit. Raises MeshkitError for splits that differ
    in vocabulary or hold fewer than two tokens.
    """
    vocab = train.vocab
    assert vocab is not None, "Megatron's files do not say it"
    if held_out.vocab != vocab:
        raise MeshkitError(f"{held_out.folder} has a vocabulary of {held_out.vocab}, {train.folder} one of {vocab}")
    for file in (train, held_out):
        if file.tokens.size < 2:
            raise MeshkitError(f"{file.folder}: {file.split} has {file.tokens.size} token: nothing to predict")
    losses = {"uniform": math.log(vocab)}
    seen, asked = _counts(train.tokens[1:], vocab), _counts(held_out.tokens[1:], vocab)
    losses["unigram"] = _loss(np.log(seen + 1) - math.log(seen.sum() + vocab), asked)
    if vocab <= LARGEST_TABLE:
        seen, asked = _pair_counts(train.tokens, vocab), _pair_counts(held_out.tokens, vocab)
        losses["bigram"] = _loss(np.log(seen + 1) - np.log(seen.sum(1, keepdims=True) + vocab), asked)
    return losses


def _loss(log_p: np.ndarray, asked: np.ndarray) -> float:
    """Mean of −log p over the tokens counted in `asked`; both of one shape."""
    return float(-(asked * log_p).sum() / asked.sum())


def _counts(tokens: np.ndarray, vocab: int) -> np.ndarray:
    """int64 [vocab]: how often each id occurs."""
    total = np.zeros(vocab, np.int64)
    for start in range(0, tokens.size, CHUNK):
        total += np.bincount(tokens[start : start + CHUNK], minlength=vocab)
    return total


def _pair_counts(tokens: np.ndarray, vocab: int) -> np.ndarray:
    """int64 [vocab, vocab]: how often id b follows id a."""
    total = np.zeros(vocab * vocab, np.int64)
    for start in range(0, tokens.size - 1, CHUNK):
        ids = tokens[start : start + CHUNK + 1].astype(np.int64)
        total += np.bincount(ids[:-1] * vocab + ids[1:], minlength=vocab * vocab)
    return total.reshape(vocab, vocab)
