"""Who is measured again, and what several rounds come to together."""

from dataclasses import replace

import pytest
from fakes import candidate, failed, out_of_memory, rank_report, rank_trace, trial_of

from cptune.domain.outcome import OutcomeKind, measurement_from
from cptune.domain.timeline import ABLATION, Exposed
from cptune.search.finalists import choose_finalists, pool

CP1, CP1_TP2, CP2, CP4 = (
    candidate(dp=4),
    candidate(tp=2, dp=2),
    candidate(cp=2, dp=2),
    candidate(cp=4),
)
KEYS = {CP1.key, CP2.key}


def timed(tried, *steps_s, turn=0, attempt=0, number=0, **changes):
    steps = tuple(steps_s)
    waits = dict.fromkeys(("tp_exposed_s", "dp_exposed_s", "pp_exposed_s"), (0.0,) * len(steps))
    reports = tuple(
        rank_report(
            rank, step_s=steps, cp_exposed_s=tuple(one / 10 for one in steps), **waits, **changes
        )
        for rank in range(4)
    )
    seen = measurement_from(reports, tokens_per_step=1000)
    return trial_of(tried, seen, turn=turn, attempt=attempt, number=number)


def again(tried, *steps_s, turn, **changes):
    return timed(tried, *steps_s, turn=turn, attempt=turn, **changes)


def names(trials):
    return [trial.candidate for trial in trials]


def test_those_whose_intervals_reach_into_the_slack_of_the_fastest_are_finalists():
    passed = [timed(CP1, 0.119, 0.14), timed(CP2, 0.1, 0.11), timed(CP4, 0.125, 0.13)]

    assert names(choose_finalists(passed, slack=0.1)) == [CP1, CP2]  # 0.11 / 0.9 = 0.122
    assert names(choose_finalists(passed, slack=0.2)) == [CP1, CP2, CP4]
    assert choose_finalists(passed, slack=0.0) == ()


def test_at_most_three_go_on_and_the_fastest_is_one_of_them():
    passed = [timed(one, 0.11 - at / 1000) for at, one in enumerate((CP1, CP1_TP2, CP2, CP4))]

    assert names(choose_finalists(passed, slack=0.3)) == [CP1, CP1_TP2, CP4]


@pytest.mark.parametrize("passed", [[], [timed(CP1, 0.1)]])
def test_who_is_alone_needs_no_finals(passed):
    assert choose_finalists(passed, slack=0.3) == ()


def test_all_complete_rounds_speak_together_and_the_search_no_more():
    trials = [timed(CP1, 0.5), timed(CP2, 0.5), timed(CP4, 0.7)]
    trials += [again(CP1, 0.1, 0.2, turn=1), again(CP2, 0.3, 0.3, turn=1)]
    trials += [
        again(CP1, 0.3, turn=2, peak_allocated_bytes=900),
        again(CP2, 0.4, turn=2),
    ]

    one, two, four = pool(trials, finalists=KEYS, ci_share=0.03)

    assert one.measurement.ranks[3].step_s == (0.1, 0.2, 0.3)
    assert one.measurement.step_s == 0.2
    assert one.measurement.tokens_per_s == pytest.approx(5000)
    assert one.measurement.cp_exposed_s == pytest.approx(0.02)
    assert one.measurement.peak_allocated_bytes == 900
    assert (one.attempt, one.round) == (2, 2)
    assert two.measurement.ranks[0].step_s == (0.3, 0.3, 0.4)
    assert four is trials[2]


def test_a_round_that_one_of_them_lacks_counts_for_nobody():
    trials = [timed(CP1, 0.5), timed(CP2, 0.5), again(CP1, 0.1, turn=1)]

    assert pool(trials, finalists=KEYS, ci_share=0.03) == trials[:2]


def test_a_finalist_that_fails_speaks_by_its_failure_and_the_other_goes_on_alone():
    oom = trial_of(CP2, out_of_memory(), turn=1, attempt=1)
    trials = [timed(CP1, 0.5), timed(CP2, 0.5), again(CP1, 0.1, turn=1), oom]

    one, two = pool(trials, finalists=KEYS, ci_share=0.03)

    assert one.measurement.step_s == 0.1
    assert two is oom


def test_a_lost_node_is_no_failure_of_the_finalist():
    lost = trial_of(CP2, failed(OutcomeKind.NODE_LOST), turn=1, attempt=1)
    trials = [timed(CP1, 0.5), timed(CP2, 0.5), again(CP1, 0.1, turn=1), lost]

    assert pool(trials, finalists=KEYS, ci_share=0.03) == trials[:2]


def test_the_ablation_of_one_round_stands_beside_the_intervals_of_the_last():
    by_ablation = Exposed(
        axis="cp",
        layer=None,
        whole=True,
        method=ABLATION,
        communication_s=0.05,
        exposed_s=0.018,
    )
    first, last = rank_trace(), rank_trace(step_s=0.2)
    first = replace(first, exposed=(*first.exposed, by_ablation))
    trials = [timed(CP1, 0.5), timed(CP2, 0.5)]
    trials += [again(one, 0.1, turn=1, trace=first) for one in (CP1, CP2)]
    trials += [again(one, 0.1, turn=2, trace=last) for one in (CP1, CP2)]

    seen = pool(trials, finalists=KEYS, ci_share=0.03)[0].measurement

    assert not seen.lacks_ablation
    assert seen.traced_step_s == 0.2
    assert [(one.axis, one.method, one.exposed_s) for one in seen.exposures] == [
        ("cp", "interval-union", pytest.approx(0.02)),
        ("cp", "ablation", pytest.approx(0.018)),
        ("dp", "interval-union", pytest.approx(0.004)),
        ("dp", "ablation", None),
    ]
    assert trials[0].measurement.exposures == []  # no step was traced
    assert trials[4].measurement.lacks_ablation
