"""What of the waiting for late peers is communication: as much as the peers themselves stand still.

A rank that waits for a peer which still computes waits for nothing that a faster link would bring:
that is load imbalance. A peer which itself stands still for a transfer hands its wait on, from rank
to rank, to everyone that waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cptune.bench.timeline import Interval, intersection, union

#: Axis and layer of the transfer that moves.
Cause = tuple[str, int | None]
Causes = dict[Cause, list[Interval]]


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank stands still for a transfer that a partner has not posted yet.

    Args:
        interval: From when it stands still to when the last partner is ready.
        late: Rank of that partner.
    """

    interval: Interval
    late: int


@dataclass(frozen=True, slots=True)
class Standstill:
    """When one rank stood still in a step. The times of all ranks are of one clock.

    Args:
        moving: In which transfers of its own were under way, by their axis and layer.
        waits: In which the transfer that it waited for could not begin.
    """

    moving: Mapping[Cause, Sequence[Interval]]
    waits: Sequence[Wait]


def attribute(ranks: Sequence[Standstill]) -> list[Causes]:
    """The waits of each rank that are communication, by the transfers which they come down to.

    The least solution of: a rank stands still for a transfer while one of its own moves, or while
    it waits for a rank that does. A wait counts for the axis and layer of the transfer that moves
    at the end of the chain: without that one, it would not be. At any time a rank waits for one
    transfer, so no chain is longer than the ranks are many; each round goes one rank further.
    """
    found = [Causes() for _ in ranks]
    for _ in ranks:
        still = [_joined(one.moving, more) for one, more in zip(ranks, found, strict=True)]
        further = [_handed_on(one.waits, still) for one in ranks]
        if further == found:
            break
        found = further
    return found


def _joined(ours: Mapping[Cause, Sequence[Interval]], more: Causes) -> Causes:
    causes = ours.keys() | more.keys()
    return {cause: union([*ours.get(cause, ()), *more.get(cause, ())]) for cause in causes}


def _handed_on(waits: Sequence[Wait], still: Sequence[Causes]) -> Causes:
    held: dict[int, list[Interval]] = {}
    for wait in waits:
        held.setdefault(wait.late, []).append(wait.interval)
    found = Causes()
    for late, intervals in held.items():
        for cause, moving in still[late].items():
            found.setdefault(cause, []).extend(intersection(intervals, moving))
    return {cause: union(parts) for cause, parts in found.items() if parts}
