"""Who owns which tokens: a pure function of sequence length, group size and sharding.

Any length goes over any number of ranks. The real length is split first and each rank pads its own
tail to one common static length, so no rank computes on rows that are nobody's tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from cptune.attention.balanced import deal_chunks
from cptune.attention.mask import Interval, Mask, Pattern


class Sharding(StrEnum):
    """How the sequence is cut over the ranks of a context group."""

    CONTIGUOUS = "contiguous"
    ZIGZAG = "zigzag"
    BALANCED = "balanced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The cut of one sequence over a context group.

    contiguous: P chunks, rank r owns chunk r. zigzag: 2P chunks, rank r owns chunks r and 2P-1-r,
    in this order. balanced: at least 8P chunks, dealt by the area of `pattern`. Chunk i of n is
    [floor(i*S/n), floor((i+1)*S/n)), empty for some i when S < n.
    """

    seq_len: int
    cp_size: int
    sharding: Sharding
    pattern: Pattern | None = None  # what balanced weighs; causal where omitted

    def __post_init__(self) -> None:
        for name, value in (("seq_len", self.seq_len), ("cp_size", self.cp_size)):
            if value < 1:
                raise ValueError(f"{name} is {value}, wanted a whole number from 1; nearest is 1")

    def intervals(self, rank: int) -> tuple[Interval, ...]:
        """Global intervals of `rank`: sorted, disjoint, none empty, none touching the next."""
        self._check_rank(rank)
        if self.sharding is Sharding.BALANCED:
            weighed = self.pattern or Pattern(mask=Mask.CAUSAL, seq_len=self.seq_len)
            chunks = list(deal_chunks(weighed, self.cp_size)[rank])
        elif self.sharding is Sharding.CONTIGUOUS:
            chunks = [self._chunk(rank, self.cp_size)]
        else:
            last = 2 * self.cp_size - 1
            chunks = [self._chunk(rank, last + 1), self._chunk(last - rank, last + 1)]
        return join_touching([chunk for chunk in chunks if chunk[0] < chunk[1]])

    def real_len(self, rank: int) -> int:
        """Tokens that `rank` owns; 0 for an empty shard."""
        return sum(stop - start for start, stop in self.intervals(rank))

    @property
    def local_len(self) -> int:
        """Rows every rank holds, padding included: the largest real length, at least 1."""
        return max(1, *(self.real_len(rank) for rank in range(self.cp_size)))

    def positions(self, rank: int) -> list[int]:
        """Global position of each real row of `rank`, in local order (increasing)."""
        return [p for start, stop in self.intervals(rank) for p in range(start, stop)]

    def _chunk(self, index: int, count: int) -> Interval:
        return index * self.seq_len // count, (index + 1) * self.seq_len // count

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.cp_size:
            nearest = min(max(rank, 0), self.cp_size - 1)
            raise ValueError(f"rank is {rank}, wanted 0..{self.cp_size - 1}; nearest is {nearest}")


def join_touching(chunks: Sequence[Interval]) -> tuple[Interval, ...]:
    """Disjoint sorted intervals, with neighbours made one."""
    joined: list[Interval] = []
    for start, stop in chunks:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)
