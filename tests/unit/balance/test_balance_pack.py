"""Packings: every token once, rows full, and the work as even as each can make it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cptune.balance.asked import Packing
from cptune.balance.pack import StepCutter, cut_rows, cut_stream, pack
from cptune.balance.work import Work


def rows_of(pieces, counts):
    return [one.tolist() for one in np.split(pieces, np.cumsum(counts)[:-1])]


def packed(documents, *, rows, row_tokens, packing):
    documents = np.array(documents)
    return rows_of(*pack(documents, rows=rows, row_tokens=row_tokens, packing=packing, work=Work()))


def test_sequential_cuts_the_stream_and_a_cut_document_restarts():
    assert packed([3, 4, 5], rows=3, row_tokens=4, packing=Packing.SEQUENTIAL) == [
        [3, 1],
        [3, 1],
        [4],
    ]
    assert rows_of(*cut_rows(np.array([8]), row_tokens=4)) == [[4], [4]]


def test_first_fit_keeps_documents_whole_and_fills_the_gaps_with_what_fits_nowhere():
    assert packed([3, 3, 1, 1, 4], rows=3, row_tokens=4, packing=Packing.FIRST_FIT) == [
        [3, 1],
        [3, 1],
        [4],
    ]
    assert packed([3, 3, 2], rows=2, row_tokens=4, packing=Packing.FIRST_FIT) == [[3, 1], [3, 1]]


def test_quadratic_puts_the_costliest_apart():
    documents = [1, 1, 1, 1, 4, 2, 2, 4]
    assert packed(documents, rows=2, row_tokens=8, packing=Packing.QUADRATIC) == [
        [4, 2, 1, 1],
        [4, 2, 1, 1],
    ]


def test_a_document_longer_than_a_row_fills_rows_of_its_own():
    for packing in (Packing.FIRST_FIT, Packing.QUADRATIC):
        rows = packed([10, 2], rows=3, row_tokens=4, packing=packing)
        assert sorted(map(sorted, rows)) == [[2, 2], [4], [4]]


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 5),
    row_tokens=st.integers(1, 30),
    packing=st.sampled_from(Packing),
    seed=st.integers(0, 1000),
)
def test_every_packing_fills_every_row_with_pieces_of_the_documents(
    rows, row_tokens, packing, seed
):
    stream = np.random.default_rng(seed).integers(1, 40, size=rows * row_tokens)
    documents, _ = cut_stream(stream, rows * row_tokens)
    found = packed(documents, rows=rows, row_tokens=row_tokens, packing=packing)
    assert [sum(row) for row in found] == [row_tokens] * rows
    assert all(piece > 0 for row in found for piece in row)
    if packing is not Packing.SEQUENTIAL:
        assert max(max(row) for row in found) <= max(documents)


def test_a_stream_is_cut_into_whole_steps_whatever_its_blocks():
    rng = np.random.default_rng(0)
    stream = rng.integers(1, 50, size=400)
    whole, _ = cut_stream(stream, int(stream.sum()) // 100 * 100)
    cutter = StepCutter(100)
    ready = [cutter.feed(block) for block in np.array_split(stream, 29)]
    taken = np.concatenate([one for one in ready if one is not None])
    assert all(one is None or one.sum() % 100 == 0 for one in ready)
    assert rows_of(*cut_rows(taken, row_tokens=100)) == rows_of(*cut_rows(whole, row_tokens=100))


def test_a_step_is_kept_back_until_it_is_whole():
    cutter = StepCutter(10)
    assert cutter.feed(np.array([4])) is None
    assert cutter.feed(np.array([4])) is None
    assert cutter.feed(np.array([7])).tolist() == [4, 4, 2]
    assert cutter.feed(np.array([5])).tolist() == [5, 5]
    with pytest.raises(AssertionError, match="fill its rows"):
        pack(np.array([3]), rows=1, row_tokens=4, packing=Packing.SEQUENTIAL, work=Work())
