"""Memory that ran out is typed, with what was asked, free and short; so is a late collective."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import ray.exceptions
import torch
import torch.distributed as dist

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


def raised(run):
    """The failure that what `run` raises stands for."""
    with pytest.raises(RuntimeError) as caught:
        run()
    return failure_from(caught.value, rank=1, node="n")


def test_gloo_that_waited_too_long_is_a_timeout():
    """Two ranks of a real group, of which one does not come."""
    store, late = dist.HashStore(), timedelta(milliseconds=300)
    with ThreadPoolExecutor(2) as pool:
        joined = pool.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, late), range(2))
        first, second = list(joined)

    found = raised(lambda: first.allreduce([torch.zeros(4)]).wait())

    assert found.kind is OutcomeKind.TIMEOUT, found
    assert found.message.startswith("a collective timed out: ")
    assert (found.rank, found.node) == (1, "n")
    del second


def test_a_rendezvous_that_nobody_came_to_is_a_timeout():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set_timeout(timedelta(milliseconds=100))

    assert raised(lambda: store.get("nobody")).kind is OutcomeKind.TIMEOUT


WATCHDOG = (
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, "
    "NumelIn=1, NumelOut=1, Timeout(ms)=4000) ran for 4012 milliseconds before timing out."
)
GONE = (
    "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:94, remote process exited or "
    "there was a network error, NCCL version 2.27.5\nncclRemoteError: A call failed possibly due "
    "to a network error or a remote process exiting prematurely."
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (WATCHDOG, OutcomeKind.TIMEOUT),
        (GONE, OutcomeKind.COMMUNICATION),
        (f"WorkNCCL(OpType=SEND, Timeout(ms)=4000) failed: {GONE}", OutcomeKind.COMMUNICATION),
        ("WorkNCCL(OpType=SEND, Timeout(ms)=4000) failed: invalid usage", OutcomeKind.CRASHED),
        ("[Rank 0] is retrieving ncclUniqueId: wait timeout after 4000ms", OutcomeKind.TIMEOUT),
    ],
)
def test_an_error_of_nccl_is_told_by_what_it_says_and_not_by_its_parameters(text, kind):
    assert failure_from(dist.DistBackendError(text), rank=0, node=None).kind is kind


def test_a_late_collective_is_found_below_what_was_raised_from_it():
    try:
        try:
            raise dist.DistBackendError(WATCHDOG)
        except RuntimeError as exc:
            raise RuntimeError("an operator failed") from exc
    except RuntimeError as exc:
        found = failure_from(exc, rank=0, node=None)

    assert found.kind is OutcomeKind.TIMEOUT
    assert "OpType=ALLREDUCE" in found.message


def ended(words):
    """The failure of a process that ended after it wrote `words`."""
    exc = ray.exceptions.ActorDiedError()
    return failure_from(exc, rank=2, node="n", words=words)


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (f"[rank3]:[E ProcessGroupNCCL.cpp:685] {WATCHDOG}\n", OutcomeKind.TIMEOUT, "4012"),
        (f"terminate called\n  what():  {GONE}\n", OutcomeKind.COMMUNICATION, "remote process"),
        ("terminate called\n  what():  bad_alloc\n", OutcomeKind.CRASHED, "bad_alloc"),
        ("Fatal Python error: Aborted\n", OutcomeKind.CRASHED, "Fatal Python error: Aborted"),
        ("[W] timeout=60 is the default\n", OutcomeKind.CRASHED, "the process of rank 2 ended"),
        ("", OutcomeKind.CRASHED, "the process of rank 2 ended"),
    ],
)
def test_a_process_that_ended_is_told_by_its_last_words(words, kind, said):
    found = ended(words)

    assert found.kind is kind
    assert said in found.message
    assert "timeout=60" not in found.message
