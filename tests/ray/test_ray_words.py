"""Ranks whose process is ended by a library: why is in what it wrote, and in nothing else."""

from functools import partial
from types import SimpleNamespace

import pytest
from sweep_process import tiny_spec

from cptune.cluster.ray_launcher import RayLauncher
from cptune.domain.candidate import Candidate
from cptune.domain.layout import ParallelLayout
from cptune.domain.outcome import OutcomeKind

WATCHDOG = (
    "[rank0]:[E ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=4000) ran for 4012 milliseconds before "
    "timing out.\nterminate called after throwing an instance of 'c10::DistBackendError'\n"
)


class EndedGang:
    """A gang whose ranks write some words and abort, as torch's watchdog has them do."""

    def __init__(self, gang, words):
        self._gang, self._words = gang, words
        self.ready, self.replace = gang.ready, gang.replace
        self.next_prefix, self.answer = gang.next_prefix, gang.answer

    def run(self, device, job):
        code = f"import os; os.write(2, {self._words.encode()!r}); os.abort()"
        return self._gang.call(device, SimpleNamespace(rank=job.rank, run=partial(exec, code)))


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (WATCHDOG, OutcomeKind.TIMEOUT, "OpType=ALLREDUCE"),
        ("", OutcomeKind.CRASHED, "it wrote: "),
    ],
    ids=["watchdog", "abort"],
)
def test_a_rank_that_aborts_is_told_by_its_last_words(trials, words, kind, said):
    spec = tiny_spec(cluster={"world_size": 4}, workload={"global_batch_seqs": 4})
    launcher = RayLauncher(
        EndedGang(trials.gang, words), devices=trials.devices, spec=spec, capacity_bytes=1 << 30
    )
    candidate = Candidate(layout=ParallelLayout(cp=4), stages=3)

    failure = launcher.launch(candidate, launcher.place(candidate))

    assert failure.kind is kind, failure
    assert said in failure.message
