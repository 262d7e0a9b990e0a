"""Pieces encoded by several processes, their tokens in the pieces' order."""

import collections
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np

from meshkit.data.pieces import Encoded, Piece, encode
from meshkit.data.text import Tokenizer, load_tokenizer
from meshkit.errors import MeshkitError

AHEAD = 2  # pieces a process may be ahead of the writer


@dataclass(frozen=True)
class Work:
    """How pieces are encoded: see `pieces.encode`. tokenizer: a file, None for bytes."""

    tokenizer: str | None
    column: str
    dtype: np.dtype
    skip: bool


def encoded(pieces: Sequence[Piece], work: Work, workers: int | None) -> Generator[Encoded, None, None]:
    """The tokens of `pieces`, in order, by `workers` processes of one core each.

    None: in this process, where the `tokenizers` package takes the cores that it finds. Raises MeshkitError for what
    a process cannot encode, the first in the order of the pieces, and when one ends by itself.
    """
    if workers is None:
        tokenizer = load_tokenizer(work.tokenizer)
        for piece in pieces:
            yield encode(piece, tokenizer, work.column, work.dtype, work.skip)
        return
    # Processes begun anew: a fork of one that has threads, as JAX's or pyarrow's, may wait for ever.
    pool = ProcessPoolExecutor(
        min(workers, max(len(pieces), 1)), multiprocessing.get_context("spawn"), initializer=_begin, initargs=(work,)
    )
    try:
        waiting: collections.deque[Future[Encoded]] = collections.deque()
        rest = iter(pieces)
        for piece in pieces:
            try:
                waiting.extend(pool.submit(_encode, p) for p in itertools.islice(rest, AHEAD * workers - len(waiting)))
                found = waiting.popleft().result()
            except BrokenProcessPool:
                raise MeshkitError(
                    f"a process ended by itself, at {piece.stretches[0].document.path} or up to {AHEAD * workers} "
                    "pieces later (is the memory full?): the same command goes on, perhaps with fewer --workers"
                ) from None
            yield found
    finally:
        pool.shutdown(cancel_futures=True)


_work: tuple[Work, Tokenizer]
"""Of a worker process."""


def _begin(work: Work) -> None:
    global _work
    # Ctrl-C reaches all processes of a terminal: the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core a process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _work = work, load_tokenizer(work.tokenizer)


def _end_with_parent() -> None:
    """A process whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode(piece: Piece) -> Encoded:
    work, tokenizer = _work
    return encode(piece, tokenizer, work.column, work.dtype, work.skip)
