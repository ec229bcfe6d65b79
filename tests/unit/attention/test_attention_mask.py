"""Blocks are full, skipped or square causal, and neighbours become one kernel call."""

import pytest

from cptune.attention import Mask
from cptune.attention.mask import Cover, Slice, build_slices, cover


def as_rows(slices: tuple[Slice, ...]) -> list[tuple[tuple[int, int], tuple[int, int], bool]]:
    return [((s.q_start, s.q_stop), (s.kv_start, s.kv_stop), s.causal) for s in slices]


@pytest.mark.parametrize(
    ("q", "kv", "expected"),
    [((4, 8), (0, 4), Cover.FULL), ((0, 4), (4, 8), Cover.SKIP), ((2, 5), (2, 5), Cover.CAUSAL)],
)
def test_causal_covers_the_past_skips_the_future_and_cuts_itself(
    q: tuple[int, int], kv: tuple[int, int], expected: Cover
) -> None:
    assert cover(Mask.CAUSAL, q=q, kv=kv) is expected
    assert cover(Mask.FULL, q=q, kv=kv) is Cover.FULL


@pytest.mark.parametrize("kv", [(0, 3), (3, 5), (1, 8), (2, 4)])
def test_intervals_that_overlap_in_part_are_our_bug(kv: tuple[int, int]) -> None:
    with pytest.raises(AssertionError, match="overlap in part"):
        cover(Mask.FULL, q=(2, 5), kv=kv)


def test_own_zigzag_block_is_two_triangles_and_a_rectangle() -> None:
    own = [(0, 2), (6, 8)]
    assert as_rows(build_slices(Mask.CAUSAL, q_intervals=own, kv_intervals=own)) == [
        ((0, 2), (0, 2), True),
        ((2, 4), (0, 2), False),
        ((2, 4), (2, 4), True),
    ]


def test_full_blocks_fuse_into_one_call() -> None:
    slices = build_slices(
        Mask.FULL, q_intervals=[(0, 2), (6, 8)], kv_intervals=[(2, 4), (4, 6), (8, 9)]
    )
    assert as_rows(slices) == [((0, 4), (0, 5), False)]


def test_keys_are_fused_before_queries() -> None:
    # The late queries see all five keys in one call, the early ones two in another.
    slices = build_slices(
        Mask.CAUSAL, q_intervals=[(4, 6), (10, 12)], kv_intervals=[(0, 2), (6, 9)]
    )
    assert as_rows(slices) == [((0, 2), (0, 2), False), ((2, 4), (0, 5), False)]


def test_a_skipped_block_between_keeps_calls_apart() -> None:
    slices = build_slices(Mask.CAUSAL, q_intervals=[(4, 6)], kv_intervals=[(2, 4), (6, 8), (0, 2)])
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
