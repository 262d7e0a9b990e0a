"""Checksums of a checkpoint's files: written before it gets its name, compared before it is loaded.

The file system's rename makes a checkpoint whole or absent; the checksums find what happens to it later.
"""

import concurrent.futures
import hashlib
import json
from collections.abc import Collection, Iterator

from etils import epath

from meshkit.checkpoint.place import is_url

MANIFEST = "checksums.json"
COMMITTED = "committed.json"
"""A second manifest, of the files that Orbax writes as it commits. Until it has, and where a process ends just then, of
no file; but it is there from the first, so that one that is missing was lost."""

OF_ORBAX = {"_CHECKPOINT_METADATA", "commit_success.txt"}
"""Top-level files that Orbax touches as it commits. No state is loaded from them, but it reads metrics there again."""

RECORD = "record/metadata"

BLOCK = 1 << 24  # bytes read at a time
THREADS = 8  # hashing leaves Python's lock; a network file system answers several requests better than one


def seal(folder: epath.Path) -> None:
    """Write the size and SHA-256 of every file of `folder` into its manifest, and the SHA-256 of that table."""
    (folder / COMMITTED).write_text(_manifest({}))
    files = {str(path.relative_to(folder)): path for path in _files(folder, {*OF_ORBAX, COMMITTED})}
    (folder / MANIFEST).write_text(_manifest(files))


def seal_commit(folder: epath.Path) -> None:
    """The same for what Orbax wrote since, once it has committed: whole or not at all."""
    text = _manifest({name: folder / name for name in OF_ORBAX})
    if is_url(str(folder)):  # there a file comes into being whole
        (folder / COMMITTED).write_text(text)
        return
    unfinished = folder / f"{COMMITTED}.tmp"
    unfinished.write_text(text)
    unfinished.replace(folder / COMMITTED)


def _manifest(files: dict[str, epath.Path]) -> str:
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        sums = dict(zip(files, pool.map(_sum, files.values()), strict=True))
    return json.dumps({"sha256": _of_table(sums), "files": sums}, indent=1)


def is_sealed(folder: epath.Path) -> bool:
    """Whether the checksums are there."""
    return (folder / MANIFEST).exists()


def damage(folder: epath.Path) -> list[str]:
    """What is wrong with the files of a checkpoint, or with its name, a sentence each; empty when it is whole."""
    wrong = _differs(folder, MANIFEST) + _differs(folder, COMMITTED)
    if wrong or not folder.name.isdecimal() or not (folder / RECORD).exists():
        return wrong
    step = json.loads((folder / RECORD).read_text())["step"]
    return [] if int(folder.name) == step else [f"its name is {folder.name}, and it holds step {step}"]


def _differs(folder: epath.Path, manifest: str) -> list[str]:
    """What differs from a manifest, a sentence a file."""
    try:
        content = json.loads((folder / manifest).read_text())
        sums = {str(name): (int(size), str(digest)) for name, (size, digest) in content["files"].items()}
        if content["sha256"] != _of_table(sums):
            return [f"{manifest} has other content than was written"]
    except FileNotFoundError:
        return [f"{manifest} is missing"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{manifest} cannot be read ({type(error).__name__})"]
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda name: _compare(folder / name, *sums[name]), sums)
        return [f"{name} {wrong}" for name, wrong in zip(sums, found, strict=True) if wrong]


def size(folder: epath.Path) -> int:
    """Bytes of the files of a checkpoint."""
    return sum(path.stat().length for path in _files(folder) if path.exists())


def _files(folder: epath.Path, left_out: Collection[str] = ()) -> Iterator[epath.Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from _files(path)
        elif path.name not in left_out:
            yield path


def _of_table(sums: dict[str, tuple[int, str]]) -> str:
    return hashlib.sha256(json.dumps(sums).encode()).hexdigest()


def _compare(path: epath.Path, size: int, digest: str) -> str:
    """What differs, or nothing."""
    try:
        found, read = _sum(path)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    if found != size:
        return f"has {found} bytes instead of {size}"
    return "" if read == digest else "has other content than was written"


def _sum(path: epath.Path) -> tuple[int, str]:
    """Bytes and SHA-256 of a file."""
    hasher, count = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            hasher.update(block)
            count += len(block)
    return count, hasher.hexdigest()
