"""The proof on real ranks: it accepts every kind of candidate, and refuses every planted fault."""

import pytest
import torch
import torch.distributed as dist
from fakes import candidate, model, workload

from cptune.domain.candidate import DataParallelKind, LossKind, Recompute, ShardingKind, Strategy
from cptune.domain.proof import join_checks
from cptune.domain.workload import AttentionMask, Precision
from cptune.proof.fixture import proof_case
from cptune.proof.model import _replicas
from cptune.proof.mutants import MUTANTS, SELF_TEST_RANKS, find_mutant
from cptune.proof.prove import ProofJob, prove_rank, self_test_jobs

LLAMA = model("llama3-8b")
FSDP, ZERO1 = DataParallelKind.FSDP, DataParallelKind.ZERO1
CANDIDATES = [
    candidate(cp=3),
    candidate(cp=4, strategy=Strategy.HYBRID, ulysses=2, stages=1),
    candidate(tp=2, cp=2, data_parallel=FSDP, recompute=Recompute.FULL, loss=LossKind.CHUNKED),
    candidate(cp=2, pp=2, data_parallel=ZERO1, sharding=ShardingKind.BALANCED),
    candidate(dp=2, micro_batch=4),
]


def checks_of(ranks, job):
    world = job.case.candidate.layout.world_size
    return join_checks(ranks.run(prove_rank, world=world, job=job))


@pytest.mark.parametrize("one", CANDIDATES, ids=lambda one: one.key)
def test_a_right_candidate_passes_every_check(ranks, one):
    batch = workload(global_batch_seqs=8, mask=AttentionMask.FULL, precision=Precision.BF16)
    case = proof_case(one, model=LLAMA, workload=batch)
    checks = checks_of(ranks, ProofJob(case=case))
    assert [check for check in checks if not check.passed] == []
    masks = {check.name.partition(":")[0] for check in checks}
    assert masks == {fixture.name for fixture in case.fixtures} >= {"full", "causal"}
    probes = {check.name.partition(": ")[2] for check in checks}
    assert ("seams" in probes) == (one.layout.cp > 1)


#: What must see a fault beside the comparisons with the whole model.
PROBES = {
    "nothing-fetched": {"causal: seams", "causal: bytes moved"},
    "causal-dropped": {"causal: the future leaks"},
    "wrong-scale": {"causal: scale"},
    "documents-padded": {"document: documents leak"},
    "local-positions": {"causal: positions"},
    "seam-late": {"causal: positions", "causal: gradients"},
    "padding-attended": {"causal: outputs"},
    "stale-in-backward": {"causal: key gradients", "causal: query gradients"},
    "norm-gradients-not-summed": {"causal: replicas"},
    "running-sum-in-bf16": {"causal: outputs"},
}


@pytest.mark.parametrize("job", self_test_jobs(), ids=lambda job: job.mutant)
def test_a_planted_fault_is_refused_by_the_probe_that_it_is_for(ranks, job):
    assert find_mutant(job.mutant).candidate.layout.world_size == SELF_TEST_RANKS
    failed = [check for check in checks_of(ranks, job) if not check.passed]
    assert max(check.max_error for check in failed) > 1e-6, "seen by more than a hair"
    assert {check.name for check in failed} >= PROBES.get(job.mutant, set())


def test_every_fault_is_told_and_named_once():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 20
    assert all(mutant.fault.endswith(".") for mutant in MUTANTS)
    with pytest.raises(ValueError, match=r"mutant is 'x'; wanted one of nothing-fetched, "):
        find_mutant("x")


def seen_of(weights):
    wanted = dict.fromkeys(("a", "b"), torch.zeros(1))
    own = {name: torch.full((1,), value) for name, value in weights[dist.get_rank()].items()}
    return list(_replicas("causal", own, wanted=wanted))


@pytest.mark.parametrize(
    ("weights", "lost", "torn"),
    [
        ([{"a": 1.0}, {"b": 2.0}], "", ""),
        ([{"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}], "", ""),
        ([{"a": 1.0}, {"a": 1.0}], "b", ""),
        ([{"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 3.0}], "", "b"),
    ],
)
def test_a_parameter_that_no_rank_has_or_two_have_otherwise_is_named(ranks, weights, lost, torn):
    checks = join_checks(ranks.run(seen_of, world=2, weights=weights))
    assert [(one.name, one.where) for one in checks] == [
        ("causal: every parameter", lost),
        ("causal: replicas", torn),
    ]
    assert [one.passed for one in checks] == [not lost, not torn]
