"""The whole search on fakes: given this truth, the recipe is that one."""

import math
import time
from dataclasses import replace

import pytest
from fakes import (
    STAMP,
    FakeClock,
    ListSampler,
    MemoryLedger,
    RecordingObserver,
    ScriptedLauncher,
    candidate,
    failed,
    measured,
    out_of_memory,
    predicted,
    rank_report,
    rank_trace,
    setting,
    space_of,
    trial_of,
)

from cptune.domain.outcome import OutcomeKind, measurement_from
from cptune.domain.study import Axes, Budget, Objective, SearchSettings
from cptune.domain.timeline import ABLATION, Exposed, Span, SpanKind
from cptune.search.choose import Limits
from cptune.search.loop import SearchLoop
from cptune.search.sampler import OptunaSampler
from cptune.search.seams import Seams
from cptune.search.space import build_space

LIMITS = Limits(
    capacity_bytes=1000,
    memory_margin=0.1,
    objective=Objective(exposed_comm_share=0.2, throughput_slack=0.1),
)
CP1, CP1_TP2, CP2, CP4 = (
    candidate(dp=4),
    candidate(tp=2, dp=2),
    candidate(cp=2, dp=2),
    candidate(cp=4),
)
SPACE = space_of(CP1, CP1_TP2, CP2, CP4)
LOST = failed(OutcomeKind.NODE_LOST, "node1 is gone")
BROKEN = failed(OutcomeKind.COMMUNICATION, "peer closed")


class Bench:
    """One search over fakes; everything that it touched stays here."""

    def __init__(
        self, launcher, *, space=SPACE, ledger=None, sampler=None, finals=None, prove=None, **budget
    ):
        self.launcher, self.clock = launcher, FakeClock()
        self.ledger = ledger or MemoryLedger()
        self.sampler = sampler or ListSampler(space)
        self.observer = RecordingObserver()
        self.loop = SearchLoop(
            space,
            limits=LIMITS,
            budget=Budget(**{"trials": 20, "finalist_rounds": 0, **budget}),
            stamp=STAMP,
            seams=Seams(
                sampler=self.sampler,
                launcher=launcher,
                ledger=self.ledger,
                clock=self.clock,
                observer=self.observer,
                finals=finals,
                prove=prove,
            ),
        )


def outcomes(bench):
    return [(one.number, one.attempt, one.kind.value) for one in bench.ledger.kept]


def truth(one):
    """CP=1 does not fit; CP=2 does; CP=4 is no faster and waits for its peers."""
    match one.layout.cp:
        case 1:
            return out_of_memory(300)
        case 2:
            return measured(step_s=0.10 if one.layout.tp == 1 else 0.12)
        case _:
            return measured(step_s=0.10, exposed_share=0.3)


def test_given_a_truth_the_recipe_is_that_one_in_less_than_a_second():
    space = build_space(Axes(pp=(1,), micro_batch=(1,)), setting(4))
    sampler = OptunaSampler(
        space,
        settings=SearchSettings(),
        study_name="s",
        storage="sqlite://",
        baseline=space.candidates[0],
    )
    sampler.lead(lambda one: predicted(), room_bytes=0)
    bench = Bench(ScriptedLauncher(default=truth), space=space, sampler=sampler)
    started_s = time.process_time()

    choice = bench.loop.run()

    assert choice.trial.candidate == candidate(cp=2, dp=2)
    assert [(one.cp, str(one.evidence)) for one in choice.certificate] == [(1, "measured")]
    assert len(bench.launcher.launched) == len(space.candidates)
    assert time.process_time() - started_s < 1


def test_every_trial_is_kept_told_and_stamped():
    bench = Bench(ScriptedLauncher(default=truth))

    bench.loop.run()

    assert outcomes(bench) == [
        (0, 0, "out_of_memory"),
        (1, 0, "out_of_memory"),
        (2, 0, "measured"),
        (3, 0, "measured"),
    ]
    assert bench.sampler.told == bench.ledger.kept == list(bench.loop.trials)
    assert {one.convergence_fingerprint for one in bench.ledger.kept} == {STAMP.convergence}
    assert {one.execution_fingerprint for one in bench.ledger.kept} == {STAMP.execution}
    assert bench.observer.started == [
        (one.key, done, 4) for done, one in enumerate(SPACE.candidates)
    ]
    bests = [best and best.candidate for _, best in bench.observer.finished]
    assert bests == [None, None, CP2, CP2]


