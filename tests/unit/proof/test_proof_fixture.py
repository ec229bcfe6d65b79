"""The small case of a candidate is legal, is shaped as its model, and is the same every time."""

import pytest
from fakes import candidate, model, workload

from cptune.domain.candidate import DataParallelKind, ShardingKind, Strategy
from cptune.domain.rules import Setting, why_infeasible
from cptune.domain.workload import AttentionMask
from cptune.proof.fixture import proof_case

LLAMA = model("llama3-8b")
CANDIDATES = [
    candidate(dp=4),
    candidate(cp=4),
    candidate(cp=3, dp=2),
    candidate(tp=8, cp=2),
    candidate(tp=16),  # two ranks share a kv head
    candidate(cp=8, ulysses=8, strategy=Strategy.ULYSSES, stages=0),
    candidate(cp=8, ulysses=4, strategy=Strategy.HYBRID, stages=1),
    candidate(cp=32),
    candidate(pp=4, cp=2),
    candidate(pp=2, vpp=2, dp=2, micro_batch=8),
    candidate(cp=2, dp=4, data_parallel=DataParallelKind.FSDP),
]


def case_of(one, **changes):
    return proof_case(one, model=LLAMA, workload=workload(**changes))


@pytest.mark.parametrize("one", CANDIDATES, ids=lambda one: one.key)
def test_the_small_model_is_legal_for_the_candidate(one):
    case = case_of(one)
    assert [fixture.name for fixture in case.fixtures] == ["causal", "document"]
    for fixture in case.fixtures:
        setting = Setting(
            model=fixture.shape, workload=fixture.workload, world_size=one.layout.world_size
        )
        assert why_infeasible(case.candidate, setting) == ()
        assert sum(fixture.docs) in (0, fixture.seq_len)


@pytest.mark.parametrize("tp", [1, 2, 8, 16])
def test_heads_are_grouped_and_shared_as_the_models_are(tp):
    shape = case_of(candidate(tp=tp)).fixtures[0].shape
    assert shape.heads // shape.kv_heads == LLAMA.heads // LLAMA.kv_heads
    assert (shape.kv_heads % tp == 0) == (LLAMA.kv_heads % tp == 0)


def test_no_two_shards_are_alike_and_a_sample_has_no_loss_at_all():
    (fixture, _) = case_of(candidate(cp=4)).fixtures
    assert fixture.seq_len % 8
    assert fixture.ignored[0] == (0, 0, fixture.seq_len)


def test_the_mask_of_the_workload_comes_first_and_no_mask_twice():
    def names(mask):
        return [one.name for one in case_of(candidate(cp=2), mask=mask).fixtures]

    assert names(AttentionMask.FULL) == ["full", "causal", "document"]
    assert names(AttentionMask.DOCUMENT) == ["document", "causal"]


def test_a_mask_that_trials_of_the_candidate_cannot_have_is_left_out():
    balanced = candidate(cp=2, pp=2, sharding=ShardingKind.BALANCED)
    assert [one.name for one in case_of(balanced).fixtures] == ["causal"]


def test_the_digest_is_of_everything_that_is_computed_with():
    known = case_of(candidate(cp=4)).digest
    assert known == case_of(candidate(cp=4)).digest
    assert known == case_of(candidate(cp=4), seq_len=4096).digest  # a fixture is short
    assert known != case_of(candidate(cp=4, sharding=ShardingKind.CONTIGUOUS)).digest
    assert known != case_of(candidate(cp=4), precision="bf16").digest
    assert known != proof_case(candidate(cp=4), model=model(), workload=workload()).digest
