"""Cuts a mask into blocks that every kernel can run.

The intervals of a partition are equal or disjoint. So, document by document, a block of (query
interval, key interval) is FULL, skipped, a SQUARE causal block, or under a window also a square
BAND: nobody has to ask how a kernel aligns an oblong causal block, and no row of a block is ever
empty (kernels disagree on the log-sum-exp of an empty row).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from cptune.attention.mask import Interval, Mask, Pattern


class Band(NamedTuple):
    """Row i of a square block sees columns i - left to i + right."""

    left: int
    right: int


class Rows(NamedTuple):
    """Rows [start, stop) of a shard or of a buffer."""

    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """How many rows."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One kernel call: query rows [q_start, q_stop) against key rows [kv_start, kv_stop)."""

    q_start: int
    q_stop: int
    kv_start: int
    kv_stop: int
    causal: bool
    band: Band | None = None

    def __post_init__(self) -> None:
        q_rows, kv_rows = self.q_stop - self.q_start, self.kv_stop - self.kv_start
        assert q_rows > 0, f"a slice without rows: {self}"
        assert kv_rows > 0, f"a slice without keys: {self}"
        assert not self.causal or q_rows == kv_rows, f"a causal slice must be square: {self}"
        assert not self.band or q_rows == kv_rows, f"a band must be square: {self}"
        assert not (self.band and self.causal), f"causal or a band, not both: {self}"

    @property
    def full(self) -> bool:
        """Does every query see every key?"""
        return not self.causal and self.band is None

    @property
    def pairs(self) -> int:
        """Query-key pairs attended."""
        rows = self.q_stop - self.q_start
        if self.causal:
            return rows * (rows + 1) // 2
        if self.band:
            left, right = (min(side, rows - 1) for side in self.band)
            return rows * (left + right + 1) - left * (left + 1) // 2 - right * (right + 1) // 2
        return rows * (self.kv_stop - self.kv_start)


class _Cut(NamedTuple):
    """Part of an interval inside one document, and the row where it lies."""

    row: int
    interval: Interval


def build_slices(
    pattern: Pattern, *, q_intervals: Sequence[Interval], kv_intervals: Sequence[Interval]
) -> tuple[Slice, ...]:
    """List the kernel calls of queries against keys, as few as rectangles allow.

    Both sides lie row after row in the order given; rows of the result count from there.
    """
    keys: dict[int, list[_Cut]] = {}
    for document, kv in _lay_out(pattern, kv_intervals):
        keys.setdefault(document, []).append(kv)
    found = [
        one
        for document, q in _lay_out(pattern, q_intervals)
        for kv in keys.get(document, ())
        for one in _blocks(pattern, q, kv)
    ]
    return tuple(_fuse_queries(_fuse_keys(found)))


@lru_cache(maxsize=4096)
def needed_rows(
    pattern: Pattern, q_intervals: tuple[Interval, ...], kv_intervals: tuple[Interval, ...]
) -> tuple[Rows, ...]:
    """Key rows that some query sees, in order; neighbours are one run."""
    slices = build_slices(pattern, q_intervals=q_intervals, kv_intervals=kv_intervals)
    return join_rows(Rows(one.kv_start, one.kv_stop) for one in slices)


def join_rows(rows: Iterator[Rows]) -> tuple[Rows, ...]:
    """The union of runs: sorted, disjoint, none touching the next."""
    joined: list[Rows] = []
    for one in sorted(rows):
        if joined and one.start <= joined[-1].stop:
            joined[-1] = Rows(joined[-1].start, max(joined[-1].stop, one.stop))
        else:
            joined.append(one)
    return tuple(joined)


def pick(intervals: Sequence[Interval], rows: Sequence[Rows]) -> list[Interval]:
    """Global intervals of some rows of a shard that owns `intervals`."""
    picked: list[Interval] = []
    row = 0
    for start, stop in intervals:
        for one in rows:
            first, last = max(one.start, row), min(one.stop, row + stop - start)
            if first < last:
                picked.append((start + first - row, start + last - row))
        row += stop - start
    return picked


