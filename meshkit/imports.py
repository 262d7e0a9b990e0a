"""A user's own model, loss or data set, named in a config as 'package.module:object'."""

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from meshkit.errors import MeshkitError, nearest


def load_object(path: str, key: str, known: Iterable[str] = ()) -> Any:
    """The object that `path` names; modules in the working directory are found too.

    key: the config key, for errors. known: built-in names that the key also takes.
    Raises MeshkitError when the form, the module or the object is wrong.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise MeshkitError(f"{key} = {path!r}: not a built-in and not 'package.module:object'; {nearest(path, known)}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise MeshkitError(f"{key} = {path!r}: {error}; is it installed, or in the working directory?") from None
    try:
        return getattr(module, name)
    except AttributeError:
        public = [n for n in vars(module) if not n.startswith("_")]
        raise MeshkitError(f"{key} = {path!r}: module {module_name} has no {name!r}; {nearest(name, public)}") from None
