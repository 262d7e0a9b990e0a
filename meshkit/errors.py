"""The one error that means "the user can mend this": it carries the numbers and the way out; its words."""

import difflib
from collections.abc import Iterable

RESTART = 75
"""Exit code of a process whose run may go on when it is started again: it hung, or lost another process. (EX_TEMPFAIL
of sysexits.h: "try again".)"""

SAVED = 76
"""Exit code of one that was asked to end before its last step and has saved, for who starts the run again: no failure,
so that nobody counts it."""

LATE = 77
"""Exit code of one whose run could not begin, as the other processes were not there in time: another start may do."""


class MeshkitError(ValueError):
    """A mistake in a config, a file, an argument or a cluster set-up.

    The command line prints its text without a traceback and exits with `exit_code`. Broken invariants of
    meshkit itself are `assert`s, not this.
    """

    exit_code = 1


def nearest(word: str, known: Iterable[str], most: int = 3) -> str:
    """A ready-made "did you mean" clause for an unknown `word`: the closest `known` ones, or all."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=most, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"known: {', '.join(known)}"


def counted(number: int, noun: str) -> str:
    """ "1 microbatch", "2 microbatches"."""
    plural = f"{noun}es" if noun.endswith(("ch", "ss")) else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
