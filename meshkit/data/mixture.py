"""Several sources as one: joined, or mixed in given proportions.

Of a mixture, position g of a run belongs to source k so often that among the first n positions, for every n, k has
less than one more or less than weight · n (see interleave.py). Each source is shuffled anew in each of its own epochs,
which are as long as it is: a sample comes once in each.
"""

import bisect
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from meshkit.data.interleave import interleaved
from meshkit.data.loader import Samples, Source, shuffled
from meshkit.errors import MeshkitError


class Joined:
    """Sources one after the other, as one."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)
        self._ends = list(itertools.accumulate(map(len, sources)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int, /) -> Mapping[str, np.ndarray]:
        number = bisect.bisect_right(self._ends, index)
        return self.sources[number][index - (self._ends[number] - len(self.sources[number]))]

    def ordered(self, seed: int) -> Samples:
        """The samples by their position in a run with `seed`, all shuffled together."""
        return shuffled(self, seed)

    def __repr__(self) -> str:
        return " and ".join(map(repr, self.sources))


class Mixture:
    """Sources in proportions: `shares` are whole numbers, those of each among their sum.

    Its length is that of the longest beginning in which no source comes to its second epoch.
    """

    def __init__(self, sources: Sequence[Source], shares: Sequence[int]) -> None:
        for source in sources:
            if not len(source):
                raise MeshkitError(f"{source!r} has no sample: give it more text, lower data.sequence, or leave it out")
        self.sources, self.shares = tuple(sources), tuple(shares)
        self._source, self._before = interleaved(shares)  # of one period

    def __len__(self) -> int:
        return min(self._position(k, len(source)) for k, source in enumerate(self.sources))

    def __getitem__(self, position: int, /) -> Mapping[str, np.ndarray]:
        """What stands at `position` when no source is shuffled."""
        source, index = self.draw(position)
        return self.sources[source][index % len(self.sources[source])]

    def draw(self, position: int) -> tuple[int, int]:
        """(source, how many samples were drawn from it before) at `position`."""
        period, place = divmod(position, len(self._source))
        source = int(self._source[place])
        return source, period * self.shares[source] + int(self._before[place])

    def ordered(self, seed: int) -> Samples:
        """The samples by their position in a run with `seed`, each source shuffled by itself."""
        return _Shuffled(self, seed)

    def __repr__(self) -> str:
        return "the mixture of " + " and ".join(map(repr, self.sources))

    def _position(self, source: int, index: int) -> int:
        """Where sample `index` of `source` is drawn."""
        period, place = divmod(index, self.shares[source])
        return period * len(self._source) + int(np.flatnonzero(self._source == source)[place])


class _Shuffled:
    def __init__(self, mixture: Mixture, seed: int) -> None:
        seeds = (int(np.random.SeedSequence([seed, k]).generate_state(1)[0]) for k in itertools.count())
        self._mixture = mixture
        self._runs = [shuffled(source, own) for source, own in zip(mixture.sources, seeds, strict=False)]

    def __getitem__(self, position: int, /) -> Mapping[str, np.ndarray]:
        source, index = self._mixture.draw(position)
        return self._runs[source][index]
