"""Predictions in a search: what cannot fit is kept as a row and not tried; trials teach."""

from fakes import (
    STAMP,
    FakeClock,
    ListSampler,
    MemoryLedger,
    RecordingObserver,
    ScriptedLauncher,
    candidate,
    measured,
    out_of_memory,
    space_of,
    sweep_spec,
    trial_of,
)

from cptune.domain.outcome import Failure, MemoryShortage, OomKind, OutcomeKind
from cptune.domain.recipe import Evidence
from cptune.domain.study import Budget, Objective
from cptune.predict.found import cpu_machine
from cptune.predict.trials import TrialPredictor
from cptune.search.choose import Limits
from cptune.search.foresight import LearningLedger
from cptune.search.loop import SearchLoop
from cptune.search.prepare import resolve
from cptune.search.seams import Seams

CP1, CP1_TP2, CP1_TP4, CP2 = (
    candidate(dp=4),
    candidate(tp=2, dp=2),
    candidate(tp=4),
    candidate(cp=2, dp=2),
)
CP4 = candidate(cp=4)
SPACE = space_of(CP1, CP1_TP2, CP1_TP4, CP2, CP4)
LIMITS = Limits(capacity_bytes=1000, memory_margin=0.1, objective=Objective())


def too_big(short_bytes):
    return Failure(
        kind=OutcomeKind.INFEASIBLE,
        message="predicted, not tried: needs too much",
        shortage=MemoryShortage(
            kind=OomKind.CAPACITY, asked_bytes=1000 + short_bytes, free_bytes=1000
        ),
    )


class Search:
    """One search over fakes in which every CP=1 layout is predicted not to fit."""

    def __init__(self, *, trials=20, ledger=None, shorts=(500, 300, 400)):
        self.shorts = dict(zip((CP1.key, CP1_TP2.key, CP1_TP4.key), shorts, strict=False))
        self.launcher = ScriptedLauncher({CP1.key: out_of_memory(500)})
        self.ledger, self.observer = ledger or MemoryLedger(), RecordingObserver()
        self.sampler = ListSampler(SPACE)
        self.loop = SearchLoop(
            SPACE,
            limits=LIMITS,
            budget=Budget(trials=trials, finalist_rounds=0),
            stamp=STAMP,
            seams=Seams(
                sampler=self.sampler,
                launcher=self.launcher,
                ledger=self.ledger,
                clock=FakeClock(),
                observer=self.observer,
                why_too_big=lambda one: (
                    too_big(self.shorts[one.key]) if one.key in self.shorts else None
                ),
            ),
        )

    def rows(self):
        return [(one.number, one.candidate.key, one.kind.value) for one in self.ledger.kept]


def test_what_cannot_fit_is_a_row_and_no_trial_and_the_control_is_tried_all_the_same():
    search = Search()
    search.loop.run()

    assert search.launcher.launched == [CP1.key, CP2.key, CP4.key]
    assert search.rows() == [
        (0, CP1.key, "out_of_memory"),
        (1, CP1_TP2.key, "infeasible"),
        (2, CP1_TP4.key, "infeasible"),
        (3, CP2.key, "measured"),
        (4, CP4.key, "measured"),
    ]
    assert search.observer.notes == [
        "2 of 5 candidates are predicted not to fit and are not tried; nearest, tp2 cp1 dp2: "
        "300 B too much"
    ]


def test_a_pruned_candidate_uses_up_no_trial():
    search = Search(trials=3)
    search.loop.run()

    assert len(search.launcher.launched) == 3
    assert [(done, total) for _, done, total in search.observer.started] == [(0, 3), (1, 3), (2, 3)]


def test_the_certificate_says_that_a_smaller_cp_was_ruled_out_by_prediction():
    choice = Search().loop.run()

    (entry,) = choice.certificate
    assert choice.trial.candidate == CP2
    assert entry.evidence is Evidence.PREDICTED
    assert entry.reason == (
        "1 of 3 layouts tried: 2 infeasible, 1 out_of_memory; nearest, tp2 cp1 dp2: "
        "predicted, not tried: needs too much"
    )


def test_a_resumed_search_prunes_nothing_twice():
    first = Search(trials=1)
    first.loop.run()
    again = Search(ledger=first.ledger)
    again.loop.run()

    keys = [key for _, key, _ in again.rows()]
    assert len(keys) == len(set(keys)) == 5
    assert {trial.candidate.key for trial in again.sampler.restored} >= {CP1_TP2.key, CP1_TP4.key}
    assert again.observer.notes == []


def test_an_interrupted_search_prunes_the_rest_when_it_goes_on():
    first = Search(trials=1)
    first.loop.run()
    del first.ledger.kept[-1:]
    again = Search(ledger=first.ledger)
    again.loop.run()

    assert sorted(key for _, key, _ in again.rows()) == sorted(one.key for one in SPACE.candidates)
    assert CP1_TP4.key not in again.launcher.launched


def test_without_a_prediction_everything_is_tried():
    search = Search(shorts=())
    search.loop.run()
    assert len(search.launcher.launched) == 5


def learning(trials=()):
    spec = resolve(sweep_spec(), None)
    machine = cpu_machine(spec.cluster, nodes=1, capacity_bytes=1 << 40)
    predictor = TrialPredictor(spec, machine=machine)
    observer = RecordingObserver()
    return LearningLedger(MemoryLedger(trials), predictor, observer), predictor, observer


def test_each_measured_trial_begins_a_version_that_is_told():
    ledger, predictor, observer = learning()
    ledger.append(trial_of(CP1, out_of_memory()))
    assert observer.models == []

    ledger.append(trial_of(CP2, measured(step_s=5.0), number=1))

    (note,) = observer.models
    assert note.startswith(f"predictions are now of model {predictor.model_version}: compute x")
    assert "+1trials." in note


def test_a_resume_rebuilds_the_model_from_the_ledger():
    trials = [trial_of(CP2, measured(step_s=5.0)), trial_of(CP4, measured(step_s=9.0), number=1)]
    went_on, predictor, _ = learning()
    for trial in trials:
        went_on.append(trial)
    resumed, rebuilt, observer = learning(trials)

    assert resumed.read() == went_on.read()
    assert rebuilt.model_version == predictor.model_version
    assert rebuilt.predict(CP1) == predictor.predict(CP1)
    assert len(observer.models) == 1
    assert observer.notes == []
