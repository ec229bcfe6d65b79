"""Which of n things form a ring, and in which order, so that its edges are the best: pure numbers.

Best means: the slowest edge as fast as can be, then the second slowest, and so on; among equals the
order nearest to the given one. Costs are whole numbers whose sum decides exactly that, so one
dynamic programme over subsets finds bottleneck and edges together.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from itertools import combinations
from operator import add
from typing import TypeAlias

Costs: TypeAlias = tuple[tuple[int, ...], ...]
EXACT_MOST = 18  # 2 s and 60 MB; the work doubles with every further one
_Worth: TypeAlias = tuple[float, int]


def cost_matrix(worths: Sequence[Sequence[_Worth | None]]) -> Costs:
    """Turn how good each edge is into costs whose sum orders sets of edges from the slowest up.

    Args:
        worths: Symmetric, larger is better; None on the diagonal.

    Returns:
        0 for the best edges, and for each worse class more than all better edges of a cover of the
        things by rings can cost together.
    """
    levels = sorted({worth for row in worths for worth in row if worth is not None}, reverse=True)
    step = 2 * len(worths) + 1
    cost_of: dict[Hashable, int] = {
        level: step ** (height - 1) if height else 0 for height, level in enumerate(levels)
    }
    return tuple(tuple(cost_of.get(worth, 0) for worth in row) for row in worths)


def is_uniform(costs: Costs) -> bool:
    """Are all edges alike, so that any order is as good as any other?"""
    size = len(costs)
    return len({costs[a][b] for a, b in combinations(range(size), 2)}) <= 1


def ring_cost(costs: Costs, order: Sequence[int]) -> int:
    """The cost of the closed ring; two things are joined there and back."""
    return sum(costs[a][b] for a, b in zip(order, (*order[1:], *order[:1]), strict=True) if a != b)


@lru_cache(maxsize=256)
def best_ring(costs: Costs, *, size: int) -> tuple[int, ...]:
    """Choose `size` of the things and their order; exact, for at most EXACT_MOST things.

    Returns:
        The positions in ring order: the first in dictionary order among the best.
    """
    if is_uniform(costs):
        return tuple(range(size))
    best: tuple[int, tuple[int, ...], tuple[int, ...]] | None = None
    for start in range(len(costs) - size + 1):
        table = _Completions(costs, start=start, end=start, most=size - 1)
        for mask in table.masks_of_size(size - 1):
            cost = table.cost(mask, start)
            if best is None or cost <= best[0]:
                chosen = (start, *table.members(mask))
                if best is None or (cost, chosen) < (best[0], best[1]):
                    best = cost, chosen, (start, *table.order(mask, start))
    return best[2] if best is not None else ()


@lru_cache(maxsize=256)
def ring_costs(costs: Costs, *, size: int) -> dict[int, int]:
    """The cost of the best ring over every subset of `size` things, by bit mask."""
    found: dict[int, int] = {}
    for start in range(len(costs) - size + 1):
        table = _Completions(costs, start=start, end=start, most=size - 1)
        for mask in table.masks_of_size(size - 1):
            found[(mask << 1 | 1) << start] = table.cost(mask, start)
    return found


@lru_cache(maxsize=256)
def best_paths(costs: Costs) -> tuple[tuple[int, ...], ...]:
    """The best open paths over all the things: one, the first, for every pair of ends that has one.

    Above 10 things only one path is returned, unless all edges are alike.
    """
    size = len(costs)
    if size == 1:
        return ((0,),)
    ends = [(a, b) for a in range(size) for b in range(size) if a != b]
    if is_uniform(costs):
        middle = {(a, b): [x for x in range(size) if x not in (a, b)] for a, b in ends}
        paths = [(a, *middle[a, b], b) for a, b in ends]
        return tuple(sorted(paths))
    if size > 10:
        return (_one_path(costs),)
    found: list[tuple[int, tuple[int, ...]]] = []
    for end in range(size):
        turned = _with_first(costs, first=end)
        place = [end, *(x for x in range(size) if x != end)]
        table = _Completions(turned, start=0, end=0, most=size - 1)
        for begin in range(1, size):
            rest = table.everything & ~(1 << (begin - 1))
            order = (begin, *table.order(rest, begin), 0)
            found.append((table.cost(rest, begin), tuple(place[x] for x in order)))
    least = min(cost for cost, _ in found)
    return tuple(sorted(path for cost, path in found if cost == least))


def _one_path(costs: Costs) -> tuple[int, ...]:
    """The best path, by a ring through a thing that joins any two at no cost."""
    size = len(costs)
    open_ended = ((0,) * (size + 1), *((0, *row) for row in costs))
    few = size < EXACT_MOST
    order = best_ring(open_ended, size=size + 1) if few else improved_ring(open_ended)
    return tuple(x - 1 for x in order[1:])


def _with_first(costs: Costs, *, first: int) -> Costs:
    place = [first, *(x for x in range(len(costs)) if x != first)]
    return tuple(tuple(costs[a][b] for b in place) for a in place)


class _Completions:
    """For every set of things still to visit, and where one stands: what it costs to end at `end`.

    Only things above `start` take part beside it; bit i of a mask is the thing start + 1 + i.
    """

    def __init__(self, costs: Costs, *, start: int, end: int, most: int) -> None:
        self._start = start
        self._rows = [row[start:] for row in costs[start:]]
        count = len(self._rows) - 1
        self._infinite = (count + 2) * max(map(max, self._rows)) + 1
        self.everything = (1 << count) - 1
        self._of_size: list[list[int]] = [[] for _ in range(count + 1)]
        for mask in range(self.everything + 1):
            self._of_size[mask.bit_count()].append(mask)
        self._table: dict[int, list[int]] = {0: [row[end - start] for row in self._rows]}
        for size in range(1, most + 1):
            for mask in self._of_size[size]:
                self._fill(mask, last=size == most)

    def _fill(self, mask: int, *, last: bool) -> None:
        after = [self._infinite] * len(self._rows)
        rest = mask
        while rest:
            bit = rest & -rest
            rest ^= bit
            place = bit.bit_length()
            after[place] = self._table[mask ^ bit][place]
        rows = self._rows[:1] if last else self._rows
        self._table[mask] = [min(map(add, row, after)) for row in rows]

    def masks_of_size(self, size: int) -> list[int]:
        return self._of_size[size]

    def members(self, mask: int) -> list[int]:
        return [self._start + 1 + i for i in range(mask.bit_length()) if mask >> i & 1]

    def cost(self, mask: int, thing: int) -> int:
        return self._table[mask][thing - self._start]

    def order(self, mask: int, thing: int) -> list[int]:
        """The first, in dictionary order, of the cheapest ways through `mask`."""
        order: list[int] = []
        while mask:
            thing = next(x for x in self.members(mask) if self._is_cheapest(mask, thing, x))
            order.append(thing)
            mask = self._without(mask, thing)
        return order

    def _is_cheapest(self, mask: int, thing: int, member: int) -> bool:
        step = self._rows[thing - self._start][member - self._start]
        return step + self.cost(self._without(mask, member), member) == self.cost(mask, thing)

    def _without(self, mask: int, member: int) -> int:
        return mask ^ (1 << (member - self._start - 1))


def improved_ring(costs: Costs) -> tuple[int, ...]:
    """A good ring over any number of things: nearest neighbour, then 2-opt and Or-opt moves."""
    order = _greedy(costs)
    size = len(order)
    best, improving = ring_cost(costs, order), size > 3
    while improving:
        improving = False
        for first, last in combinations(range(1, size), 2):
            for move in (_reversed, _moved_on, _moved_back):
                candidate = move(order, first, last)
                cost = ring_cost(costs, candidate)
                if cost < best:
                    order, best, improving = candidate, cost, True
    return tuple(order)


_Move: TypeAlias = Callable[[list[int], int, int], list[int]]


def _reversed(order: list[int], first: int, last: int) -> list[int]:
    return [*order[:first], *reversed(order[first : last + 1]), *order[last + 1 :]]


def _moved_on(order: list[int], first: int, last: int) -> list[int]:
    return [*order[:first], *order[first + 1 : last + 1], order[first], *order[last + 1 :]]


def _moved_back(order: list[int], first: int, last: int) -> list[int]:
    return [*order[:first], order[last], *order[first:last], *order[last + 1 :]]


def _greedy(costs: Costs) -> list[int]:
    order, left = [0], list(range(1, len(costs)))
    while left:
        row = costs[order[-1]]
        nearest = min(left, key=lambda x: (row[x], x))
        left.remove(nearest)
        order.append(nearest)
    return order


def slowest_edge_bound(costs: Costs) -> int:
    """No ring over all the things has a slowest edge cheaper than this.

    Every thing needs two edges (one, there and back, if there are two things), and the edges must
    hold all things together.
    """
    size = len(costs)
    if size < 3:
        return costs[0][-1] if size == 2 else 0
    degree = max(sorted(c for b, c in enumerate(row) if b != a)[1] for a, row in enumerate(costs))
    inside, reach, tree = {0}, list(costs[0]), 0
    while len(inside) < size:
        near = min((x for x in range(size) if x not in inside), key=reach.__getitem__)
        tree = max(tree, reach[near])
        inside.add(near)
        reach = list(map(min, reach, costs[near]))
    return max(degree, tree)