def _lay_out(pattern: Pattern, intervals: Sequence[Interval]) -> Iterator[tuple[int, _Cut]]:
    row = 0
    for interval in intervals:
        for document, (start, stop) in pattern.cut(interval):
            yield document, _Cut(row, (start, stop))
            row += stop - start


def _blocks(pattern: Pattern, q: _Cut, kv: _Cut) -> Iterator[Slice]:
    """Blocks of a query part and a key part of the same document."""
    (start, stop), (kv_start, kv_stop) = q.interval, kv.interval
    assert (start, stop) == (kv_start, kv_stop) or stop <= kv_start or kv_stop <= start, (
        f"intervals overlap in part: {q.interval}, {kv.interval}"
    )
    if pattern.mask is Mask.FULL or (kv_stop <= start and pattern.window is None):
        yield _slice(q, q.interval, kv, kv.interval)
    elif start == kv_start:
        cut = pattern.window if pattern.window is not None else stop - start
        band = Band(cut, 0) if cut < stop - start - 1 else None
        yield replace(_slice(q, q.interval, kv, kv.interval), causal=band is None, band=band)
    elif kv_stop <= start:
        assert pattern.window is not None, "else every query sees every key"
        yield from _windowed(q, kv, window=pattern.window)


def _windowed(q: _Cut, kv: _Cut, *, window: int) -> Iterator[Slice]:
    """Earlier keys through a window: the first queries see them all, later ones ever fewer."""
    start, kv_stop = q.interval[0], kv.interval[1]
    stop = min(q.interval[1], kv_stop + window)  # the last query that sees a key, and one
    kv_start = max(kv.interval[0], start - window)
    if start >= stop:
        return
    turn = min(stop, kv_start + window + 1)  # the first query that does not see them all
    yield _slice(q, (start, turn), kv, (kv_start, kv_stop))
    if turn < stop:
        corner = (turn - window, stop - window)
        band = Band(0, stop - turn - 1)
        yield replace(_slice(q, (turn, stop), kv, corner), band=band)
        if corner[1] < kv_stop:
            yield _slice(q, (turn, stop), kv, (corner[1], kv_stop))


def _slice(q: _Cut, queries: Interval, kv: _Cut, keys: Interval) -> Slice:
    """The full block of global `queries` against `keys`, parts of `q` and `kv`."""
    q_shift, kv_shift = q.row - q.interval[0], kv.row - kv.interval[0]
    return Slice(
        q_start=queries[0] + q_shift,
        q_stop=queries[1] + q_shift,
        kv_start=keys[0] + kv_shift,
        kv_stop=keys[1] + kv_shift,
        causal=False,
    )


def _fuse_keys(found: Sequence[Slice]) -> list[Slice]:
    """Join FULL neighbours with the same query rows: each query row is merged fewer times."""
    fused: list[Slice] = []
    for this in found:
        if fused and this.full and fused[-1].full and _same_queries_next_keys(fused[-1], this):
            fused[-1] = replace(fused[-1], kv_stop=this.kv_stop)
        else:
            fused.append(this)
    return fused


def _fuse_queries(found: Sequence[Slice]) -> list[Slice]:
    """Join FULL slices with the same key rows and touching query rows."""
    fused: list[Slice] = []
    ending: dict[tuple[int, int, int], int] = {}  # (last query row, keys) -> where it stands
    for this in found:
        at = ending.pop((this.q_start, this.kv_start, this.kv_stop), None) if this.full else None
        if at is None:
            at = len(fused)
            fused.append(this)
        else:
            fused[at] = replace(fused[at], q_stop=this.q_stop)
        if this.full:
            ending[this.q_stop, this.kv_start, this.kv_stop] = at
    return fused


def _same_queries_next_keys(one: Slice, two: Slice) -> bool:
    same = (one.q_start, one.q_stop) == (two.q_start, two.q_stop)
    return same and one.kv_stop == two.kv_start
