"""Which keys a query may see, cut into blocks that every kernel can run.

The intervals of a partition are equal or disjoint. So a block of (query interval, key interval) is
FULL, SKIP or a SQUARE causal block: nobody has to ask how a kernel aligns an oblong causal block,
and no row of a block is ever empty (kernels disagree on the log-sum-exp of an empty row).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from cptune.attention.shard import Interval


class Mask(StrEnum):
    """What a query may see."""

    FULL = "full"
    CAUSAL = "causal"


class Cover(StrEnum):
    """How much of one block the mask lets through."""

    SKIP = "skip"
    FULL = "full"
    CAUSAL = "causal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One kernel call: query rows [q_start, q_stop) against key rows [kv_start, kv_stop)."""

    q_start: int
    q_stop: int
    kv_start: int
    kv_stop: int
    causal: bool

    def __post_init__(self) -> None:
        q_rows, kv_rows = self.q_stop - self.q_start, self.kv_stop - self.kv_start
        assert q_rows > 0, f"a slice without rows: {self}"
        assert kv_rows > 0, f"a slice without keys: {self}"
        assert not self.causal or q_rows == kv_rows, f"a causal slice must be square: {self}"

    @property
    def pairs(self) -> int:
        """Query-key pairs attended."""
        rows = self.q_stop - self.q_start
        return rows * (rows + 1) // 2 if self.causal else rows * (self.kv_stop - self.kv_start)


def cover(mask: Mask, *, q: Interval, kv: Interval) -> Cover:
    """Say how `mask` covers the block of two intervals of one partition (global positions)."""
    assert q == kv or q[1] <= kv[0] or kv[1] <= q[0], f"intervals overlap in part: {q}, {kv}"
    if mask is Mask.FULL or kv[1] <= q[0]:
        return Cover.FULL
    return Cover.CAUSAL if q == kv else Cover.SKIP


def build_slices(
    mask: Mask, *, q_intervals: Sequence[Interval], kv_intervals: Sequence[Interval]
) -> tuple[Slice, ...]:
    """List the kernel calls of queries against keys, as few as rectangles allow.

    Both sides lie row after row in the order given; rows of the result count from there.
    """
    found: list[Slice] = []
    for q_start, q in _lay_out(q_intervals):
        for kv_start, kv in _lay_out(kv_intervals):
            kind = cover(mask, q=q, kv=kv)
            if kind is not Cover.SKIP:
                found.append(
                    Slice(
                        q_start=q_start,
                        q_stop=q_start + q[1] - q[0],
                        kv_start=kv_start,
                        kv_stop=kv_start + kv[1] - kv[0],
                        causal=kind is Cover.CAUSAL,
                    )
                )
    return tuple(_fuse_queries(_fuse_keys(found)))


def _lay_out(intervals: Sequence[Interval]) -> Iterator[tuple[int, Interval]]:
    row = 0
    for interval in intervals:
        yield row, interval
        row += interval[1] - interval[0]


def _fuse_keys(found: Sequence[Slice]) -> list[Slice]:
    """Join FULL neighbours with the same query rows: each query row is merged fewer times."""
    fused: list[Slice] = []
    for this in found:
        if fused and _same_queries_next_keys(fused[-1], this):
            fused[-1] = replace(fused[-1], kv_stop=this.kv_stop)
        else:
            fused.append(this)
    return fused


def _fuse_queries(found: Sequence[Slice]) -> list[Slice]:
    """Join FULL slices with the same key rows and touching query rows."""
    fused: list[Slice] = []
    for this in found:
        at = next((i for i, one in enumerate(fused) if _same_keys_next_queries(one, this)), None)
        if at is None:
            fused.append(this)
        else:
            fused[at] = replace(fused[at], q_stop=this.q_stop)
    return fused


def _same_queries_next_keys(one: Slice, two: Slice) -> bool:
    same = (one.q_start, one.q_stop) == (two.q_start, two.q_stop)
    return same and one.kv_stop == two.kv_start and not (one.causal or two.causal)


def _same_keys_next_queries(one: Slice, two: Slice) -> bool:
    same = (one.kv_start, one.kv_stop) == (two.kv_start, two.kv_stop)
    return same and one.q_stop == two.q_start and not (one.causal or two.causal)
