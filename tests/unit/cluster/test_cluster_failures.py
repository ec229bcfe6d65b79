"""Memory that ran out is typed, with what was asked, free and short."""

import pytest

from cptune.bench.job import MemoryBudgetExceededError
from cptune.cluster.failures import failure_from, most_telling
from cptune.domain.outcome import OomKind, OutcomeKind


@pytest.mark.parametrize(
    ("asked", "kind"), [(80, OomKind.TENSOR), (100, OomKind.TENSOR), (101, OomKind.CAPACITY)]
)
def test_one_tensor_too_many_is_told_from_a_device_that_is_too_small(asked, kind):
    failure = failure_from(MemoryBudgetExceededError(asked, 50, 100, "forward"), rank=3, node="n")

    assert failure.kind is OutcomeKind.OUT_OF_MEMORY
    assert (failure.rank, failure.node) == (3, "n")
    short = failure.shortage
    assert (short.kind, short.asked_bytes, short.free_bytes) == (kind, asked, 50)
    assert short.short_bytes == asked - 50


def test_memory_that_ran_out_is_found_below_what_was_raised_from_it():
    try:
        try:
            raise MemoryBudgetExceededError(80, 50, 100, "backward")
        except MemoryError as exc:
            raise RuntimeError("an operator failed") from exc
    except RuntimeError as exc:
        found = failure_from(exc, rank=0, node=None)

    assert found.kind is OutcomeKind.OUT_OF_MEMORY
    assert "out of memory in backward" in found.message


def test_the_rank_that_ran_out_of_memory_explains_its_peers():
    lost = failure_from(RuntimeError("Connection closed by peer"), rank=0, node=None)
    starved = failure_from(MemoryBudgetExceededError(80, 50, 100, "forward"), rank=1, node=None)

    assert lost.kind is OutcomeKind.COMMUNICATION
    assert most_telling([lost, starved]) is starved
