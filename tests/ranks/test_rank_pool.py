"""The pool itself: results by rank, failures with their traceback, and life after a failure."""

import os
import time
from contextlib import closing

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankError, RankPool


def sum_over_ranks(base: int) -> tuple[int, int, float]:
    total = torch.tensor(float(base + dist.get_rank()))
    dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), total.item()


def fail_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ZeroDivisionError("this rank was told to")
    dist.barrier()


def die_on(rank: int) -> None:
    if dist.get_rank() == rank:
        os._exit(7)
    dist.barrier()


def sleep_on(rank: int) -> None:
    if dist.get_rank() == rank:
        time.sleep(60)


def process_id() -> int:
    return os.getpid()


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_a_case_runs_on_exactly_the_ranks_asked_for(ranks: RankPool, world: int) -> None:
    expected = sum(10 + rank for rank in range(world))
    results = ranks.run(sum_over_ranks, world=world, base=10)
    assert results == [(rank, world, expected) for rank in range(world)]


def test_ranks_are_reused_and_after_some_cases_replaced() -> None:
    with closing(RankPool(cases_each=2)) as pool:
        first, second, third = (pool.run(process_id, world=2) for _ in range(3))
    assert first == second
    assert not {*first} & {*third}


def test_a_rank_that_raises_fails_the_case_with_its_traceback(ranks: RankPool) -> None:
    with pytest.raises(RankError, match=r"(?s)rank 1 of 3.*fail_on.*ZeroDivisionError: this rank"):
        ranks.run(fail_on, world=3, rank=1)
    assert ranks.run(sum_over_ranks, world=2, base=0)[1] == (1, 2, 1.0)


def test_a_rank_that_dies_fails_the_case_with_its_exit_code(ranks: RankPool) -> None:
    with pytest.raises(RankError, match="rank 0 of 2: died with exit code 7"):
        ranks.run(die_on, world=2, rank=0)
    assert ranks.run(sum_over_ranks, world=2, base=0)[0] == (0, 2, 1.0)


def test_a_late_rank_is_killed_and_named(ranks: RankPool) -> None:
    started_s = time.monotonic()
    with pytest.raises(RankError, match="rank 1 of 2: gave no answer in time"):
        ranks.run(sleep_on, world=2, timeout_s=1.0, rank=1)
    assert time.monotonic() - started_s < 20
    assert ranks.run(sum_over_ranks, world=2, base=0)[0] == (0, 2, 1.0)
