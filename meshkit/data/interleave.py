"""Whose turn it is: proportions of whole numbers as a sequence that repeats, never a whole turn away from them.

R. Tijdeman, The chairman assignment problem, Discrete Mathematics 32 (1980).
"""

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from meshkit.errors import MeshkitError

LONGEST_PERIOD = 100_000  # positions; seconds to make, megabytes to keep


def whole_shares(weights: Sequence[float]) -> list[int]:
    """The smallest whole numbers in the proportions of `weights`, which are taken as they are written: 0.1 is 1/10.

    Raises MeshkitError for weights that have no sum of whole numbers up to LONGEST_PERIOD.
    """
    exact = [Fraction(repr(weight)) for weight in weights]
    scale = math.lcm(*(f.denominator for f in exact))
    numbers = [int(f * scale) for f in exact]
    divisor = math.gcd(*numbers)
    shares = [number // divisor for number in numbers]
    if sum(shares) > LONGEST_PERIOD:
        raise MeshkitError(
            f"data.tokens: the weights {', '.join(map(str, weights))} are {':'.join(map(str, shares))} in whole "
            f"numbers, which may add up to {LONGEST_PERIOD} at most: round them to three or four digits"
        )
    return shares


def interleaved(shares: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """One period, of sum(shares) positions: the source at each, uint16, and its positions before, int64.

    Tijdeman's rule, in whole numbers. With K sources, the j-th position of source k (from 1) may come as soon as
    weight · n ≥ j − 1 + 1/(2K−2), and must before weight · n exceeds j − 1/(2K−2) + weight; of those that may come, the
    one comes that must first. A source is then never as much as 1 away from weight · n.
    """
    count, period = len(shares), sum(shares)
    if count == 1:
        return np.zeros(period, np.uint16), np.arange(period)
    unit = 2 * count - 2
    source, before = np.zeros(period, np.uint16), np.zeros(period, np.int64)
    drawn = [0] * count
    later = [(_first(share, 0, period, unit), k) for k, share in enumerate(shares)]  # (may come, source)
    heapq.heapify(later)
    ready: list[tuple[int, int]] = []  # (must come, source)
    for place in range(period):
        while later and later[0][0] <= place + 1:
            _, k = heapq.heappop(later)
            heapq.heappush(ready, (_last(shares[k], drawn[k], period, unit), k))
        _, k = heapq.heappop(ready)
        source[place], before[place] = k, drawn[k]
        drawn[k] += 1
        heapq.heappush(later, (_first(shares[k], drawn[k], period, unit), k))
    return source, before


def _first(share: int, drawn: int, period: int, unit: int) -> int:
    """The least n with share / period · n ≥ drawn + 1 / unit."""
    return -(-(drawn * unit + 1) * period // (share * unit))


def _last(share: int, drawn: int, period: int, unit: int) -> int:
    """The greatest n with share / period · (n − 1) ≤ drawn + 1 − 1 / unit."""
    return ((drawn + 1) * unit - 1) * period // (share * unit) + 1
