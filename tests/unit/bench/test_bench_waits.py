"""Waiting for a late peer is communication exactly while the peer stands still for it."""

from hypothesis import given
from hypothesis import strategies as st

from cptune.bench.timeline import seconds
from cptune.bench.waits import Standstill, Wait, attribute

KEYS = ("cp", 0)


def moves(*intervals, cause=KEYS, waits=()):
    return Standstill(moving={cause: intervals}, waits=waits)


def waits(*intervals, late):
    return Standstill(moving={}, waits=[Wait(one, late) for one in intervals])


def test_a_peer_that_computes_half_of_the_time_hands_on_the_other_half():
    # Rank 1 is late by 10 s: it stands still for a transfer to 5, then computes to 10.
    found = attribute([waits((0.0, 10.0), late=1), moves((0.0, 5.0))])

    assert found == [{KEYS: [(0.0, 5.0)]}, {}]


def test_a_peer_that_only_computes_makes_imbalance():
    assert attribute([waits((0.0, 10.0), late=1), Standstill({}, ())]) == [{}, {}]


def test_a_wait_is_handed_on_through_a_chain_of_ranks():
    # 3 waits for 2, which waits for 1, which waits for 0, whose keys move from 2 to 6.
    found = attribute(
        [
            moves((2.0, 6.0)),
            waits((0.0, 5.0), late=0),
            waits((1.0, 9.0), late=1),
            waits((3.0, 4.0), (4.5, 8.0), late=2),
        ]
    )

    assert found == [
        {},
        {KEYS: [(2.0, 5.0)]},
        {KEYS: [(2.0, 5.0)]},
        {KEYS: [(3.0, 4.0), (4.5, 5.0)]},
    ]


def test_a_wait_counts_for_what_moves_at_the_end_of_the_chain():
    summed = ("dp", None)
    own = moves((8.0, 9.0), cause=summed, waits=[Wait((0.0, 8.0), 1)])

    assert attribute([own, moves((0.0, 3.0))])[0] == {KEYS: [(0.0, 3.0)]}


def test_ranks_that_seem_to_wait_for_each_other_wait_for_no_transfer():
    # No more than a clock's error can do: one of them was there first.
    assert attribute([waits((0.0, 1.0), late=1), waits((0.5, 1.5), late=0)]) == [{}, {}]


ticks = st.integers(0, 20)
spans = st.lists(st.tuples(ticks, ticks).map(lambda ends: tuple(sorted(ends))), max_size=4)
WORLD = 4
stills = st.builds(
    lambda moving, waits: Standstill({KEYS: moving}, waits),
    spans,
    st.lists(
        st.builds(Wait, spans.filter(len).map(lambda few: few[0]), st.integers(0, 3)), max_size=6
    ),
)


@given(st.lists(stills, min_size=WORLD, max_size=WORLD))
def test_a_tick_is_communication_when_a_chain_of_waits_ends_in_a_transfer(ranks):
    def reaches(rank, tick, left=WORLD):
        one = ranks[rank]
        if any(a <= tick < b for a, b in one.moving[KEYS]):
            return True
        due = (wait.late for wait in one.waits if wait.interval[0] <= tick < wait.interval[1])
        return left > 0 and any(reaches(late, tick, left - 1) for late in due)

    for rank, found in enumerate(attribute(ranks)):
        still = [*ranks[rank].moving[KEYS], *found.get(KEYS, [])]
        assert seconds(still) == sum(reaches(rank, tick) for tick in range(20))
