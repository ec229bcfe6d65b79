"""Document lengths and what other trainers ask of a sequence."""

import pytest
from predict_cases import candidate

from cptune.domain.candidate import ShardingKind
from cptune.domain.workload import AttentionMask, Precision, Workload
from cptune.errors import SpecError
from cptune.predict.exports import megatron_divisor, megatron_json, nearest_multiples
from cptune.predict.lengths import pairs_per_sequence, straggler_factor


def work(seq_len=8192, batch=8, **more):
    return Workload(seq_len=seq_len, global_batch_seqs=batch, **more)


def documents(lengths, **more):
    return work(mask=AttentionMask.DOCUMENT, lengths=lengths, **more)


def test_pairs_are_the_square_its_half_or_the_documents_squares():
    assert pairs_per_sequence(work(mask=AttentionMask.FULL)) == 8192**2
    assert pairs_per_sequence(work()) == 8192**2 / 2
    even = documents("lognormal(mean=1024, sigma=0)")
    assert pairs_per_sequence(even) == pytest.approx(8 * 1024**2 / 2)
    spread = documents("lognormal(mean=1024, sigma=1)")
    assert pairs_per_sequence(spread) > 1.5 * pairs_per_sequence(even)


def test_documents_are_capped_at_the_sequence():
    one = documents("lognormal(mean=100000, sigma=0)")
    assert pairs_per_sequence(one) == 8192**2 / 2


def test_more_ranks_wait_longer_and_more_samples_even_out():
    spread = documents("lognormal(mean=2000, sigma=1)")
    few, many = (straggler_factor(spread, groups=n, samples=1) for n in (4, 64))
    assert 1 < few < many
    assert straggler_factor(spread, groups=64, samples=100) < many
    assert straggler_factor(spread, groups=1, samples=1) == 1
    assert straggler_factor(work(), groups=64, samples=1) == 1


def test_a_distribution_that_is_not_known_is_refused():
    with pytest.raises(SpecError, match="'zipf' cannot be planned") as caught:
        pairs_per_sequence(documents("zipf"))
    assert "lognormal" in caught.value.hint


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
