"""Trials on a gang of real actors: warm from one to the next, and replaced after any failure."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest
from fakes import trial_of
from sweep_process import wait_for

from cptune.cluster.gang import Gang
from cptune.domain.candidate import Candidate, ShardingKind, Strategy
from cptune.domain.guards import why_not_applied, why_unlike, why_unlike_batch
from cptune.domain.layout import ParallelLayout
from cptune.domain.outcome import Failure, Measurement, OomKind, OutcomeKind
from cptune.domain.placement import Device
from cptune.domain.workload import AttentionMask
from cptune.errors import ClusterError

RING = Candidate(layout=ParallelLayout(cp=4), stages=3)
OTHERS = (
    Candidate(layout=ParallelLayout(tp=2, cp=2), stages=1),
    Candidate(layout=ParallelLayout(dp=4)).canonical(),
    Candidate(layout=ParallelLayout(cp=4), strategy=Strategy.ALL_GATHER, stages=1),
)
ENDLESS = 100_000  # steps: minutes, far longer than any deadline here
BLAMED = 2


def pids_of(outcome: Measurement | Failure) -> list[int]:
    assert isinstance(outcome, Measurement), outcome
    return [report.pid for report in outcome.ranks]


def is_there(pid: int) -> bool:
    """Whether the process lives; one that its parent has not reaped yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_gang_of_two_ranks_on_one_device_is_refused_before_it_reserves_anything():
    twin = Device(node="node0", kind="cuda", index=0, uuid="GPU-7")

    with pytest.raises(ClusterError, match=r"two ranks would share one device: ranks 0 .* GPU-7"):
        Gang([twin, replace(twin, index=1)], nodes=[], threads=1)


def assert_replaced(trials, before: list[int]) -> None:
    assert not [pid for pid in before if is_there(pid)]
    assert not set(before) & set(pids_of(trials.run(RING)))


def test_a_trial_measures_and_its_actors_stay_for_the_next_of_another_layout(trials):
    first = trials.run(RING)
    pids = pids_of(first)
    assert len(set(pids)) == 4
    assert os.getpid() not in pids
    assert first.step_s > 0
    assert [len(report.step_s) for report in first.ranks] == [2] * 4
    for candidate in (*OTHERS, RING):
        measured = trials.run(candidate)
        assert pids_of(measured) == pids
        assert measured.first_loss == pytest.approx(first.first_loss, rel=1e-4)


def test_packed_documents_are_the_same_batch_and_move_what_their_plans_say(trials):
    def pack(job):
        packed = replace(job.workload, mask=AttentionMask.DOCUMENT)
        return replace(job, workload=packed, lengths=(5, 30, 128))

    def stray(job):
        return replace(pack(job), lengths=(7, 40)) if job.rank == BLAMED else pack(job)

    anchor = None
    for candidate in (RING, *OTHERS, replace(RING, sharding=ShardingKind.BALANCED, micro_batch=2)):
        seen = trials.run(candidate, change=pack)
        assert isinstance(seen, Measurement), seen
        assert why_not_applied(seen, candidate.layout) is None
        assert why_unlike_batch(seen, candidate.layout, anchor) is None
        assert why_unlike(seen, anchor) is None
        anchor = anchor or trial_of(candidate, seen)
    plain = trials.run(OTHERS[1])
    assert why_unlike_batch(plain, OTHERS[1].layout, anchor) is not None
    wrong = trials.run(OTHERS[1], change=stray)
    assert why_unlike_batch(wrong, OTHERS[1].layout, anchor) is not None


def test_out_of_memory_on_one_rank_ends_all_and_says_what_was_short(trials):
    before = pids_of(trials.run(RING))

    def starve(job):
        return replace(job, capacity_bytes=1_000_000) if job.rank == BLAMED else job

    start = time.monotonic()
    failure = trials.run(RING, change=starve, steps=ENDLESS)
    assert time.monotonic() - start < 10
    assert failure.kind is OutcomeKind.OUT_OF_MEMORY
    assert failure.rank == BLAMED
    assert failure.shortage.kind is OomKind.TENSOR
    assert 0 <= failure.shortage.free_bytes < failure.shortage.asked_bytes < 1_000_000
    assert failure.shortage.short_bytes == failure.shortage.asked_bytes - (
        failure.shortage.free_bytes
    )
    assert_replaced(trials, before)


def test_a_killed_rank_is_named_at_once_and_the_next_trial_works(trials):
    before = pids_of(trials.run(RING))
    killed: list[float] = []

    def kill():
        killed.append(time.monotonic())
        os.kill(before[BLAMED], signal.SIGKILL)

    Timer(1.5, kill).start()
    failure = trials.run(RING, steps=ENDLESS)
    assert time.monotonic() - killed[0] < 10
    assert failure.kind is OutcomeKind.CRASHED
    assert failure.rank == BLAMED
    assert f"rank {BLAMED}" in failure.message
    assert_replaced(trials, before)


def test_a_silent_rank_is_named_within_the_deadline_and_its_process_ends(trials):
    before = pids_of(trials.run(RING))
    Timer(1.5, os.kill, (before[BLAMED], signal.SIGSTOP)).start()
    start = time.monotonic()
    failure = trials.run(RING, steps=ENDLESS, trial_s=8)
    elapsed = time.monotonic() - start
    assert failure.kind is OutcomeKind.TIMEOUT
    assert failure.rank == BLAMED, failure.message
    assert f"rank {BLAMED}" in failure.message
    assert 5 < elapsed < 8 + 10  # the deadline, and the end of four processes on busy cores
    assert_replaced(trials, before)


def test_a_trial_longer_than_its_deadline_ends_at_it(trials):
    before = pids_of(trials.run(RING))
    start = time.monotonic()
    failure = trials.run(RING, steps=ENDLESS, trial_s=2)
    assert 2 <= time.monotonic() - start < 6
    assert failure.kind is OutcomeKind.TIMEOUT
    assert "2 s" in failure.message
    wait_for(lambda: not any(map(is_there, before)), within_s=1, what="the end of the old actors")
    assert_replaced(trials, before)
