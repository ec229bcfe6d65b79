"""Which nodes work together, and in which order: a depth-first walk of the network tree.

A ring that uses a subtree and something outside of it crosses its boundary at least twice; a
depth-first order crosses exactly twice, at every level at once, which is the least there is.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from topology.network_tree import NetworkTree

T = TypeVar("T")
Cut = Callable[[tuple[T, ...], int], tuple[tuple[T, ...], tuple[T, ...]]]


class Bundle(Generic[T]):
    """What is left of one subtree: nodes in walking order, each with some of its things."""

    def __init__(self, pieces: Sequence[tuple[str, tuple[T, ...]]]) -> None:
        self.pieces = tuple(pieces)
        self.count = sum(len(things) for _, things in self.pieces)

    def split(self, count: int, *, cut: Cut[T]) -> tuple["Bundle[T]", "Bundle[T]"]:
        """(the first `count` things along the walk, the rest); at most one node is cut."""
        taken: list[tuple[str, tuple[T, ...]]] = []
        rest: list[tuple[str, tuple[T, ...]]] = []
        for node, things in self.pieces:
            if count >= len(things):
                taken.append((node, things))
                count -= len(things)
            elif count > 0:
                first, second = cut(things, count)
                taken.append((node, first))
                rest.append((node, second))
                count = 0
            else:
                rest.append((node, things))
        return Bundle(taken), Bundle(rest)


def walk_order(tree: NetworkTree, nodes: Sequence[str]) -> list[str]:
    """The nodes depth first; subtrees, and nodes in them, as they come first in `nodes`."""
    first: dict[tuple[str, ...], int] = {}
    for place, node in enumerate(nodes):
        path = tree.paths[node]
        for depth in range(len(path) + 1):
            first.setdefault(path[:depth], place)
    place_of = {node: place for place, node in enumerate(nodes)}

    def key(node: str) -> list[int]:
        path = tree.paths[node]
        return [*(first[path[:depth]] for depth in range(len(path) + 1)), place_of[node]]

    return sorted(nodes, key=key)


def join_nodes(
    left: Mapping[str, tuple[T, ...]], *, size: int, tree: NetworkTree, cut: Cut[T]
) -> tuple[list[Bundle[T]], Bundle[T]]:
    """Make groups of `size` things out of several nodes, the nearest nodes first.

    Every subtree makes what groups it can; only what is left of it goes to the tier above.

    Args:
        left: The things each node has to offer, fewer than `size` each.
        size: Things in a group.
        tree: The network.
        cut: Chooses n of the things of a node: (chosen, rest).

    Returns:
        (groups, left): each group in walking order, and what is in no group.
    """
    order = walk_order(tree, [node for node, things in left.items() if things])
    place = {node: number for number, node in enumerate(order)}
    pools: dict[int, dict[tuple[str, ...], list[Bundle[T]]]] = {}
    for node in order:
        path = tree.paths[node]
        bundle = Bundle([(node, left[node])])
        pools.setdefault(len(path), {}).setdefault(path, []).append(bundle)
    groups: list[Bundle[T]] = []
    last: Bundle[T] = Bundle([])
    for depth in range(max(pools, default=0), -1, -1):
        for path, bundles in pools.pop(depth, {}).items():
            made, last = _fill(bundles, size=size, place=place, cut=cut)
            groups += made
            if depth and last.count:
                pools.setdefault(depth - 1, {}).setdefault(path[:-1], []).append(last)
    return groups, last


def _fill(
    bundles: list[Bundle[T]], *, size: int, place: Mapping[str, int], cut: Cut[T]
) -> tuple[list[Bundle[T]], Bundle[T]]:
    """Groups out of the children of one tier, best fit, and what is left."""
    waiting: list[tuple[int, int, Bundle[T]]] = []  # by count, then by place: places are unique
    for bundle in bundles:
        insort(waiting, _entry(bundle, place=place), key=lambda entry: entry[:2])
    total = sum(bundle.count for bundle in bundles)
    groups: list[Bundle[T]] = []
    while total >= size:
        need, chosen = size, list[Bundle[T]]()
        while need:
            bundle = _best_fit(waiting, need=need)
            if bundle.count > need:
                bundle, rest = bundle.split(need, cut=cut)
                insort(waiting, _entry(rest, place=place), key=lambda entry: entry[:2])
            chosen.append(bundle)
            need -= bundle.count
        groups.append(_joined(chosen, place=place))
        total -= size
    return groups, _joined([bundle for _, _, bundle in waiting], place=place)


def _best_fit(waiting: list[tuple[int, int, Bundle[T]]], *, need: int) -> Bundle[T]:
    """Take the smallest that is enough, else the largest; the first among equals."""
    enough = bisect_left(waiting, (need, -1), key=lambda entry: entry[:2])
    if enough == len(waiting):
        enough = bisect_left(waiting, (waiting[-1][0], -1), key=lambda entry: entry[:2])
    return waiting.pop(enough)[2]


def _entry(bundle: Bundle[T], *, place: Mapping[str, int]) -> tuple[int, int, Bundle[T]]:
    return bundle.count, place[bundle.pieces[0][0]], bundle


def _joined(bundles: list[Bundle[T]], *, place: Mapping[str, int]) -> Bundle[T]:
    in_order = sorted(bundles, key=lambda bundle: place[bundle.pieces[0][0]])
    return Bundle([piece for bundle in in_order for piece in bundle.pieces])
