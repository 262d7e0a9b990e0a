"""Where checkpoints can be: in a file system, or in Google Cloud Storage. Orbax writes arrays to no other bucket."""

import importlib.util
import re

from etils import epath

from meshkit.errors import MeshkitError

SCHEME = "gs://"
LIBRARY = "gcsfs"


def place(path: str, said: str = "") -> epath.Path:
    """The absolute path that a user means by `path`. said: with the key or option, for errors.

    Raises MeshkitError for a bucket of another kind, or when the library that reaches it is not installed.
    """
    if not is_url(path):
        return epath.Path(path).absolute()
    if not re.match(rf"{SCHEME}[^/]", path):
        raise MeshkitError(
            f"{said or path}: it is a folder of a file system (a mounted one too), or {SCHEME}BUCKET/FOLDER, of Google "
            "Cloud Storage; Orbax writes to no other kind of bucket"
        )
    if importlib.util.find_spec(LIBRARY) is None:
        raise MeshkitError(
            f"{said or path}: takes the package {LIBRARY}, which is not installed here: pip install 'meshkit[gcs]'"
        )
    import fsspec

    # What it remembers of a folder knows nothing of what TensorStore and other processes write there.
    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    return epath.Path(path)


def is_url(path: str) -> bool:
    """Whether it begins like gs://, with one slash or two: as a folder of a file system nobody means that."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path) is not None


def children(folder: epath.Path) -> list[epath.Path]:
    """What is in a folder; nothing where there is none, as a bucket has a folder only while files are in it."""
    return sorted(folder.iterdir()) if folder.is_dir() else []