@pytest.mark.parametrize("trials", [1, 2, 3])
def test_the_budget_of_trials_ends_the_search(trials):
    bench = Bench(ScriptedLauncher(), trials=trials)

    bench.loop.run()

    assert len(bench.launcher.launched) == trials


def test_the_legal_set_ends_the_search():
    bench = Bench(ScriptedLauncher(), trials=100)

    assert bench.loop.run().trial.candidate == CP1
    assert len(bench.launcher.launched) == 4
    assert bench.observer.notes == []


def test_the_budget_of_time_ends_the_search_with_a_note():
    launcher = ScriptedLauncher(on_launch=lambda one: bench.clock.advance(30))
    bench = Bench(launcher, wall_s=60)

    choice = bench.loop.run()

    assert launcher.launched == [CP1.key, CP1_TP2.key]
    assert choice.trial is not None
    assert bench.observer.notes == ["the time budget of 60 s ended after 2 of 4 candidates"]


@pytest.mark.parametrize("first", [LOST, BROKEN])
def test_what_says_nothing_of_the_candidate_is_tried_once_more(first):
    bench = Bench(ScriptedLauncher({CP1.key: [first, measured()]}), trials=1)

    choice = bench.loop.run()

    assert outcomes(bench) == [(0, 0, first.kind.value), (0, 1, "measured")]
    assert choice.trial is bench.ledger.kept[1]
    assert bench.sampler.told == [bench.ledger.kept[1]]
    assert bench.observer.notes == [f"tp1 cp1 dp4 is tried again: {first.message}"]


def test_a_second_loss_is_the_answer():
    bench = Bench(ScriptedLauncher({CP1.key: [LOST, BROKEN]}), trials=2)

    choice = bench.loop.run()

    assert outcomes(bench) == [(0, 0, "node_lost"), (0, 1, "communication"), (1, 0, "measured")]
    assert choice.trial.candidate == CP1_TP2


@pytest.mark.parametrize(
    "kind",
    [
        k
        for k in OutcomeKind
        if k.value not in ("measured", "node_lost", "communication", "infeasible")
    ],
)
def test_other_failures_are_not_tried_again(kind):
    bench = Bench(ScriptedLauncher({CP1.key: failed(kind)}), trials=1)

    bench.loop.run()

    assert outcomes(bench) == [(0, 0, kind.value)]


def test_a_first_loss_unlike_the_anchors_is_a_wrong_result():
    bench = Bench(
        ScriptedLauncher({CP1.key: out_of_memory(), CP2.key: measured(first_loss=5.6, step_s=0.01)})
    )

    choice = bench.loop.run()

    assert [one.kind.value for one in bench.ledger.kept] == [
        "out_of_memory",
        "measured",
        "wrong_result",
        "measured",
    ]
    assert "trial 1 (tp2 cp1 dp2) has 5.5" in bench.ledger.kept[2].reason
    assert choice.trial.candidate == CP1_TP2


def test_a_loss_that_is_no_number_is_no_anchor():
    bench = Bench(ScriptedLauncher({CP1.key: measured(first_loss=math.nan, step_s=0.01)}))

    choice = bench.loop.run()

    assert bench.ledger.kept[0].kind is OutcomeKind.WRONG_RESULT
    assert choice.trial.candidate == CP1_TP2
    assert [one.kind.value for one in bench.ledger.kept[1:]] == ["measured"] * 3


def test_cp_that_moved_nothing_is_not_applied():
    silent = measured(planned_sent_bytes=512, sent_bytes=0)
    bench = Bench(ScriptedLauncher({CP1.key: out_of_memory(), CP2.key: silent}))

    bench.loop.run()

    assert bench.ledger.kept[2].kind is OutcomeKind.NOT_APPLIED


def test_ranks_of_one_group_with_other_samples_are_a_wrong_result():
    reports = tuple(rank_report(rank, sample_hash=f"s{rank}") for rank in range(4))
    bench = Bench(
        ScriptedLauncher({CP4.key: measurement_from(reports, tokens_per_step=256)}),
        space=space_of(CP4),
    )

    assert bench.loop.run().trial is None
    assert bench.ledger.kept[0].kind is OutcomeKind.WRONG_RESULT
    assert "trained on different samples" in bench.ledger.kept[0].reason


