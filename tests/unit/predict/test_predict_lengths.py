"""Document lengths and what other trainers ask of a sequence."""

from dataclasses import replace
from itertools import pairwise

import pytest
from predict_cases import candidate, case, documents

from cptune.domain.candidate import Recompute, ShardingKind, Strategy
from cptune.domain.workload import AttentionMask, Precision, Workload
from cptune.errors import SpecError
from cptune.predict.case import Case
from cptune.predict.exports import megatron_divisor, megatron_json, nearest_multiples
from cptune.predict.lengths import pairs_per_sequence, straggler_factor
from cptune.predict.prediction import Predictor
from cptune.predict.step_time import predict_step

MASKED = AttentionMask.DOCUMENT


def work(seq_len=8192, batch=8, **more):
    return Workload(seq_len=seq_len, global_batch_seqs=batch, **more)


def load(lengths, *, world=64, **more):
    return documents(work(mask=MASKED, lengths=lengths, **more), world=world)


def test_pairs_are_the_square_its_half_or_what_documents_leave():
    assert pairs_per_sequence(work(mask=AttentionMask.FULL)) == 8192**2
    assert pairs_per_sequence(work()) == 8192**2 / 2
    even = pairs_per_sequence(work(mask=MASKED), load("fixed(tokens=1024)"))
    cut = 7 * 1024**2 / 2 + 1024**2 / 3  # seven whole documents and a cut one
    assert even == pytest.approx(cut, rel=2e-3)
    assert pairs_per_sequence(work(), load("lognormal(mean=1024, sigma=1)")) > 1.5 * even


def test_documents_are_cut_at_the_sequence():
    long = load("fixed(tokens=1000000)")
    assert pairs_per_sequence(work(), long) == pytest.approx(8192**2 / 2, rel=0.02)


def test_more_ranks_wait_longer_and_more_samples_even_out():
    spread = load("lognormal(mean=2000, sigma=1)", batch=64)
    factors = [straggler_factor(spread, groups=groups) for groups in (1, 2, 4, 16, 64)]
    assert factors[0] == 1
    assert all(few < many for few, many in pairwise(factors))
    larger = load("lognormal(mean=2000, sigma=1)", batch=6400)
    assert straggler_factor(larger, groups=64) < factors[-1]
    assert straggler_factor(None, groups=64) == 1


def test_groups_that_the_batch_does_not_go_into_are_no_candidate():
    with pytest.raises(ValueError, match="3 data-parallel groups, wanted one of 1, 2, 4, 8"):
        straggler_factor(load("prolong"), groups=3)


def test_a_distribution_that_is_not_known_is_refused():
    with pytest.raises(SpecError, match=r"workload\.lengths \| lengths is 'zipf', which") as caught:
        load("zipf")
    assert "lognormal" in caught.value.hint


def test_lengths_and_what_they_come_to_go_together():
    given = case(mask=MASKED, lengths="prolong")
    with pytest.raises(ValueError, match="lack documents"):
        Case(model=given.model, workload=given.workload, machine=given.machine)
    with pytest.raises(ValueError, match="take no documents"):
        Case(
            model=given.model,
            workload=work(),
            machine=given.machine,
            documents=given.documents,
        )


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
def test_a_step_waits_for_the_slowest_group_with_its_attention_alone(recompute):
    given = case(seq_len=32768, batch=64, world=64, mask=MASKED, lengths="prolong")
    one = candidate(dp=64, recompute=recompute)
    seen = predict_step(given, one)
    assert seen.straggler_factor == given.documents.straggler_factor(64) > 2
    assert seen.straggler_s == pytest.approx(
        seen.attention_s * (1 - 1 / seen.straggler_factor), rel=1e-6
    )
    assert 0 < seen.attention_s < seen.compute_s
    even = predict_step(given, candidate(cp=64, recompute=recompute))
    assert (even.straggler_factor, even.straggler_s) == (1, 0)


def test_without_its_straggler_a_step_is_that_of_even_groups():
    given = case(seq_len=32768, batch=64, world=64, mask=MASKED, lengths="prolong")
    one = candidate(dp=64)
    flat = replace(given.documents, slowest_over_mean={64: 1.0})
    even = predict_step(replace(given, documents=flat), one)
    seen = predict_step(given, one)
    assert seen.compute_s - seen.straggler_s == pytest.approx(even.compute_s, rel=1e-9)
    assert seen.attention_share == pytest.approx(even.attention_share, rel=0.01)


def test_the_prediction_says_what_the_straggler_costs():
    given = case(seq_len=32768, batch=64, world=64, mask=MASKED, lengths="prolong")
    said = Predictor(given).predict(candidate(dp=64)).to_json()
    assert said["straggler"]["factor"] > 2
    assert 0 < said["straggler"]["seconds"] < said["time"]["compute_s"]
    plain = Predictor(case(batch=64, world=64)).predict(candidate(dp=64)).to_json()
    assert plain["straggler"] == {"factor": 1.0, "seconds": 0.0}


@pytest.mark.parametrize(
    ("tp", "cp", "precision", "divisor"),
    [
        (1, 4, Precision.BF16, 8),
        (4, 4, Precision.BF16, 16),
        (3, 4, Precision.BF16, 24),
        (1, 2, Precision.FP8, 16),
        (4, 8, Precision.FP8, 32),
    ],
)
def test_megatron_wants_cp_times_lcm_of_two_and_tp(tp, cp, precision, divisor):
    assert megatron_divisor(candidate(tp=tp, cp=cp), work(precision=precision)) == divisor


def test_the_nearest_lengths_are_the_multiples_around():
    assert nearest_multiples(100, 16) == [96, 112]
    assert nearest_multiples(96, 16) == [96, 96]
    assert nearest_multiples(3, 16) == [16, 16]


def test_megatron_says_everything_it_refuses():
    one = candidate(cp=3, pp=2, vpp=2, dp=1, sharding=ShardingKind.BALANCED)
    said = megatron_json(one, work(seq_len=100, batch=3))
    assert said["legal"] is False
    assert len(said["reasons"]) == 3
    assert megatron_json(candidate(cp=4), work())["legal"] is True
    traded = candidate(cp=4, strategy=Strategy.ULYSSES, sharding=ShardingKind.CONTIGUOUS)
    assert megatron_json(traded, work())["legal"] is True
