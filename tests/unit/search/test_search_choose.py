"""The ruling on every trial, the choice, and what the certificate may claim."""

import pytest
from fakes import candidate, failed, measured, out_of_memory, space_of, trial_of

from cptune.domain.outcome import OutcomeKind
from cptune.domain.recipe import Evidence
from cptune.domain.study import Objective
from cptune.search.choose import Limits, Ruling, choose

LIMITS = Limits(
    capacity_bytes=1000,
    memory_margin=0.1,
    objective=Objective(exposed_comm_share=0.2, throughput_slack=0.1),
)
CP1, CP1_TP2, CP1_TP4 = (candidate(tp=tp, dp=4 // tp) for tp in (1, 2, 4))
CP2, CP2_TP2 = candidate(cp=2, dp=2), candidate(tp=2, cp=2)
CP4 = candidate(cp=4)
SPACE = space_of(CP1, CP1_TP2, CP1_TP4, CP2, CP2_TP2, CP4)
OOM = out_of_memory(300)


def judge(*tried, space=SPACE, limits=LIMITS):
    trials = [trial_of(one, outcome, number=n) for n, (one, outcome) in enumerate(tried)]
    return choose(trials, space, limits)


def rulings(choice):
    return {verdict.trial.candidate.key: verdict.ruling for verdict in choice.verdicts}


def test_every_ruling_with_its_reason():
    choice = judge(
        (CP1, OOM),
        (CP1_TP2, measured(peak_bytes=901)),
        (CP1_TP4, measured(exposed_share=0.25)),
        (CP2_TP2, measured(step_s=0.2)),
        (CP2, measured(step_s=0.1)),
        (CP4, measured(step_s=0.1)),
    )

    assert choice.trial.candidate == CP2
    assert [(one.ruling, one.word) for one in choice.verdicts] == [
        (Ruling.FAILED, "out_of_memory"),
        (Ruling.OVER_MARGIN, "over margin"),
        (Ruling.EXPOSED, "exposed"),
        (Ruling.SLOWER, "slower"),
        (Ruling.CHOSEN, "chosen"),
        (Ruling.LARGER_CP, "larger cp"),
    ]
    assert [one.reason for one in choice.verdicts] == [
        OOM.message,
        "peak 901 B leaves less than the margin of 10% of 1000 B: 1 B too much",
        "exposed communication 25.0% of the step, most of it over cp, budget 20.0%",
        "1,280 tokens/s is 50.0% below the best 2,560 of the search, slack 10.0%",
        "smallest CP that fits, hides its communication and is fast enough",
        "cp 2 does as well within the slack",
    ]
    assert [(one.cp, one.verdict) for one in choice.controls] == [
        (1, "out_of_memory"),
        (1, "over margin"),
        (1, "exposed"),
        (2, "slower"),
        (4, "larger cp"),
    ]


def test_the_faster_layout_of_the_smallest_cp_wins():
    choice = judge((CP2, measured(step_s=0.105)), (CP2_TP2, measured(step_s=0.1)))

    assert choice.trial.candidate == CP2_TP2
    assert choice.verdicts[0].ruling is Ruling.SAME_CP
    assert choice.verdicts[0].reason == "another layout of cp 2 is faster"


def test_of_two_as_fast_the_one_with_less_memory_wins():
    choice = judge((CP2, measured(peak_bytes=800)), (CP2_TP2, measured(peak_bytes=799)))

    assert choice.trial.candidate == CP2_TP2


def test_of_two_that_are_equal_the_first_tried_wins():
    assert judge((CP2_TP2, measured()), (CP2, measured())).trial.candidate == CP2_TP2


@pytest.mark.parametrize(
    ("outcome", "ruling"),
    [
        (measured(peak_bytes=900), Ruling.CHOSEN),
        (measured(peak_bytes=901), Ruling.OVER_MARGIN),
        (measured(exposed_share=0.19), Ruling.CHOSEN),
        (measured(exposed_share=0.21), Ruling.EXPOSED),
    ],
)
def test_a_limit_itself_is_kept_to(outcome, ruling):
    assert rulings(judge((CP1, outcome))) == {CP1.key: ruling}


@pytest.mark.parametrize(
    ("step_s", "chosen"), [(0.1 / 0.91, CP1), (0.1 / 0.89, CP4)], ids=["inside", "outside"]
)
def test_the_slack_decides_between_a_small_cp_and_speed(step_s, chosen):
    choice = judge((CP1, measured(step_s=step_s)), (CP4, measured(step_s=0.1)))

    assert choice.trial.candidate == chosen


def test_the_best_is_only_of_those_that_pass():
    choice = judge(
        (CP4, measured(step_s=0.01, exposed_share=0.5)),
        (CP2, measured(step_s=0.02, peak_bytes=2000)),
        (CP1, measured(step_s=1.0)),
    )

    assert choice.trial.candidate == CP1


def test_nothing_passes():
    choice = judge((CP1, OOM), (CP2, measured(peak_bytes=950)), (CP4, failed()))

    assert choice.trial is None
    assert choice.certificate == ()
    assert [one.verdict for one in choice.controls] == ["out_of_memory", "over margin", "crashed"]


def test_nothing_was_tried():
    choice = judge()

    assert (choice.trial, choice.verdicts, choice.controls) == (None, (), ())


def test_the_newest_attempt_speaks_for_a_candidate():
    trials = [
        trial_of(CP2, failed(OutcomeKind.NODE_LOST), number=0, attempt=0),
        trial_of(CP2, measured(), number=0, attempt=1),
    ]

    choice = choose(trials, SPACE, LIMITS)

    assert choice.trial is trials[1]
    assert len(choice.verdicts) == 1


ALL_CP1 = [(CP1, OOM), (CP1_TP2, out_of_memory(200)), (CP1_TP4, out_of_memory(250))]


def certificate(*tried, space=SPACE):
    return [(one.cp, one.evidence, one.reason) for one in judge(*tried, space=space).certificate]


def test_a_cp_with_every_layout_ruled_out_is_measured():
    assert certificate(*ALL_CP1, (CP2, measured())) == [
        (
            1,
            Evidence.MEASURED,
            "all 3 layouts tried: 3 out_of_memory; nearest, tp2 cp1 dp2: "
            "out of memory in forward: asked 300 bytes, 100 free",
        )
    ]


def test_the_nearest_miss_is_the_one_that_got_farthest():
    ((_, evidence, reason),) = certificate(
        (CP1, OOM),
        (CP1_TP2, measured(step_s=9.0)),
        (CP1_TP4, measured(peak_bytes=950)),
        (CP2, measured()),
    )

    assert evidence is Evidence.MEASURED
    assert reason.startswith(
        "all 3 layouts tried: 1 out_of_memory, 1 slower, 1 over margin; nearest, tp2 cp1 dp2: "
        "28 tokens/s is 98.9% below the best 2,560"
    )


def test_a_cp_with_an_untried_layout_stays_open():
    assert certificate(*ALL_CP1[:2], (CP2, measured())) == [
        (1, None, "not ruled out: 1 of its 3 layouts were not tried")
    ]


@pytest.mark.parametrize(
    "kind",
    [
        OutcomeKind.CRASHED,
        OutcomeKind.TIMEOUT,
        OutcomeKind.COMMUNICATION,
        OutcomeKind.NODE_LOST,
        OutcomeKind.STOPPED,
        OutcomeKind.DIRTY_DEVICE,
    ],
)
def test_a_failure_that_says_nothing_leaves_its_cp_open(kind):
    assert certificate(*ALL_CP1[:2], (CP1_TP4, failed(kind)), (CP2, measured())) == [
        (
            1,
            None,
            f"not ruled out: 2 out_of_memory, 1 {kind.value}; tp4 cp1 dp1: it broke",
        )
    ]


@pytest.mark.parametrize("kind", [OutcomeKind.WRONG_RESULT, OutcomeKind.NOT_APPLIED])
def test_a_failure_of_the_candidate_itself_rules_it_out(kind):
    ((_, evidence, _),) = certificate(*ALL_CP1[:2], (CP1_TP4, failed(kind)), (CP2, measured()))

    assert evidence is Evidence.MEASURED


def test_a_cp_without_a_legal_layout_is_proven():
    space = space_of(CP2, CP4, illegal_cps={1: "tp1 cp1 dp4: 30 heads"})

    assert certificate((CP2, measured()), space=space) == [
        (1, Evidence.PROVEN, "no legal layout: tp1 cp1 dp4: 30 heads")
    ]


def test_a_cp_that_was_not_asked_for_stays_open():
    assert certificate((CP4, measured()), space=space_of(CP4)) == [
        (1, None, "not ruled out: not among the axes"),
        (2, None, "not ruled out: not among the axes"),
    ]


def test_a_cp_that_the_trials_cannot_run_stays_open():
    space = space_of(CP2, untriable={1: 5})

    assert certificate((CP2, measured()), space=space) == [
        (1, None, "not ruled out: these trials cannot run its 5 layouts")
    ]


def test_layouts_that_the_trials_cannot_run_are_told_beside_those_that_were_tried():
    space = space_of(*SPACE.candidates, untriable={1: 2})

    ((_, evidence, reason),) = certificate(*ALL_CP1, (CP2, measured()), space=space)

    assert evidence is Evidence.MEASURED
    assert reason.endswith("(2 more that these trials cannot run are not judged)")


def test_the_smallest_cp_needs_no_certificate():
    assert certificate((CP1, measured())) == []


def test_only_divisors_of_the_world_are_smaller_cps():
    cp3 = candidate(cp=3, dp=2)

    assert [cp for cp, *_ in certificate((cp3, measured(ranks=6)), space=space_of(cp3))] == [1, 2]
