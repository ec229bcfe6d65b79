"""Which keys a query may see: in every mask, one run of neighbours that its position tells.

Positions are global. A document may be empty and may be one token long.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

Interval = tuple[int, int]  # [start, stop) in global positions


class Mask(StrEnum):
    """What a query may see."""

    FULL = "full"
    CAUSAL = "causal"
    DOCUMENT = "document"  # causal inside each document of a packed sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A mask over one sequence.

    A query at position p of its document sees the positions max(0, p - window)..p of it, and the
    whole sequence under the full mask.
    """

    mask: Mask
    seq_len: int
    docs: tuple[int, ...] = ()  # lengths in order, under the document mask alone
    window: int | None = None  # tokens to the left, beside the query itself
    starts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.mask is Mask.DOCUMENT:
            self._check_docs()
        elif self.docs:
            raise ValueError(f"docs are given with mask {self.mask}, wanted none or mask document")
        if self.window is not None and self.mask is Mask.FULL:
            raise ValueError(f"window is {self.window}, wanted None with mask full (or causal)")
        if self.window is not None and self.window < 0:
            raise ValueError(f"window is {self.window}, wanted at least 0; nearest is 0")
        starts = [0]
        for length in self.docs:
            if length:
                starts.append(starts[-1] + length)
        object.__setattr__(self, "starts", tuple(starts[:-1]) or (0,))

    def documents(self) -> tuple[Interval, ...]:
        """The documents that hold a token; without documents the whole sequence is one."""
        return tuple(zip(self.starts, (*self.starts[1:], self.seq_len), strict=True))

    def cut(self, interval: Interval) -> Iterator[tuple[int, Interval]]:
        """Cut an interval where documents end: (index of the document, its part)."""
        start, stop = interval
        at = bisect_right(self.starts, start) - 1
        while start < stop:
            at += 1
            end = min(stop, self.starts[at] if at < len(self.starts) else self.seq_len)
            yield at - 1, (start, end)
            start = end

    def positions(self, interval: Interval) -> Iterator[int]:
        """Position of each token inside its document."""
        for document, (start, stop) in self.cut(interval):
            begin = self.starts[document]
            yield from range(start - begin, stop - begin)

    def pairs(self, interval: Interval) -> int:
        """Query-key pairs that the queries of `interval` attend."""
        if self.mask is Mask.FULL:
            return (interval[1] - interval[0]) * self.seq_len
        return sum(
            self._pairs_before(stop - self.starts[document])
            - self._pairs_before(start - self.starts[document])
            for document, (start, stop) in self.cut(interval)
        )

    def _pairs_before(self, position: int) -> int:
        """Pairs of the first `position` queries of a document."""
        growing = position if self.window is None else min(position, self.window + 1)
        return growing * (growing + 1) // 2 + (position - growing) * growing

    def _check_docs(self) -> None:
        if not self.docs:
            raise ValueError("docs is empty, wanted the documents' lengths with mask document")
        if min(self.docs) < 0:
            raise ValueError(f"docs holds {min(self.docs)}, wanted lengths from 0; nearest is 0")
        total = sum(self.docs)
        if total != self.seq_len:
            raise ValueError(f"docs add up to {total} tokens, wanted seq_len = {self.seq_len}")


def build_pattern(
    mask: Mask, *, seq_len: int, docs: Sequence[int] | None, window: int | None
) -> Pattern:
    """Make the pattern of a mask's keywords.

    Raises:
        ValueError: They do not fit together.
    """
    return Pattern(mask=mask, seq_len=seq_len, docs=tuple(docs or ()), window=window)
