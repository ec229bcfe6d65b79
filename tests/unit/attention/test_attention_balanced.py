"""Chunks dealt by the area of the mask: equal work, equal tokens, whatever the documents."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cptune.attention import Mask, Partition, Pattern, Plan, Sharding
from cptune.attention.balanced import deal_chunks

PACK = 65536


def make_pack(seed: int) -> tuple[int, ...]:
    """64K tokens of documents with long tails, none longer than a quarter."""
    source = random.Random(seed)
    docs: list[int] = []
    while sum(docs) < PACK:
        docs.append(min(int(source.lognormvariate(7.0, 1.5)) + 1, PACK // 4, PACK - sum(docs)))
    return tuple(docs)


def imbalance(docs: tuple[int, ...], sharding: Sharding, *, cp_size: int = 8) -> float:
    pattern = Pattern(mask=Mask.DOCUMENT, seq_len=sum(docs), docs=docs)
    partition = Partition(seq_len=sum(docs), cp_size=cp_size, sharding=sharding, pattern=pattern)
    areas = [sum(map(pattern.pairs, partition.intervals(rank))) for rank in range(cp_size)]
    return max(areas) * cp_size / sum(areas)


@pytest.mark.parametrize("seed", range(6))
def test_64k_packs_over_8_ranks_are_within_a_hundredth(seed: int) -> None:
    docs = make_pack(seed)
    assert imbalance(docs, Sharding.BALANCED) <= 1.01 < imbalance(docs, Sharding.ZIGZAG)


@pytest.mark.parametrize("cp_size", [2, 4, 16])
def test_tokens_are_equal_where_they_can_be(cp_size: int) -> None:
    docs = make_pack(1)
    pattern = Pattern(mask=Mask.DOCUMENT, seq_len=PACK, docs=docs)
    partition = Partition(
        seq_len=PACK, cp_size=cp_size, sharding=Sharding.BALANCED, pattern=pattern
    )
    assert {partition.real_len(rank) for rank in range(cp_size)} == {PACK // cp_size}


def test_there_are_at_least_eight_chunks_a_rank() -> None:
    dealt = deal_chunks(Pattern(mask=Mask.CAUSAL, seq_len=4096), 4)
    assert all(len(mine) >= 8 for mine in dealt)


@settings(deadline=None)  # another job may hold the core
@given(st.integers(1, 90), st.integers(1, 6), st.none() | st.integers(0, 20))
def test_every_token_is_dealt_once_and_ranks_differ_by_a_chunk(
    seq_len: int, cp_size: int, window: int | None
) -> None:
    pattern = Pattern(mask=Mask.CAUSAL, seq_len=seq_len, window=window)
    dealt = deal_chunks(pattern, cp_size)
    owned = sorted(p for mine in dealt for start, stop in mine for p in range(start, stop))
    assert owned == list(range(seq_len))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


def test_the_plan_is_as_balanced_as_the_cut() -> None:
    docs = (3000, 500, 500, 96)
    pattern = Pattern(mask=Mask.DOCUMENT, seq_len=4096, docs=docs)
    partition = Partition(seq_len=4096, cp_size=4, sharding=Sharding.BALANCED, pattern=pattern)
    plan = Plan(partition=partition, mask=Mask.DOCUMENT, docs=docs, stages=3)
    assert plan.imbalance() == pytest.approx(imbalance(docs, Sharding.BALANCED, cp_size=4))
    assert plan.imbalance() <= 1.02
