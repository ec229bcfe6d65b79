"""Guards that refuse a measurement which is not what was asked for."""

import math

import pytest
from fakes import candidate, failed, measured, rank_report, trial_of

from cptune.domain.candidate import Recompute
from cptune.domain.guards import (
    why_not_applied,
    why_other_recompute,
    why_too_fast,
    why_unlike,
    why_unlike_batch,
)
from cptune.domain.layout import ParallelLayout
from cptune.domain.memory import Kept
from cptune.domain.outcome import OutcomeKind, measurement_from

CP2 = ParallelLayout(cp=2)
ANCHOR = trial_of(candidate(dp=4), measured(first_loss=5.0, first_grad_norm=2.0), number=7)


def join(*reports):
    return measurement_from(reports, tokens_per_step=1)


def test_bytes_as_planned_are_applied():
    seen = measured(ranks=2, planned_sent_bytes=512, sent_bytes=512)

    assert why_not_applied(seen, CP2) is None


def test_cp_that_moved_nothing_is_not_applied():
    seen = join(
        rank_report(0, planned_sent_bytes=512, sent_bytes=512),
        rank_report(1, planned_sent_bytes=512, sent_bytes=0),
    )

    failure = why_not_applied(seen, CP2)

    assert failure is not None
    assert (failure.kind, failure.rank, failure.node) == (OutcomeKind.NOT_APPLIED, 1, "node0")
    assert failure.message == "rank 1 sent 0 bytes per step over cp 2, its plan 512"


@pytest.mark.parametrize(
    ("loss", "norm"), [(5.0, 2.0), (5.0 * (1 + 0.9e-4), 2.0), (5.0, 2.0 * (1 - 0.9e-3))]
)
def test_a_first_step_like_the_anchors_passes(loss, norm):
    assert why_unlike(measured(first_loss=loss, first_grad_norm=norm), ANCHOR) is None


@pytest.mark.parametrize(
    ("loss", "norm", "text"),
    [
        (5.0 * (1 + 1.1e-4), 2.0, "first loss is 5.00055, trial 7 (tp1 cp1 dp4) has 5"),
        (5.0, 2.0 * (1 - 1.1e-3), "first gradient norm is 1.9978, trial 7 (tp1 cp1 dp4) has 2"),
        (math.nan, 2.0, "first loss is nan"),
        (5.0, math.nan, "first gradient norm nan"),
        (math.inf, 2.0, "first loss is inf"),
    ],
)
def test_a_first_step_unlike_the_anchors_is_a_wrong_result(loss, norm, text):
    failure = why_unlike(measured(first_loss=loss, first_grad_norm=norm), ANCHOR)

    assert failure is not None
    assert failure.kind is OutcomeKind.WRONG_RESULT
    assert text in failure.message


def test_without_an_anchor_any_number_passes_but_no_nan():
    unmeasured = trial_of(candidate(), failed())

    for anchor in (None, unmeasured):
        assert why_unlike(measured(first_loss=123.0), anchor) is None
        assert why_unlike(measured(first_loss=math.nan), anchor) is not None


def test_ranks_of_one_group_train_on_the_same_samples():
    layout = ParallelLayout(tp=2, cp=2, dp=2)
    reports = [rank_report(rank, sample_hash=f"{rank // 4}") for rank in range(8)]

    assert why_unlike_batch(join(*reports), layout) is None


@pytest.mark.parametrize(("stray", "axis", "group"), [(1, "tp", "[0, 1]"), (6, "tp", "[6, 7]")])
def test_a_rank_with_other_samples_is_a_wrong_result(stray, axis, group):
    layout = ParallelLayout(tp=2, cp=2, dp=2)
    reports = [
        rank_report(rank, sample_hash="ff" if rank == stray else f"{rank // 4}")
        for rank in range(8)
    ]

    failure = why_unlike_batch(join(*reports), layout)

    assert failure is not None
    assert failure.kind is OutcomeKind.WRONG_RESULT
    assert failure.message == f"ranks {group} of one {axis} group trained on different samples"


def test_context_ranks_with_other_samples_are_found():
    seen = join(rank_report(0, sample_hash="a"), rank_report(1, sample_hash="b"))

    failure = why_unlike_batch(seen, CP2)

    assert failure is not None
    assert failure.message == "ranks [0, 1] of one cp group trained on different samples"


def test_pipeline_ranks_with_other_samples_are_found():
    seen = join(rank_report(0, sample_hash="a"), rank_report(1, sample_hash="b"))

    failure = why_unlike_batch(seen, ParallelLayout(pp=2))

    assert failure is not None
    assert failure.message == "ranks [0, 1] of one pp group trained on different samples"


