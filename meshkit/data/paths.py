"""What `data.tokens` may be: a path, a list of paths that are read as one, or a table {path = weight}, a mixture."""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator


def weights(tokens: str | list[str] | dict[str, float] | None) -> dict[str, float | None]:
    """Path -> weight of everything in `tokens`; None where there is no mixture."""
    if isinstance(tokens, dict):
        return dict(tokens)
    return dict.fromkeys([tokens] if isinstance(tokens, str) else tokens or [])


def _checked(value: Any) -> Any:
    """`value`; ValueError, in one sentence, for what is none of the three."""
    several = isinstance(value, list | Mapping) and value and all(isinstance(path, str) and path for path in value)
    if value is not None and not isinstance(value, str) and not several:
        raise ValueError(f"{value!r} is not a path, a list of paths or a table of paths and weights")
    for path, weight in value.items() if isinstance(value, Mapping) else ():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise ValueError(
                f"{path!r} has the weight {weight!r}: a weight is a number above 0; leave out what has none"
            )
    if isinstance(value, list) and len(set(value)) < len(value):
        raise ValueError(f"{value!r} names a path twice")
    return value


TokenPaths = Annotated[str | list[str] | dict[str, float] | None, BeforeValidator(_checked)]
