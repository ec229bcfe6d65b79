"""Blocks are full, skipped or square causal, and neighbours become one kernel call."""

import pytest

from cptune.attention import Mask, Pattern
from cptune.attention.slices import Band, Rows, Slice, build_slices, join_rows, needed_rows, pick

CAUSAL = Pattern(mask=Mask.CAUSAL, seq_len=16)
FULL = Pattern(mask=Mask.FULL, seq_len=16)


def as_rows(slices: tuple[Slice, ...]) -> list[tuple[tuple[int, int], tuple[int, int], bool]]:
    return [((s.q_start, s.q_stop), (s.kv_start, s.kv_stop), s.causal) for s in slices]


def test_causal_covers_the_past_skips_the_future_and_cuts_itself() -> None:
    blocks = {
        ((4, 8), (0, 4)): [((0, 4), (0, 4), False)],
        ((0, 4), (4, 8)): [],
        ((2, 5), (2, 5)): [((0, 3), (0, 3), True)],
    }
    for (q, kv), expected in blocks.items():
        found = build_slices(CAUSAL, q_intervals=[q], kv_intervals=[kv])
        assert as_rows(found) == expected
        assert [one.full for one in build_slices(FULL, q_intervals=[q], kv_intervals=[kv])] == [
            True
        ]


@pytest.mark.parametrize("kv", [(0, 3), (3, 5), (1, 8), (2, 4)])
def test_intervals_that_overlap_in_part_are_our_bug(kv: tuple[int, int]) -> None:
    with pytest.raises(AssertionError, match="overlap in part"):
        build_slices(CAUSAL, q_intervals=[(2, 5)], kv_intervals=[kv])


def test_own_zigzag_block_is_two_triangles_and_a_rectangle() -> None:
    own = [(0, 2), (6, 8)]
    assert as_rows(build_slices(CAUSAL, q_intervals=own, kv_intervals=own)) == [
        ((0, 2), (0, 2), True),
        ((2, 4), (0, 2), False),
        ((2, 4), (2, 4), True),
    ]


def test_full_blocks_fuse_into_one_call() -> None:
    slices = build_slices(FULL, q_intervals=[(0, 2), (6, 8)], kv_intervals=[(2, 4), (4, 6), (8, 9)])
    assert as_rows(slices) == [((0, 4), (0, 5), False)]


def test_keys_are_fused_before_queries() -> None:
    # The late queries see all five keys in one call, the early ones two in another.
    slices = build_slices(CAUSAL, q_intervals=[(4, 6), (10, 12)], kv_intervals=[(0, 2), (6, 9)])
    assert as_rows(slices) == [((0, 2), (0, 2), False), ((2, 4), (0, 5), False)]


def test_a_skipped_block_between_keeps_calls_apart() -> None:
    slices = build_slices(CAUSAL, q_intervals=[(4, 6)], kv_intervals=[(2, 4), (6, 8), (0, 2)])
    assert as_rows(slices) == [((0, 2), (0, 2), False), ((0, 2), (4, 6), False)]


def test_pairs_count_the_triangle() -> None:
    square = Slice(q_start=0, q_stop=4, kv_start=0, kv_stop=4, causal=True)
    oblong = Slice(q_start=0, q_stop=4, kv_start=0, kv_stop=3, causal=False)
    assert (square.pairs, oblong.pairs) == (10, 12)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [((0, 0, 0, 4, False), "rows"), ((0, 4, 2, 2, False), "keys"), ((0, 4, 0, 3, True), "square")],
)
def test_empty_rows_and_oblong_causal_blocks_cannot_be_made(
    rows: tuple[int, int, int, int, bool], reason: str
) -> None:
    names = ("q_start", "q_stop", "kv_start", "kv_stop", "causal")
    with pytest.raises(AssertionError, match=reason):
        Slice(**dict(zip(names, rows, strict=True)))


def test_an_own_interval_under_a_short_window_is_one_band() -> None:
    windowed = Pattern(mask=Mask.CAUSAL, seq_len=16, window=2)
    (found,) = build_slices(windowed, q_intervals=[(4, 9)], kv_intervals=[(4, 9)])
    assert (found.band, found.causal, found.pairs) == (Band(2, 0), False, 1 + 2 + 3 + 3 + 3)


def test_a_window_as_long_as_the_interval_is_causal() -> None:
    windowed = Pattern(mask=Mask.CAUSAL, seq_len=16, window=4)
    (found,) = build_slices(windowed, q_intervals=[(4, 9)], kv_intervals=[(4, 9)])
    assert found.causal


def test_earlier_keys_through_a_window_are_a_rectangle_a_corner_and_a_rectangle() -> None:
    windowed = Pattern(mask=Mask.CAUSAL, seq_len=32, window=6)
    found = build_slices(windowed, q_intervals=[(10, 14)], kv_intervals=[(0, 10)])
    # Query 10 sees keys 4..9, query 13 keys 7..9.
    assert as_rows(found) == [
        ((0, 1), (4, 10), False),
        ((1, 4), (5, 8), False),
        ((1, 4), (8, 10), False),
    ]
    assert [one.band for one in found] == [None, Band(0, 2), None]
    assert sum(one.pairs for one in found) == 6 + 5 + 4 + 3


def test_documents_are_apart_and_a_query_sees_its_own_alone() -> None:
    packed = Pattern(mask=Mask.DOCUMENT, seq_len=8, docs=(3, 0, 1, 4))
    found = build_slices(packed, q_intervals=[(2, 6)], kv_intervals=[(0, 2)])
    assert as_rows(found) == [((0, 1), (0, 2), False)]
    own = build_slices(packed, q_intervals=[(2, 6)], kv_intervals=[(2, 6)])
    assert [one.q_stop - one.q_start for one in own] == [1, 1, 2]
    assert all(one.causal for one in own)


def test_needed_rows_have_holes_where_documents_that_nobody_sees_lie() -> None:
    packed = Pattern(mask=Mask.DOCUMENT, seq_len=12, docs=(4, 4, 4))
    queries, keys = ((2, 4), (10, 12)), ((0, 2), (4, 6), (8, 10))
    assert needed_rows(packed, queries, keys) == (Rows(0, 2), Rows(4, 6))
    assert pick(keys, [Rows(0, 2), Rows(4, 6)]) == [(0, 2), (8, 10)]
    assert join_rows(iter([Rows(4, 6), Rows(0, 2), Rows(2, 3)])) == (Rows(0, 3), Rows(4, 6))
