"""Any number of document lengths in constant memory, with exact count, sum and extremes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cptune.balance.pack import cut_stream
from cptune.balance.work import LONGEST, Reals, Tokens

_EXACT = 4096  # lengths below have a bin each
_PER_OCTAVE = 256  # bins from there on: 0.3% wide
_OCTAVES = (LONGEST // _EXACT).bit_length() - 1
_BINS = _EXACT + _PER_OCTAVE * _OCTAVES + 1  # the last holds `LONGEST`


@dataclass(slots=True)
class Histogram:
    """Counts and token sums by length; the mean of every bin is exact."""

    counts: Tokens = field(default_factory=lambda: np.zeros(_BINS, dtype=np.int64))
    sums: Reals = field(default_factory=lambda: np.zeros(_BINS))
    max_tokens: int = 0

    def add(self, tokens: Tokens) -> None:
        """Count more documents, each of 1 token or more."""
        if not len(tokens):
            return
        at = np.where(
            tokens < _EXACT,
            tokens,
            _EXACT + (np.log2(np.maximum(tokens, _EXACT) / _EXACT) * _PER_OCTAVE).astype(np.int64),
        )
        self.counts += np.bincount(at, minlength=_BINS)
        self.sums += np.bincount(at, tokens, minlength=_BINS)
        self.max_tokens = max(self.max_tokens, int(tokens.max()))

    @property
    def count(self) -> int:
        """Documents."""
        return int(self.counts.sum())

    @property
    def total_tokens(self) -> int:
        """Tokens of all documents."""
        return int(self.sums.sum())

    @property
    def mean_tokens(self) -> float:
        """Tokens of a document, on average."""
        return self.total_tokens / self.count

    def points(self) -> tuple[Reals, Reals]:
        """(mean length, share of the documents) of each bin that holds any, ascending."""
        held = self.counts > 0
        return self.sums[held] / self.counts[held], self.counts[held] / self.count

    def up_to(self, tokens: float) -> Histogram:
        """The documents in bins whose mean does not exceed a length, at least the shortest."""
        held = np.flatnonzero(self.counts)
        means = self.sums[held] / self.counts[held]
        kept = held[: max(1, int(np.searchsorted(means, tokens, side="right")))]
        within = np.zeros(_BINS, dtype=bool)
        within[kept] = True
        longest = int(np.ceil(self.sums[kept[-1]] / self.counts[kept[-1]]))
        return Histogram(
            np.where(within, self.counts, 0), np.where(within, self.sums, 0.0), longest
        )

    def draw(self, count: int, rng: np.random.Generator) -> Tokens:
        """Documents drawn at random with the frequencies seen, each as long as its bin's mean."""
        lengths, shares = self.points()
        return np.rint(rng.choice(lengths, size=count, p=shares)).astype(np.int64)

    def draw_tokens(self, total: int, rng: np.random.Generator) -> Tokens:
        """Documents drawn as by `draw` that hold exactly so many tokens, the last one cut."""
        drawn: list[Tokens] = []
        left = total
        while left > 0:
            drawn.append(self.draw(min(1 << 20, 1024 + int(left / self.mean_tokens)), rng))
            left -= int(drawn[-1].sum())
        return cut_stream(np.concatenate(drawn), total)[0]

    def quantile(self, share: float) -> float:
        """The length that this share of the documents does not exceed."""
        lengths, shares = self.points()
        return float(lengths[min(np.searchsorted(shares.cumsum(), share), len(lengths) - 1)])
