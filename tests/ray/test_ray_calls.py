"""A function on the rank actors of a cluster: as on processes of one machine, and its failures."""

import os

import numpy as np
import pytest
import torch.distributed as dist

from cptune.balance.batches import Batches, compare, time_batches
from cptune.balance.processes import run_on_processes
from cptune.bench.calls import RunOnRanks
from cptune.cluster.gang_calls import run_on_gang
from cptune.errors import ClusterError

RANKS = 4
ROWS = [[tokens] for tokens in (64, 96, 128, 256, 384, 512, 768, 1024)]
BATCHES = Batches(rows={1: ROWS, 2: ROWS}, steps=1, scale=1.0)


@pytest.fixture(params=["processes", "actors"])
def run(request) -> RunOnRanks:
    """Both implementations, under one contract; the functions are such as actors can import."""
    if request.param == "processes":
        return run_on_processes
    gang = request.getfixturevalue("trials").gang
    return lambda function, argument, *, ranks: run_on_gang(gang, function, argument)


def test_every_rank_of_one_group_answers_in_order_from_a_process_of_its_own(run):
    assert run(dist.get_rank, None, ranks=RANKS) == list(range(RANKS))
    assert run(dist.get_world_size, None, ranks=RANKS) == [RANKS] * RANKS
    pids = run(os.readlink, "/proc/self", ranks=RANKS)
    assert len({*pids, str(os.getpid())}) == RANKS + 1


def test_a_rank_that_fails_is_named_with_its_reason_and_the_next_call_works(run):
    broken = Batches(rows={1: [[0]]}, steps=1, scale=1.0)
    with pytest.raises(ClusterError, match=r"rank 0 failed: .*seq_len is 0"):
        run(time_batches, broken, ranks=RANKS)
    assert run(dist.get_rank, None, ranks=RANKS) == list(range(RANKS))


def test_kernels_are_timed_on_every_rank(run):
    found = run(time_batches, BATCHES, ranks=RANKS)
    assert sorted(row for one in found for row in one.rows_s[1]) == list(range(len(ROWS)))
    assert sorted(row for one in found for row in one.rows_s[2]) == sorted([*range(len(ROWS))] * 2)
    compared = compare(BATCHES, found)
    assert all(one.correlation > 0.9 for one in compared)
    assert np.isfinite([one.measured.cv for one in compared]).all()
