"""A user's own model, loss or data set, named in a config as 'package.module:object'."""

import importlib
import inspect
import sys
import traceback
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
    if not colon or not module_name or not name or module_name.startswith("."):
        known = list(known)
        what, hint = ("not a built-in and not", f"; {nearest(path, known)}") if known else ("not of the form", "")
        raise MeshkitError(f"{key} = {path!r}: {what} 'package.module:object'{hint}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        what = "is it" if error.name == module_name else f"{module_name} imports it: is it"
        raise MeshkitError(f"{key} = {path!r}: {error}; {what} installed, or in the working directory?") from None
    except Exception as error:  # whatever the user's module does when it is imported
        where = "".join(
            f", {frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-1:]
        )
        raise MeshkitError(
            f"{key} = {path!r}: importing {module_name} failed{where}: {type(error).__name__}: {error}"
        ) from error
    try:
        found = getattr(module, name)
    except AttributeError:
        public = [n for n in vars(module) if not n.startswith("_")]
        raise MeshkitError(f"{key} = {path!r}: module {module_name} has no {name!r}; {nearest(name, public)}") from None
    return found


def check_callable(thing: Any, key: str, *arguments: str) -> None:
    """MeshkitError, naming `key`, unless `thing` can be called with these positional arguments."""
    # A class of NNX hides the arguments of its __init__ behind a metaclass.
    of_class = isinstance(thing, type)
    function = thing.__init__ if of_class else thing
    try:
        inspect.signature(function).bind(*["self"] * of_class, *arguments)
    except (TypeError, ValueError) as error:
        wanted = f"it must be callable as {getattr(thing, '__name__', 'it')}({', '.join(arguments)})"
        raise MeshkitError(f"{key}: {_spell(thing)}: {wanted}: {error}") from None


def _spell(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}" if hasattr(thing, "__qualname__") else repr(thing)