def test_what_the_certificate_owes_comes_first_when_the_budget_is_just_enough():
    space = space_of(CP2, CP4, CP1, CP1_TP2)
    bench = Bench(ScriptedLauncher(default=truth), space=space, trials=3)

    choice = bench.loop.run()

    assert bench.launcher.launched == [CP2.key, CP1.key, CP1_TP2.key]
    assert bench.sampler.among[1:] == [{CP1.key, CP1_TP2.key}, {CP1_TP2.key}]
    assert [str(one.evidence) for one in choice.certificate] == ["measured"]


def test_with_a_larger_budget_the_sampler_is_free_longer():
    space = space_of(CP2, CP4, CP1, CP1_TP2)
    bench = Bench(ScriptedLauncher(default=truth), space=space, trials=4)

    bench.loop.run()

    assert bench.launcher.launched == [CP2.key, CP4.key, CP1.key, CP1_TP2.key]
    assert bench.sampler.among[:2] == [None, None]


def test_a_resumed_search_runs_only_what_is_missing():
    first = Bench(ScriptedLauncher(default=truth), trials=2)
    first.loop.run()

    second = Bench(ScriptedLauncher(default=truth), ledger=first.ledger)
    choice = second.loop.run()

    assert second.launcher.launched == [CP2.key, CP4.key]
    assert [one.number for one in second.ledger.kept] == [0, 1, 2, 3]
    assert second.sampler.restored == first.ledger.kept[:2]
    assert second.observer.started[0] == (CP2.key, 2, 4)
    assert choice.trial.candidate == CP2


def test_a_resumed_search_that_was_finished_launches_nothing():
    first = Bench(ScriptedLauncher(default=truth))
    chosen = first.loop.run().trial

    second = Bench(ScriptedLauncher(), ledger=MemoryLedger(first.ledger.kept))

    assert second.loop.run().trial == chosen
    assert second.launcher.launched == []


def test_an_attempt_that_was_due_again_goes_on_under_its_number():
    ledger = MemoryLedger(
        [trial_of(CP1, measured(), number=0), trial_of(CP2, LOST, number=1, attempt=0)]
    )
    bench = Bench(ScriptedLauncher(default=truth), space=space_of(CP1, CP2, CP4), ledger=ledger)

    bench.loop.run()

    assert bench.sampler.restored == [ledger.kept[0]]
    assert bench.launcher.launched == [CP2.key, CP4.key]
    assert outcomes(bench)[1:] == [(1, 0, "node_lost"), (1, 1, "measured"), (2, 0, "measured")]


def test_an_attempt_that_is_lost_for_the_second_time_after_a_resume_is_final():
    ledger = MemoryLedger([trial_of(CP1, LOST, number=0, attempt=0)])
    bench = Bench(ScriptedLauncher({CP1.key: LOST}), ledger=ledger, trials=1)

    bench.loop.run()

    assert outcomes(bench) == [(0, 0, "node_lost"), (0, 1, "node_lost")]


def test_numbers_go_on_after_a_hole_in_the_ledger():
    bench = Bench(
        ScriptedLauncher(), ledger=MemoryLedger([trial_of(CP4, measured(), number=7)]), trials=2
    )

    bench.loop.run()

    assert outcomes(bench) == [(7, 0, "measured"), (8, 0, "measured")]


def test_a_sampler_with_nothing_left_ends_the_search():
    bench = Bench(ScriptedLauncher(), sampler=ListSampler(space_of(CP1, CP2)))

    assert bench.loop.run().trial.candidate == CP1
    assert bench.launcher.launched == [CP1.key, CP2.key]


def steady(*steps_s, **changes):
    """A measurement of four ranks with these steps."""
    reports = tuple(rank_report(rank, step_s=tuple(steps_s), **changes) for rank in range(4))
    return measurement_from(reports, tokens_per_step=256)


CLOSE = {  # CP=1 does not fit; the search is lucky with CP=4 alone
    CP1.key: out_of_memory(),
    CP1_TP2.key: out_of_memory(),
    CP2.key: [steady(0.108, 0.122), steady(0.1, 0.1), steady(0.101, 0.1)],
    CP4.key: [steady(0.1, 0.1), steady(0.099, 0.1), steady(0.1, 0.1)],
}


