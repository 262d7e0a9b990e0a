"""What a run trains and is evaluated on, from its config: token files, text, or the user's own data set.

The held-out splits of several token files are put together as the train splits are: joined, or mixed in the same
proportions.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from meshkit.config import DataConfig
from meshkit.data import chat, megatron, paths
from meshkit.data.interleave import whole_shares
from meshkit.data.loader import Source, TokenSource
from meshkit.data.mixture import Joined, Mixture
from meshkit.data.prepare import prepare_cached
from meshkit.data.tokens import BYTES, TokenFile
from meshkit.errors import MeshkitError
from meshkit.imports import check_callable, load_object

UserDataset = Callable[[DataConfig, str], Source]
"""A user's data set: (the config's data table, "train" or "held_out") -> a Source."""


@dataclasses.dataclass(frozen=True)
class Sources:
    """train, held_out: samples. files: the (train, held out) token files behind them; none of a user's own data set.

    identity: the same for the same training samples in the same proportions, what a checkpoint knows its data by.
    """

    train: Source
    held_out: Source
    identity: str
    files: tuple[tuple[TokenFile, TokenFile], ...] = ()

    @property
    def vocab(self) -> int | None:
        """Ids are below this; None when only the user knows."""
        return next((train.vocab for train, _ in self.files if train.vocab is not None), None)


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
            "prepare at start), data.tokens (prepared folders) and data.dataset (your own)"
        )
    if dataset is None and config.dataset:
        dataset = load_object(config.dataset, "data.dataset")
    if dataset is not None:
        check_callable(dataset, "data.dataset", "data_config", "split")
        train, held_out = (_checked(dataset(config, split), split) for split in ("train", "held_out"))
        return Sources(train, held_out, f"{type(train).__module__}.{type(train).__qualname__}, {len(train)} samples")
    weights = paths.weights(config.tokens)
    if config.text:
        weights = {str(prepare_cached(config.text, cache_folder(), config.tokenizer, config.held_out)): None}
    files = tuple(_open(Path(path), config.held_out) for path in weights)
    _check_alike([train for train, _ in files])
    shares = None if None in weights.values() else whole_shares([w for w in weights.values() if w is not None])
    train, held_out = (_as_one([_source(f, config) for f in of], shares) for of in zip(*files, strict=True))
    names = [file.identity for file, _ in files]
    identity = " + ".join(
        names if shares is None else [f"{n} × ({name})" for n, name in zip(shares, names, strict=True)]
    )
    return Sources(train, held_out, identity if len(files) > 1 else names[0], files)


def _open(path: Path, held_out: float) -> tuple[TokenFile, TokenFile]:
    """The two splits of what one entry of data.tokens names."""
    prefix = None if path.is_dir() else megatron.prefix_of(path)
    if prefix is not None:
        return megatron.split(prefix, held_out)
    if not path.is_dir():
        raise MeshkitError(
            f"{path}: no such folder of tokens; make it with `meshkit data prepare`; nor are there {path.name}.idx and "
            ".bin of Megatron"
        )
    return TokenFile.open(path, "train"), TokenFile.open(path, "held_out")


def _source(file: TokenFile, config: DataConfig) -> TokenSource:
    apart = config.documents == "apart"
    return TokenSource(file, config.sequence, apart, chat.targets_of(file, config.sequence, apart))


def _as_one(sources: Sequence[TokenSource], shares: Sequence[int] | None) -> Source:
    if len(sources) == 1:
        return sources[0]
    return Joined(sources) if shares is None else Mixture(sources, shares)


def _check_alike(files: Sequence[TokenFile]) -> None:
    """MeshkitError when two of the files whose tokenizer is known have not the same."""
    known = [file for file in files if file.tokenizer]
    for file in known[1:]:
        if _tokenizer(file) != _tokenizer(known[0]):
            raise MeshkitError(
                f"data.tokens: {file.folder} was made with another tokenizer than {known[0].folder}: prepare one anew"
            )


def _tokenizer(file: TokenFile) -> bytes:
    return BYTES.encode() if file.tokenizer == BYTES else (file.folder / file.tokenizer).read_bytes()


def _checked(source: Any, split: str) -> Source:
    if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        raise MeshkitError(
            f"data.dataset: for {split!r} it returned a {type(source).__name__}: it must return an object with "
            "__len__ and __getitem__(index) -> dict of tokens, targets, weights"
        )
    return source
