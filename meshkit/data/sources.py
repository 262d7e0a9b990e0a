"""What a run trains and is evaluated on, from its config: a prepared folder, text, or the user's own data set."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshkit.config import DataConfig
from meshkit.data import chat
from meshkit.data.loader import Source, TokenSource
from meshkit.data.prepare import prepare_cached
from meshkit.data.tokens import Header, TokenFile
from meshkit.errors import MeshkitError
from meshkit.imports import check_callable, load_object

UserDataset = Callable[[DataConfig, str], Source]
"""A user's data set: (the config's data table, "train" or "held_out") -> a Source."""


@dataclasses.dataclass(frozen=True)
class Sources:
    """train, held_out: samples. files: the token files behind them, None for a user's own data set."""

    train: Source
    held_out: Source
    files: tuple[TokenFile, TokenFile] | None = None

    @property
    def vocab(self) -> int | None:
        """Ids are below this; None when only the user knows."""
        return self.files[0].vocab if self.files else None

    @property
    def identity(self) -> str:
        """The same for the same training samples: what a checkpoint knows its data by."""
        if self.files is None:
            return f"{type(self.train).__module__}.{type(self.train).__qualname__}, {len(self.train)} samples"
        counts = Header.read(self.files[0].folder).splits["train"]
        return f"{counts.tokens} tokens, CRC-32 {counts.crc32:08x}"


def cache_folder() -> Path:
    """Where prepared `data.text` is kept: a matter of the machine, so by the XDG convention, not of the config."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "meshkit"


def open_sources(config: DataConfig, dataset: UserDataset | None = None) -> Sources:
    """The sources that `config` names, or those of `dataset`.

    Raises MeshkitError when not exactly one of data.tokens, data.text and data.dataset is given.
    """
    named = [key for key in ("tokens", "text", "dataset") if getattr(config, key)]
    if len(named) + (dataset is not None) != 1:
        given = " and ".join(f"data.{key}" for key in named) + (
            " and the argument dataset" if dataset and named else ""
        )
        raise MeshkitError(
            f"{given or 'no data'} {'are' if given else 'is'} given: set exactly one of data.text (files to "
            "prepare at start), data.tokens (a prepared folder) and data.dataset (your own)"
        )
    if dataset is None and config.dataset:
        dataset = load_object(config.dataset, "data.dataset")
    if dataset is not None:
        check_callable(dataset, "data.dataset", "data_config", "split")
        train, held_out = (_checked(dataset(config, split), split) for split in ("train", "held_out"))
        return Sources(train, held_out)
    folder = (
        Path(config.tokens)
        if config.tokens
        else prepare_cached(config.text, cache_folder(), config.tokenizer, config.held_out)
    )
    files = TokenFile.open(folder, "train"), TokenFile.open(folder, "held_out")
    train, held_out = (_source(file, config) for file in files)
    return Sources(train, held_out, files)


def _source(file: TokenFile, config: DataConfig) -> TokenSource:
    apart = config.documents == "apart"
    return TokenSource(file, config.sequence, apart, chat.targets_of(file, config.sequence, apart))


def _checked(source: Any, split: str) -> Source:
    if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        raise MeshkitError(
            f"data.dataset: for {split!r} it returned a {type(source).__name__}: it must return an object with "
            "__len__ and __getitem__(index) -> dict of tokens, targets, weights"
        )
    return source
