"""A function on the rank actors of a cluster: as on processes of one machine, and its failures."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch.distributed as dist
from fakes import candidate, model, workload

from cptune.balance.batches import Batches, compare, time_batches
from cptune.balance.processes import run_on_processes
from cptune.bench.calls import RunOnRanks
from cptune.cluster.gang_calls import RunOnGang, run_on_gang
from cptune.domain.proof import join_checks
from cptune.errors import ClusterError
from cptune.proof.fixture import proof_case
from cptune.proof.prove import prove_rank, self_test_jobs
from cptune.proving import prove

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


def test_a_candidate_is_proven_on_actors_and_a_planted_fault_refused(trials):
    run = RunOnGang(trials.gang)
    tried = candidate(cp=2, tp=2)
    case = proof_case(tried, model=model(), workload=workload())
    proof = prove(tried, case, run=run)
    assert proof.passed, proof.failed
    fault = next(job for job in self_test_jobs() if job.mutant == "nothing-fetched")
    checks = join_checks(run(prove_rank, fault, ranks=RANKS))
    assert not all(check.passed for check in checks)


def test_after_a_call_that_failed_the_gang_is_another_and_a_proof_says_why_it_is_missing(trials):
    run = RunOnGang(trials.gang)
    before = run(os.readlink, "/proc/self", ranks=RANKS)
    broken = replace(candidate(cp=4), stages=9)  # of the 3 that there are
    case = replace(
        proof_case(candidate(cp=4), model=model(), workload=workload()), candidate=broken
    )
    proof = prove(broken, case, run=run)
    assert (proof.passed, proof.refuted) == (False, False)
    assert proof.why_missing.startswith("rank ")
    assert set(run(os.readlink, "/proc/self", ranks=RANKS)).isdisjoint(before)
