"""Pairs of documents, on every rank of a group; a kernel's cost beside them."""

import numpy as np
import pytest

from cptune.attention import Mask, Partition, Plan, Sharding
from cptune.balance.asked import Split
from cptune.balance.work import (
    Work,
    fit_token_keys,
    published,
    published_token_keys,
    rank_pairs,
    rank_work,
)
from cptune.errors import SpecError


def visible_pairs(documents, window=None):
    """Every pair of the row, one by one: which query of the row sees how many keys."""
    return [
        min(position, position if window is None else window) + 1
        for tokens in documents
        for position in range(tokens)
    ]


def test_zigzag_gives_each_rank_equal_work_and_contiguous_does_not():
    assert rank_pairs([48], cp=3, split=Split.CONTIGUOUS).tolist() == [136, 392, 648]
    assert rank_pairs([48], cp=3, split=Split.ZIGZAG).tolist() == [392, 392, 392]


@pytest.mark.parametrize("split", [Split.CONTIGUOUS, Split.ZIGZAG])
@pytest.mark.parametrize("tokens", [1, 7, 47, 50])
def test_one_document_is_what_the_attention_plan_attends(split, tokens):
    part = Partition(seq_len=tokens, cp_size=3, sharding=Sharding(split.value))
    plan = Plan(partition=part, mask=Mask.CAUSAL, stages=2)
    assert rank_pairs([tokens], cp=3, split=split).tolist() == [plan.pairs(r) for r in range(3)]


@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_packed_documents_are_counted_query_by_query(window):
    documents, cp = [5, 1, 13, 9], 2
    seen = visible_pairs(documents, window)
    chunks = [sum(seen[i * 28 // 4 : (i + 1) * 28 // 4]) for i in range(4)]
    zigzag = [chunks[0] + chunks[3], chunks[1] + chunks[2]]
    assert rank_pairs(documents, cp=cp, split=Split.ZIGZAG, window=window).tolist() == zigzag
    halves = [sum(seen[:14]), sum(seen[14:])]
    assert rank_pairs(documents, cp=cp, split=Split.CONTIGUOUS, window=window).tolist() == halves


def test_even_split_and_whole_documents():
    documents = [3, 2, 2]  # 6, 3 and 3 pairs
    assert rank_pairs(documents, cp=4, split=Split.DOCUMENT).tolist() == [3, 3, 3, 3]
    assert rank_pairs(documents, cp=2, split=Split.WHOLE).tolist() == [6, 6]
    assert rank_pairs([4, 1, 1], cp=2, split=Split.WHOLE).tolist() == [10, 2]


@pytest.mark.parametrize("split", list(Split))
def test_no_split_loses_work(split):
    pieces, counts = np.array([7, 9, 4, 4, 8, 11, 5]), np.array([2, 3, 2])
    work = Work(window=6, token_keys=2.5)
    ranks = rank_work(pieces, counts, cp=3, split=split, work=work)
    costs = work.of(pieces)
    assert ranks.shape == (3, 3)
    assert ranks.sum(axis=1) == pytest.approx([costs[:2].sum(), costs[2:5].sum(), costs[5:].sum()])


def test_token_keys_are_found_in_times_of_a_kernel_that_has_them():
    tokens = np.array([64, 512, 4096])
    seconds = 3e-9 * Work(token_keys=200.0).of(tokens)
    assert fit_token_keys(tokens, seconds) == pytest.approx(200.0)
    assert fit_token_keys(tokens, 3e-9 * Work().of(tokens)) == pytest.approx(0.0, abs=1e-6)


def test_published_times_follow_their_fit_within_four_percent():
    tokens, milliseconds = np.array(published("kernels")["fa2-h100"]["milliseconds"]).T
    work = Work(token_keys=published_token_keys()).of(tokens)
    ratio = milliseconds / work
    assert ratio / np.median(ratio) == pytest.approx(1.0, abs=0.05)
    assert published_token_keys() == pytest.approx(942, abs=1)


def test_every_published_fact_has_its_source():
    for table in ("lengths", "kernels"):
        assert all(row["source"].startswith("https://") for row in published(table).values())


def test_an_unknown_kernel_and_wrong_costs_are_refused():
    with pytest.raises(SpecError, match="known: fa2-h100"):
        published_token_keys("fa9")
    with pytest.raises(ValueError, match="window is 0"):
        Work(window=0)
    with pytest.raises(ValueError, match="token_keys is nan"):
        Work(token_keys=float("nan"))
