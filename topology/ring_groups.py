"""Cut the things of one node into groups, each a good ring, and line one group up with the next."""

from collections.abc import Iterator
from functools import lru_cache

from topology.ring_search import EXACT_MOST, Costs, is_uniform, ring_costs

_CUT_MOST = 16  # seconds; GPUs of the largest nodes sold


@lru_cache(maxsize=256)
def best_groups(costs: Costs, *, size: int) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Cut the things into as many groups of `size` as there are, so that their rings are best.

    All rings together are judged as one set of edges, the slowest first. Exact for at most 16
    things; above, and where all edges are alike, groups are neighbours in the given order.

    Returns:
        (groups, left): members in ascending order, and what is in no group.
    """
    count = len(costs)
    number = count // size
    if number * size == count == size or is_uniform(costs) or count > _CUT_MOST:
        return _neighbours(list(range(count)), size=size)
    cost_of = ring_costs(costs, size=size)
    best = _Partition(cost_of, size=size).best((1 << count) - 1, count - number * size)
    assert best is not None  # as many are left as are skipped
    masks = best[1]
    taken = sum(masks)
    left = tuple(x for x in range(count) if not taken >> x & 1)
    return tuple(sorted(_members(mask) for mask in masks)), left


def best_matching(costs: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """For each row in turn its own column, at the least cost in all; the first among equals."""
    size = len(costs)
    if len({cost for row in costs for cost in row}) <= 1 or size > EXACT_MOST:
        return tuple(range(size))
    after: dict[int, tuple[int, tuple[int, ...]]] = {(1 << size) - 1: (0, ())}
    for row in range(size - 1, -1, -1):
        after = {
            mask: min(
                (costs[row][column] + after[mask | bit][0], (column, *after[mask | bit][1]))
                for column in range(size)
                if not mask & (bit := 1 << column)
            )
            for mask in range(1 << size)
            if mask.bit_count() == row
        }
    return after[0][1]


def matching_cost(costs: tuple[tuple[int, ...], ...]) -> int:
    """The least cost of giving each row its own column."""
    return sum(costs[row][column] for row, column in enumerate(best_matching(costs)))


class _Partition:
    """The best way to cut what is left, remembered by what is left."""

    def __init__(self, cost_of: dict[int, int], *, size: int) -> None:
        self._cost_of = cost_of
        self._size = size
        self._by_lowest: dict[int, list[int]] = {}
        for mask in sorted(cost_of, key=_members):
            self._by_lowest.setdefault(mask & -mask, []).append(mask)
        self._seen: dict[int, tuple[int, tuple[int, ...]] | None] = {}

    def best(self, left: int, spare: int) -> tuple[int, tuple[int, ...]] | None:
        """(cost, groups) of cutting `left`, of which `spare` things go to no group."""
        if left.bit_count() == spare:
            return 0, ()
        if left not in self._seen:  # what is left also tells how many are spare
            ways = self._ways(left, spare)
            self._seen[left] = min(ways, key=lambda way: way[0], default=None)
        return self._seen[left]

    def _ways(self, left: int, spare: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        lowest = left & -left
        for group in self._by_lowest.get(lowest, ()):
            if not group & ~left and (rest := self.best(left ^ group, spare)) is not None:
                yield self._cost_of[group] + rest[0], (group, *rest[1])
        if spare and (rest := self.best(left ^ lowest, spare - 1)) is not None:
            yield rest


def _neighbours(
    things: list[int], *, size: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    whole = len(things) // size * size
    groups = tuple(tuple(things[i : i + size]) for i in range(0, whole, size))
    return groups, tuple(things[whole:])


def _members(mask: int) -> tuple[int, ...]:
    return tuple(x for x in range(mask.bit_length()) if mask >> x & 1)
