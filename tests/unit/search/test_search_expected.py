"""Steps measured over a few batches are compared as many batches would have them."""

from dataclasses import replace

import pytest
from fakes import candidate, measured, rank_report, space_of, trial_of

from cptune.domain.documents import DocumentLoad
from cptune.domain.outcome import measurement_from
from cptune.domain.study import Objective
from cptune.search.choose import Limits, Ruling, choose
from cptune.search.expected import ExpectSteps, as_measured, group_pairs

CP1, CP2, CP4 = candidate(dp=4), candidate(cp=2, dp=2), candidate(cp=4)
DOCUMENTS = DocumentLoad(pairs_per_sequence=100.0, slowest_over_mean={1: 1.0, 2: 1.5, 4: 2.0})
STEPS = ExpectSteps(documents=DOCUMENTS, attention_share=lambda one: 0.5)
PLAIN = Limits(
    capacity_bytes=1000,
    memory_margin=0.1,
    objective=Objective(exposed_comm_share=0.2, throughput_slack=0.1),
)
MANY = replace(PLAIN, expect=STEPS)


def seen(*pairs, step_s=0.1):
    """A measurement whose ranks attended so many pairs."""
    steps = (step_s, step_s)
    reports = (
        rank_report(rank, attended_pairs=count, step_s=steps) for rank, count in enumerate(pairs)
    )
    return measurement_from(tuple(reports), tokens_per_step=256)


def judge(*tried, limits):
    trials = [trial_of(one, outcome, number=n) for n, (one, outcome) in enumerate(tried)]
    return choose(trials, space_of(CP1, CP2, CP4), limits)


def test_the_step_grows_by_attentions_share_of_what_was_not_seen():
    lucky = STEPS(trial_of(CP1, seen(10, 10, 10, 10)))
    assert lucky.straggler.measured == 1.0
    assert lucky.step_s == pytest.approx(0.1 * 1.5)  # (1 + 0.5 * (2 - 1)) / 1
    assert lucky.tokens_per_s == pytest.approx(2560 / 1.5)
    assert lucky.note == (
        "1,707 tokens/s expected over many batches, 2,560 measured: slowest over mean attention "
        "2.00 expected, 1.00 measured, attention 50% of the step"
    )


def test_batches_as_uneven_as_expected_change_nothing_and_unlucky_ones_are_forgiven():
    usual = STEPS(trial_of(CP1, seen(20, 10, 5, 5)))
    assert usual.straggler.measured == 2.0
    assert usual.step_s == pytest.approx(0.1)
    unlucky = STEPS(trial_of(CP1, seen(30, 4, 3, 3)))
    assert unlucky.step_s == pytest.approx(0.1 * 1.5 / 2.0)


def test_a_group_is_as_slow_as_all_its_ranks_and_one_group_waits_for_nobody():
    assert group_pairs(seen(1, 2, 10, 20), CP2) == [3, 30]
    alone = STEPS(trial_of(CP4, seen(1, 2, 10, 20)))
    assert (alone.straggler, alone.step_s, alone.note) == (None, 0.1, "")
    assert alone.to_json() == {}


def test_a_group_without_pairs_is_not_corrected_and_said_so():
    unknown = STEPS(trial_of(CP1, seen(0, 10, 10, 10)))
    assert unknown.tokens_per_s == 2560
    assert unknown.note == "as measured: some groups report no attended pairs"


def test_tokens_even_out_what_pairs_do_not():
    half = replace(STEPS, documents=replace(DOCUMENTS, pairs_share=0.5))
    assert half(trial_of(CP1, seen(20, 10, 5, 5))).straggler.measured == 1.5


def test_luck_with_short_documents_does_not_win():
    tried = ((CP1, seen(10, 10, 10, 10)), (CP2, seen(10, 10, 10, 10, step_s=0.105)))

    plain, many = (judge(*tried, limits=limits) for limits in (PLAIN, MANY))

    assert plain.trial.candidate == CP1
    assert many.trial.candidate == CP2
    slower = many.verdicts[0]
    assert slower.ruling is Ruling.SLOWER
    assert slower.reason.startswith("1,707 tokens/s is 12.5% below the best 1,950")
    [entry] = many.certificate
    assert "2.00 expected, 1.00 measured" in entry.reason
    assert "1.50 expected, 1.00 measured" in many.verdicts[1].reason


def test_without_documents_every_step_counts_as_measured():
    one = trial_of(CP1, measured())
    assert as_measured(one).tokens_per_s == one.measurement.tokens_per_s
    assert as_measured(one).note == ""


def test_the_recipe_keeps_both_figures():
    kept = STEPS(trial_of(CP1, seen(10, 10, 10, 10))).to_json()
    assert kept["expected_slowest_over_mean"] == 2.0
    assert kept["measured_slowest_over_mean"] == 1.0
    assert kept["step_s"] == pytest.approx(0.15)
