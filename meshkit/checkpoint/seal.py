"""Checksums of a checkpoint's files: written before it gets its name, compared before it is loaded.

The file system's rename makes a checkpoint whole or absent; the checksums find what happens to it later.
"""

import concurrent.futures
import hashlib
import json
from collections.abc import Collection, Iterator

from etils import epath

MANIFEST = "checksums.json"

UNSEALED = {"_CHECKPOINT_METADATA", "commit_success.txt", MANIFEST}
"""Top-level files that Orbax touches again as it commits; nothing is loaded from them."""

BLOCK = 1 << 24  # bytes read at a time
THREADS = 8  # hashing leaves Python's lock; a network file system answers several requests better than one


def seal(folder: epath.Path) -> None:
    """Write the size and SHA-256 of every file of `folder` into its manifest, and the SHA-256 of that table."""
    files = {str(path.relative_to(folder)): path for path in _files(folder)}
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        sums = dict(zip(files, pool.map(_sum, files.values()), strict=True))
    (folder / MANIFEST).write_text(json.dumps({"sha256": _of_table(sums), "files": sums}, indent=1))


def is_sealed(folder: epath.Path) -> bool:
    """Whether the checksums are there."""
    return (folder / MANIFEST).exists()


def damage(folder: epath.Path) -> list[str]:
    """What is wrong with the files of a checkpoint, a sentence each; empty when it is whole."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        sums = {str(name): (int(size), str(digest)) for name, (size, digest) in manifest["files"].items()}
        if manifest["sha256"] != _of_table(sums):
            return [f"{MANIFEST} has other content than was written"]
    except FileNotFoundError:
        return [f"{MANIFEST} is missing"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{MANIFEST} cannot be read ({type(error).__name__})"]
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda name: _compare(folder / name, *sums[name]), sums)
        return [f"{name} {wrong}" for name, wrong in zip(sums, found, strict=True) if wrong]


def size(folder: epath.Path) -> int:
    """Bytes of the files of a checkpoint."""
    return sum(path.stat().length for path in _files(folder))


def _files(folder: epath.Path, left_out: Collection[str] = UNSEALED) -> Iterator[epath.Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from _files(path, left_out=())
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