def test_finalists_are_measured_in_turns_and_their_rounds_decide_together():
    bench = Bench(ScriptedLauncher(CLOSE), finalist_rounds=2)

    choice = bench.loop.run()

    assert bench.launcher.launched[4:] == [CP2.key, CP4.key, CP2.key, CP4.key]
    assert [(one.number, one.attempt, one.round) for one in bench.ledger.kept[4:]] == [
        (2, 1, 1),
        (3, 1, 1),
        (2, 2, 2),
        (3, 2, 2),
    ]
    assert choice.trial.candidate == CP2
    assert choice.trial.measurement.ranks[0].step_s == (0.1, 0.1, 0.101, 0.1)
    assert bench.observer.finals == [
        (key, turn, 2) for turn in (1, 2) for key in (CP2.key, CP4.key)
    ]
    assert [one.round for one in bench.sampler.told] == [0] * 4


def test_without_finals_the_lucky_moment_decides():
    assert Bench(ScriptedLauncher(CLOSE)).loop.run().trial.candidate == CP4


def test_a_settled_choice_needs_no_finals():
    far = CLOSE | {CP4.key: steady(0.3, 0.3)}
    bench = Bench(ScriptedLauncher(far | {CP2.key: steady(0.1, 0.1)}), finalist_rounds=2)

    assert bench.loop.run().trial.candidate == CP2
    assert len(bench.launcher.launched) == 4


def traced(seen, *, ablated=True):
    """The same measurement with a traced step, cross-checked or not."""
    row = Exposed(
        axis="cp", layer=None, whole=True, method=ABLATION, communication_s=None, exposed_s=0.01
    )
    trace = rank_trace()
    if ablated:
        trace = replace(trace, exposed=(*trace.exposed, row))
    return replace(seen, ranks=tuple(replace(one, trace=trace) for one in seen.ranks))


def test_finalists_are_cross_checked_in_their_first_round_alone():
    finals = ScriptedLauncher({CP2.key: steady(0.1, 0.1), CP4.key: steady(0.099, 0.1)})
    bench = Bench(ScriptedLauncher(CLOSE), finalist_rounds=2, finals=finals)

    bench.loop.run()

    assert finals.launched == [CP2.key, CP4.key]
    assert bench.launcher.launched[4:] == [CP2.key, CP4.key]
    assert [one.round for one in bench.ledger.kept[4:]] == [1, 1, 2, 2]


FAR = {
    CP1.key: out_of_memory(),
    CP1_TP2.key: out_of_memory(),
    CP2.key: traced(steady(0.1, 0.1), ablated=False),
    CP4.key: traced(steady(0.3, 0.3), ablated=False),
}


def test_a_settled_choice_is_cross_checked_once():
    finals = ScriptedLauncher({CP2.key: traced(steady(0.1, 0.1))})
    bench = Bench(ScriptedLauncher(FAR), finalist_rounds=1, finals=finals)

    choice = bench.loop.run()

    assert finals.launched == [CP2.key]
    assert not choice.trial.measurement.lacks_ablation
    assert [(one.number, one.attempt, one.round) for one in bench.ledger.kept[4:]] == [(2, 1, 0)]
    assert "to cross-check its exposed communication by ablation" in bench.observer.notes[-1]
    again = Bench(ScriptedLauncher(), ledger=bench.ledger, finalist_rounds=1, finals=finals)
    assert again.loop.run().trial.candidate == CP2
    assert finals.launched == [CP2.key]  # nothing is left to do


@pytest.mark.parametrize(
    ("budget", "cost_s"), [({"finalist_rounds": 0}, 0), ({"finalist_rounds": 1, "wall_s": 100}, 30)]
)
def test_no_cross_check_where_no_finals_are_wanted_or_no_time_is_left(budget, cost_s):
    finals = ScriptedLauncher({CP2.key: traced(steady(0.1, 0.1))})
    launcher = ScriptedLauncher(FAR, on_launch=lambda one: bench.clock.advance(cost_s))
    bench = Bench(launcher, finals=finals, **budget)

    assert bench.loop.run().trial.candidate == CP2
    assert finals.launched == []


