"""The ring search against brute force: bottleneck, edges, choice and order."""

import random
import time
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.ring_groups import best_groups, best_matching, matching_cost
from topology.ring_search import (
    best_paths,
    best_ring,
    cost_matrix,
    improved_ring,
    is_uniform,
    ring_cost,
    slowest_edge_bound,
)


@st.composite
def worths(draw, least=2, most=7):
    size = draw(st.integers(least, most))
    levels = draw(st.integers(1, 5))
    table = [[None] * size for _ in range(size)]
    for a, b in combinations(range(size), 2):
        table[a][b] = table[b][a] = (float(draw(st.integers(1, levels))), 0)
    return table


def random_worths(size, *, levels, seed=0):
    rng = random.Random(seed)
    table = [[None] * size for _ in range(size)]
    for a, b in combinations(range(size), 2):
        table[a][b] = table[b][a] = (float(rng.randint(1, levels)), 0)
    return table


def ring_edges(table, order):
    """The edges of a ring, the slowest first: what two rings are compared by."""
    return sorted(table[a][b] for a, b in pairwise([*order, order[0]]))


def rings_over(things):
    first, *rest = things
    return [(first, *order) for order in permutations(rest)]


@given(worths())
@settings(deadline=None, max_examples=60)
def test_no_ring_over_all_beats_the_best(table):
    size = len(table)

    order = best_ring(cost_matrix(table), size=size)

    best = max(ring_edges(table, ring) for ring in rings_over(range(size)))
    assert ring_edges(table, order) == best
    assert order == min(r for r in rings_over(range(size)) if ring_edges(table, r) == best)


@given(worths(least=3), st.data())
@settings(deadline=None, max_examples=60)
def test_no_choice_of_things_beats_the_best(table, data):
    size = data.draw(st.integers(2, len(table)))

    order = best_ring(cost_matrix(table), size=size)

    subsets = combinations(range(len(table)), size)
    every = [ring for subset in subsets for ring in rings_over(subset)]
    best = max(ring_edges(table, ring) for ring in every)
    equal = [ring for ring in every if ring_edges(table, ring) == best]
    assert ring_edges(table, order) == best
    assert order == min(equal, key=lambda ring: (sorted(ring), ring))


@given(worths(least=2, most=6))
@settings(deadline=None, max_examples=40)
def test_best_paths_are_all_ends_that_a_best_path_has(table):
    def edges(path):
        return sorted(table[a][b] for a, b in pairwise(path))

    paths = best_paths(cost_matrix(table))

    every = list(permutations(range(len(table))))
    best = max(map(edges, every))
    wanted = {}
    for path in every:
        if edges(path) == best:
            wanted.setdefault((path[0], path[-1]), path)
    assert set(paths) == set(wanted.values())
    assert list(paths) == sorted(paths)


@given(worths(least=2, most=6), st.data())
@settings(deadline=None, max_examples=40)
def test_no_cut_into_groups_beats_the_best(table, data):
    size = data.draw(st.integers(1, len(table)))

    groups, left = best_groups(cost_matrix(table), size=size)

    def edges(some):
        inside = ring_edges_of_groups(table, some)
        return sorted(inside)

    assert sorted([*left, *(x for group in groups for x in group)]) == list(range(len(table)))
    assert len(groups) == len(table) // size
    every = list(cuts(tuple(range(len(table))), size=size, number=len(table) // size))
    assert edges(groups) == max(map(edges, every))


def cuts(things, *, size, number):
    """Every way to take `number` groups of `size` out of the things."""
    if number == 0:
        yield ()
        return
    for group in combinations(things, size):
        rest = tuple(x for x in things if x not in group and x > group[0])
        for more in cuts(rest, size=size, number=number - 1):
            yield (group, *more)


def ring_edges_of_groups(table, groups):
    edges = []
    for group in groups:
        if len(group) > 1:
            edges += max(ring_edges(table, ring) for ring in rings_over(group))
    return edges


@given(st.integers(1, 5), st.data())
@settings(deadline=None, max_examples=40)
def test_best_matching_is_the_cheapest_and_the_first(size, data):
    row = st.lists(st.integers(0, 3), min_size=size, max_size=size)
    costs = tuple(map(tuple, data.draw(st.lists(row, min_size=size, max_size=size))))

    def cost(columns):
        return sum(costs[r][c] for r, c in enumerate(columns))

    columns = best_matching(costs)

    every = list(permutations(range(size)))
    least = min(map(cost, every))
    assert cost(columns) == least == matching_cost(costs)
    assert columns == min(c for c in every if cost(c) == least)


def test_alike_edges_keep_the_given_order_whatever_the_number():
    costs = cost_matrix(random_worths(72, levels=1))

    assert is_uniform(costs)
    assert best_ring(costs, size=72) == tuple(range(72))
    assert best_ring(costs, size=5) == tuple(range(5))
    assert improved_ring(costs) == tuple(range(72))
    assert best_groups(costs, size=8)[0][8] == tuple(range(64, 72))
    assert len(best_paths(cost_matrix(random_worths(12, levels=1)))) == 12 * 11


def test_sixteen_unlike_things_take_seconds_at_most():
    costs = cost_matrix(random_worths(16, levels=6))
    start = time.process_time()

    order = best_ring(costs, size=16)

    assert time.process_time() - start < 10  # 0.4 s where nothing else runs
    assert sorted(order) == list(range(16))
    assert ring_cost(costs, order) <= ring_cost(costs, improved_ring(costs))


@pytest.mark.parametrize("seed", range(5))
def test_the_heuristic_finds_the_best_ring_in_a_tree_of_buses(seed):
    place = list(range(24))
    random.Random(seed).shuffle(place)
    level = {0: 3.0, 1: 2.0, 2: 1.0}

    def worth(a, b):
        a, b = place[a], place[b]
        return level[0 if a // 4 == b // 4 else 1 if a // 12 == b // 12 else 2], 0

    table = [[worth(a, b) if a != b else None for b in range(24)] for a in range(24)]

    order = improved_ring(cost_matrix(table))

    assert ring_edges(table, order) == [(1.0, 0)] * 2 + [(2.0, 0)] * 4 + [(3.0, 0)] * 18


@given(worths(least=2, most=7))
@settings(deadline=None, max_examples=40)
def test_the_bound_on_the_slowest_edge_holds_and_the_heuristic_is_a_ring(table):
    costs = cost_matrix(table)
    size = len(table)

    def slowest(order):
        return max(costs[a][b] for a, b in pairwise([*order, order[0]]))

    assert slowest_edge_bound(costs) <= slowest(best_ring(costs, size=size))
    order = improved_ring(costs)
    assert sorted(order) == list(range(size))
    assert ring_cost(costs, order) >= ring_cost(costs, best_ring(costs, size=size))


def test_open_ends_of_many_unlike_things_are_one_good_path():
    for size in (11, 20):
        table = random_worths(size, levels=2, seed=size)
        [path] = best_paths(cost_matrix(table))
        assert sorted(path) == list(range(size))
        assert {table[a][b] for a, b in pairwise(path)} == {(2.0, 0)}


def test_one_thing_alone_is_a_ring_and_a_path():
    costs = cost_matrix([[None]])

    assert best_ring(costs, size=1) == (0,)
    assert best_paths(costs) == ((0,),)
    assert best_groups(costs, size=1) == (((0,),), ())
    assert slowest_edge_bound(costs) == ring_cost(costs, [0]) == 0
