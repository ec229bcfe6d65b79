"""Ranks in Megatron's order, and groups that cut the world without rest."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cptune.domain.layout import Axis, Coordinates, ParallelLayout

degree = st.integers(1, 4)
layouts = st.builds(ParallelLayout, tp=degree, cp=degree, pp=degree, dp=degree)


@given(layouts)
def test_rank_order_is_megatrons_with_tp_fastest(layout):
    order = product(range(layout.pp), range(layout.dp), range(layout.cp), range(layout.tp))

    ranks = [layout.rank(Coordinates(tp=tp, cp=cp, dp=dp, pp=pp)) for (pp, dp, cp, tp) in order]

    assert ranks == list(range(layout.world_size))


def test_one_rank_of_megatrons_formula():
    layout = ParallelLayout(tp=2, cp=3, dp=5, pp=7)
    at = Coordinates(tp=1, cp=2, dp=4, pp=6)

    assert layout.rank(at) == 1 + 2 * (2 + 3 * (4 + 5 * 6)) == 209
    assert layout.world_size == 210


@given(layouts)
def test_coordinates_are_the_inverse_of_rank(layout):
    assert [layout.rank(layout.coordinates(r)) for r in range(layout.world_size)] == list(
        range(layout.world_size)
    )


@given(layouts, st.sampled_from(Axis))
def test_groups_of_an_axis_partition_the_world(layout, axis):
    groups = layout.groups(axis)

    assert {len(group) for group in groups} == {getattr(layout, axis)}
    assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))


def test_groups_of_a_small_world():
    layout = ParallelLayout(tp=2, cp=2, dp=2)

    assert layout.groups(Axis.TP) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert layout.groups(Axis.CP) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert layout.groups(Axis.DP) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert layout.groups(Axis.PP) == [[rank] for rank in range(8)]


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_outside_the_world_is_refused(rank):
    with pytest.raises(ValueError, match=rf"rank {rank} is outside 0\.\.3"):
        ParallelLayout(tp=2, cp=2).coordinates(rank)


def test_every_degree_below_one_is_named():
    with pytest.raises(ValueError, match="tp is 0, dp is -2; wanted 1 or more"):
        ParallelLayout(tp=0, dp=-2)


def test_ring_is_what_ulysses_leaves_of_cp():
    assert ParallelLayout(cp=8, ulysses=2).ring == 4
