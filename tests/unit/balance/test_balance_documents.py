"""A pool of lengths stands for a file or a distribution, and a path starts at its spec."""

import pytest
from fakes import workload

from cptune.balance.documents import read_pool
from cptune.domain.workload import AttentionMask
from cptune.errors import SpecError
from cptune.store.balance import open_lengths


def pool(lengths, **changes):
    work = workload(seq_len=64, mask=AttentionMask.DOCUMENT, lengths=lengths, **changes)
    return read_pool(work, open_file=open_lengths)


def test_without_the_document_mask_there_is_nothing_to_draw():
    assert read_pool(workload(), open_file=open_lengths) == ()


def test_full_lengths_are_one_document_a_sequence():
    assert pool("full") == (64,)


def test_a_file_keeps_its_frequencies_and_its_longest_are_cut_to_a_sequence(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("10\n10\n10\n200\n")

    drawn = pool(str(path))

    assert set(drawn) == {10, 64}
    assert drawn.count(10) == pytest.approx(0.75 * len(drawn), abs=1)


def test_a_distribution_keeps_its_mean():
    drawn = pool("lognormal(mean=20, sigma=0.3)")

    assert sum(drawn) / len(drawn) == pytest.approx(20, rel=0.02)
    assert max(drawn) <= 64


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(SpecError, match=r"no file and no distribution"):
        pool("nowhere.txt")