def test_a_cross_check_that_tells_nothing_is_not_repeated():
    finals = ScriptedLauncher({CP2.key: traced(steady(0.1, 0.1), ablated=False)})
    bench = Bench(ScriptedLauncher(FAR), finalist_rounds=1, finals=finals)

    assert bench.loop.run().trial.measurement.lacks_ablation
    assert finals.launched == [CP2.key]


@pytest.mark.parametrize("kept", range(4, 8))
def test_finals_go_on_where_a_driver_ended(kept):
    whole = Bench(ScriptedLauncher(CLOSE), finalist_rounds=2)
    wanted = whole.loop.run().trial
    ledger = MemoryLedger(whole.ledger.kept[:kept])

    rest = ScriptedLauncher({key: steady(0.1, 0.1) for key in (CP2.key, CP4.key)})
    again = Bench(rest, ledger=ledger, finalist_rounds=2)
    choice = again.loop.run()

    assert rest.launched == whole.launcher.launched[kept:]
    assert [(one.number, one.attempt, one.round) for one in ledger.kept] == [
        (one.number, one.attempt, one.round) for one in whole.ledger.kept
    ]
    assert choice.trial.candidate == wanted.candidate


def test_half_a_round_compares_nobody():
    whole = Bench(ScriptedLauncher(CLOSE), finalist_rounds=2)
    whole.loop.run()

    halted = Bench(ScriptedLauncher(), ledger=MemoryLedger(whole.ledger.kept[:5]), wall_s=0.001)
    halted.clock.advance(1)

    assert halted.loop.run().trial.candidate == CP4


def test_finals_that_do_not_fit_in_the_time_are_left_out_with_a_note():
    launcher = ScriptedLauncher(CLOSE, on_launch=lambda one: bench.clock.advance(15))
    bench = Bench(launcher, finalist_rounds=2, wall_s=60)

    choice = bench.loop.run()

    assert len(launcher.launched) == 4
    assert choice.trial.candidate == CP4
    assert bench.observer.notes == [
        "round 1 of 2 of the 2 finalists does not fit in the 0 s left of the time budget of 60 s: "
        "the choice rests on what was timed before"
    ]


def test_a_finalist_that_fails_is_judged_by_its_failure_and_runs_no_more():
    script = CLOSE | {CP4.key: [steady(0.1, 0.1), out_of_memory()]}
    bench = Bench(ScriptedLauncher(script), finalist_rounds=2)

    choice = bench.loop.run()

    assert bench.launcher.launched[4:] == [CP2.key, CP4.key, CP2.key]
    assert choice.trial.candidate == CP2
    assert [one.word for one in choice.verdicts if one.trial.candidate == CP4] == ["out_of_memory"]


def test_a_lost_node_in_the_finals_is_tried_once_more_and_says_nothing_of_the_candidate():
    script = CLOSE | {CP4.key: [steady(0.1, 0.1), LOST, LOST, steady(0.1, 0.1)]}
    bench = Bench(ScriptedLauncher(script), finalist_rounds=2)

    choice = bench.loop.run()

    assert bench.launcher.launched[4:] == [CP2.key, CP4.key, CP4.key, CP2.key, CP4.key]
    assert choice.trial.candidate == CP2
    assert choice.trial.measurement.ranks[0].step_s == (0.101, 0.1)  # round 2 alone is complete


def test_finals_do_not_count_against_the_budget_of_trials():
    bench = Bench(ScriptedLauncher(CLOSE), trials=4, finalist_rounds=2)

    bench.loop.run()

    assert len(bench.launcher.launched) == 8


def test_the_ledger_gets_the_spans_of_a_trial_and_the_loop_does_not_hold_them():
    span = Span(kind=SpanKind.COMPUTE, name="forward", start_s=0.0, stop_s=1.0)
    report = rank_report(0, trace=rank_trace(spans=(span,)))
    outcome = measurement_from((report,), tokens_per_step=1)
    bench = Bench(ScriptedLauncher({CP1.key: outcome}), trials=1)

    bench.loop.run()

    def held(trial):
        return [one.trace.spans for one in trial.measurement.ranks]

    assert held(bench.ledger.kept[0]) == [(span,)]
    assert held(bench.loop.trials[0]) == held(bench.sampler.told[0]) == [()]
