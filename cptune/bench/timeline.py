"""Interval arithmetic of a traced step: what of the communication no compute hides.

Sums of durations say nothing about overlap, and link counters say even less: only the union of the
intervals does. All times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: (start, stop) in seconds.
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Communication of a rank, as the union of its transfers."""

    communication_s: float
    overlap_s: float

    @property
    def exposed_s(self) -> float:
        """What runs while the rank computes nothing."""
        return self.communication_s - self.overlap_s


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as disjoint intervals in order.

    Raises:
        ValueError: when an interval stops before it starts.
    """
    merged: list[Interval] = []
    for start, stop in sorted(intervals):
        if stop < start:
            raise ValueError(f"an interval stops at {stop} s, before its start at {start} s")
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((start, stop))
    return merged


def intersection(ours: Iterable[Interval], theirs: Iterable[Interval]) -> list[Interval]:
    """The time that both cover, as disjoint intervals in order."""
    left, right = union(ours), union(theirs)
    found: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, stop = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < stop:
            found.append((start, stop))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return found


def seconds(intervals: Iterable[Interval]) -> float:
    """How long their union is."""
    return sum(stop - start for start, stop in union(intervals))


def exposure(*, compute: Iterable[Interval], communication: Iterable[Interval]) -> Exposure:
    """How much of the communication the compute hides."""
    transfers = union(communication)
    return Exposure(
        communication_s=seconds(transfers),
        overlap_s=seconds(intersection(compute, transfers)),
    )
