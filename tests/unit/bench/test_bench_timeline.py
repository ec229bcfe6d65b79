"""Interval arithmetic: what of the communication no compute hides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cptune.bench.timeline import exposure, intersection, seconds, union

COMPUTE = [(0.0, 6.0), (9.0, 15.0)]
COMMUNICATION = [(4.0, 11.0), (10.0, 12.0), (18.0, 20.0)]

ticks = st.integers(0, 60)
intervals = st.lists(st.tuples(ticks, ticks).map(lambda ends: tuple(sorted(ends))), max_size=8)


def covered(found):
    """The unit ticks inside, counted one by one."""
    return {tick for start, stop in found for tick in range(start, stop)}


def test_exposed_is_the_union_of_transfers_minus_compute():
    seen = exposure(compute=COMPUTE, communication=COMMUNICATION)

    assert (seen.communication_s, seen.overlap_s, seen.exposed_s) == (10.0, 5.0, 5.0)


def test_sums_of_durations_are_another_figure_on_the_same_intervals():
    summed = sum(stop - start for start, stop in COMMUNICATION)
    overlap = sum(max(0.0, min(b, d) - max(a, c)) for a, b in COMPUTE for c, d in COMMUNICATION)
    assert (summed, overlap) == (11.0, 6.0)  # 10 and 5 by the union


@given(intervals, intervals)
def test_union_and_intersection_cover_what_sets_of_ticks_cover(ours, theirs):
    assert covered(union(ours)) == covered(ours)
    assert covered(intersection(ours, theirs)) == covered(ours) & covered(theirs)
    assert seconds(ours) == len(covered(ours))


@given(intervals, intervals)
def test_exposed_is_what_is_left_of_the_transfers(compute, communication):
    seen = exposure(compute=compute, communication=communication)

    assert seen.exposed_s == len(covered(communication) - covered(compute))


def test_an_interval_that_stops_before_it_starts_is_refused():
    with pytest.raises(ValueError, match="stops at 1 s, before its start at 2 s"):
        seconds([(2, 1)])