def test_a_batch_shared_out_otherwise_is_the_same_batch():
    anchor = trial_of(candidate(), join(rank_report(0, sample_hash=f"{(9 + 2**64 - 5):x}")))
    seen = join(rank_report(0, sample_hash="9"), rank_report(1, sample_hash=f"{2**64 - 5:x}"))

    assert why_unlike_batch(seen, ParallelLayout(dp=2), anchor) is None


def test_another_global_batch_is_a_wrong_result_that_names_it():
    anchor = trial_of(candidate(), join(rank_report(0, sample_hash="8")), number=7)
    seen = join(rank_report(0, sample_hash="3"), rank_report(1, sample_hash="4"))

    failure = why_unlike_batch(seen, ParallelLayout(dp=2), anchor)

    assert failure is not None
    assert failure.kind is OutcomeKind.WRONG_RESULT
    assert failure.message == (
        "the global batch (samples, documents and text) hashes to 0000000000000007, that of "
        "trial 7 (tp1 cp1 dp1) to 0000000000000008; wanted the same batch for every candidate"
    )


def kept(*, attention=100, peak=1000):
    return Kept(
        attention_bytes=attention,
        planned_attention_bytes=100,
        peak_bytes=peak,
        planned_peak_bytes=1000,
    )


@pytest.mark.parametrize("seen", [kept(), kept(attention=0), kept(attention=150, peak=1500), None])
def test_a_shard_that_keeps_its_part_is_applied(seen):
    assert why_not_applied(measured(ranks=2, kept=seen), CP2) is None


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (
            kept(attention=200),
            "rank 0 kept 200 bytes for backward in one attention call, 2.00 times what a shard of "
            "cp 2 keeps (100); wanted at most 1.5 times",
        ),
        (kept(peak=2000), "rank 0 kept 2000 bytes for backward at its peak, 2.00 times"),
    ],
)
def test_what_did_not_shrink_with_cp_is_not_applied(seen, text):
    failure = why_not_applied(measured(ranks=2, kept=seen), CP2)

    assert failure is not None
    assert failure.kind is OutcomeKind.NOT_APPLIED
    assert failure.message.startswith(text)


def test_the_whole_context_on_one_rank_is_no_miss():
    whole = measured(ranks=2, kept=kept(attention=200, peak=2000))

    assert why_not_applied(whole, ParallelLayout(dp=2)) is None


def test_a_rate_above_the_devices_is_a_wrong_result():
    failure = why_too_fast(measured(step_s=0.1), flop=1.01e9, peak_flop_per_s=1e10)

    assert failure is not None
    assert failure.kind is OutcomeKind.WRONG_RESULT
    assert "1.01e+10 FLOP/s, above the 1e+10 FLOP/s" in failure.message


def test_a_rate_at_the_limit_or_without_a_known_limit_passes():
    seen = measured(step_s=0.1)

    assert why_too_fast(seen, flop=1e9, peak_flop_per_s=1e10) is None
    assert why_too_fast(seen, flop=1e30, peak_flop_per_s=None) is None


def keeping(attention_bytes):
    kept = Kept(
        attention_bytes=attention_bytes,
        planned_attention_bytes=1000,
        peak_bytes=5000,
        planned_peak_bytes=5000,
    )
    return join(rank_report(0), rank_report(1, kept=kept))


@pytest.mark.parametrize(
    ("asked", "kept_bytes"),
    [(Recompute.NONE, 1000), (Recompute.SELECTIVE, 1000), (Recompute.FULL, 0)],
)
def test_attention_that_is_kept_or_computed_again_as_asked_passes(asked, kept_bytes):
    assert why_other_recompute(keeping(kept_bytes), candidate(dp=2, recompute=asked)) is None


@pytest.mark.parametrize(
    ("asked", "kept_bytes", "said"),
    [
        (Recompute.NONE, 0, "recompute is 'none', but rank 1 computed attention again in backward"),
        (Recompute.SELECTIVE, 0, "recompute is 'selective', but rank 1 computed attention again"),
        (Recompute.FULL, 1000, "recompute is 'full', but rank 1 kept its attention: 1000 bytes"),
    ],
)
def test_recomputation_that_nobody_asked_for_is_not_applied(asked, kept_bytes, said):
    failure = why_other_recompute(keeping(kept_bytes), candidate(dp=2, recompute=asked))

    assert failure is not None
    assert (failure.kind, failure.rank) == (OutcomeKind.NOT_APPLIED, 1)
    assert failure.message.startswith(said)
