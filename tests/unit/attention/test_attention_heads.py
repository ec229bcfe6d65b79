"""Query heads go in even runs, and with each run the kv heads that it reads."""

import pytest

from cptune.attention.heads import share_heads


def as_runs(heads: int, kv_heads: int, ulysses: int) -> list[tuple]:
    shares = share_heads(heads, kv_heads, ulysses=ulysses)
    return [(tuple(one.q), tuple(one.kv), one.spread) for one in shares]


def test_heads_that_divide_go_with_their_own_kv_heads() -> None:
    assert as_runs(8, 4, 2) == [((0, 4), (0, 2), None), ((4, 8), (2, 4), None)]


def test_a_kv_head_goes_to_every_rank_that_reads_it() -> None:
    assert as_runs(4, 2, 4) == [
        ((0, 1), (0, 1), None),
        ((1, 2), (0, 1), None),
        ((2, 3), (1, 2), None),
        ((3, 4), (1, 2), None),
    ]


def test_uneven_runs_name_the_kv_head_of_each_query_head() -> None:
    assert as_runs(8, 2, 3) == [
        ((0, 2), (0, 1), None),
        ((2, 5), (0, 2), (0, 0, 1)),
        ((5, 8), (1, 2), None),
    ]
    assert as_runs(6, 2, 3)[1] == ((2, 4), (0, 2), None)


def test_more_ranks_than_query_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="ulysses is 5, wanted at most the 4 query heads; near"):
        share_heads(4, 2, ulysses=5)
