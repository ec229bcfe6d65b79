"""Optuna over the legal set: nothing illegal, nothing twice, and a study that heals."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import optuna
import pytest
from fakes import (
    candidate,
    failed,
    measured,
    out_of_memory,
    predicted,
    setting,
    space_of,
    trial_of,
)
from optuna.trial import TrialState

from cptune.domain.outcome import OutcomeKind
from cptune.domain.study import Axes, SamplerName, SearchSettings
from cptune.errors import LedgerError
from cptune.search.sampler import OptunaSampler
from cptune.search.space import build_space

SPACE = build_space(Axes(pp=(1,), micro_batch=(1,), stages=(1, 2, 3)), setting(4))
SHARED = Path("/dev/shm")
IN_MEMORY = "sqlite://"
BASELINE = SPACE.candidates[3]
SMALL = space_of(*(candidate(tp=tp, dp=4 // tp) for tp in (1, 2, 4)))


def open_sampler(storage, *, name=SamplerName.TPE, seed=0, space=SPACE, baseline=None, study="s"):
    sampler = OptunaSampler(
        space,
        settings=SearchSettings(sampler=name, seed=seed),
        study_name=study,
        storage=storage,
        baseline=baseline or space.candidates[0],
    )
    sampler.lead(lambda one: predicted(1 + len(one.key) % 7), room_bytes=1 << 20)
    return sampler


def ask_all(sampler, *, at_most=99):
    """Keys in the order asked for; each is told a step that its key decides."""
    asked = []
    while len(asked) < at_most and (one := sampler.ask()) is not None:
        step_s = 1 + random.Random(one.key).random()
        sampler.tell(trial_of(one, measured(step_s=step_s), number=len(asked)))
        asked.append(one.key)
    return asked


def stored(path, study="s"):
    loaded = optuna.load_study(study_name=study, storage=f"sqlite:///{path}")
    trials = loaded.get_trials(deepcopy=False)
    loaded._storage.remove_session()
    return trials


@pytest.fixture
def path():
    """In memory where there is such a file system: SQLite syncs at each of many commits."""
    with TemporaryDirectory(dir=SHARED if SHARED.is_dir() else None) as directory:
        yield Path(directory) / "study.db"


@pytest.mark.parametrize("name", SamplerName)
def test_every_sampler_covers_the_legal_set_once_from_the_baseline(path, name):
    with open_sampler(path, name=name, baseline=BASELINE) as sampler:
        asked = ask_all(sampler)

        assert asked[0] == BASELINE.key
        assert sorted(asked) == sorted(one.key for one in SPACE.candidates)
        assert sampler.ask() is None
    assert {one.state for one in stored(path)} == {TrialState.COMPLETE}


@pytest.mark.parametrize("name", SamplerName)
def test_the_same_seed_asks_in_the_same_order(name):
    orders = []
    for _ in range(2):
        with open_sampler(IN_MEMORY, name=name, seed=7) as sampler:
            orders.append(ask_all(sampler))

    assert orders[0] == orders[1]


@pytest.mark.parametrize("name", [SamplerName.TPE, SamplerName.GP, SamplerName.RANDOM])
def test_another_seed_asks_in_another_order(name):
    orders = []
    for seed in (1, 2):
        with open_sampler(IN_MEMORY, name=name, seed=seed) as sampler:
            orders.append(ask_all(sampler))

    assert orders[0] != orders[1]


def test_brute_force_walks_the_legal_set_in_its_order():
    with open_sampler(IN_MEMORY, name=SamplerName.BRUTE_FORCE) as sampler:
        assert ask_all(sampler) == [one.key for one in SPACE.candidates]


def test_among_confines_the_question(path):
    wanted = {one.key for one in SPACE.candidates if one.layout.cp == 4}

    with open_sampler(path) as sampler:
        asked = []
        while (one := sampler.ask(among=wanted)) is not None:
            asked.append(one.key)
            sampler.tell(trial_of(one))

        assert sorted(asked) == sorted(wanted)
        assert sampler.ask(among=set()) is None
        assert sampler.ask().key == SPACE.candidates[0].key  # the baseline, once it may be


def test_what_is_being_tried_is_not_asked_for_again(path):
    with open_sampler(path, space=SMALL) as sampler:
        assert len({sampler.ask().key for _ in range(3)}) == 3
        assert sampler.ask() is None


def test_a_measured_trial_is_complete_with_its_step(path):
    with open_sampler(path, space=SMALL) as sampler:
        sampler.ask()
        told = measured(step_s=0.25, peak_bytes=123, exposed_share=0.5)
        sampler.tell(trial_of(SMALL.candidates[0], told))

    (kept,) = stored(path)
    assert (kept.state, kept.value) == (TrialState.COMPLETE, 0.25)
    assert kept.params == {"tp": 1, "cp": 1, "dp": 4}
    assert kept.user_attrs == {
        "candidate_key": SMALL.candidates[0].key,
        "outcome": "measured",
        "attempt": 0,
        "tokens_per_s": 1024.0,
        "peak_allocated_bytes": 123,
        "exposed_share": 0.5,
    }
    assert kept.system_attrs["constraints"] == [0.0, 0.0]


def test_out_of_memory_is_pruned_with_a_violated_constraint(path):
    with open_sampler(path, space=SMALL) as sampler:
        one = sampler.ask()
        sampler.tell(trial_of(one, out_of_memory(3 << 29)))

    (kept,) = stored(path)
    assert (kept.state, kept.value) == (TrialState.PRUNED, None)
    assert kept.system_attrs["constraints"] == [1.5, 0.0]
    assert kept.constraints.items() >= {"memory_short_gib": 1.5, "infeasible": 0.0}.items()
    assert kept.user_attrs["reason"].startswith("out of memory in forward")


@pytest.mark.parametrize(
    "kind", [OutcomeKind.CRASHED, OutcomeKind.TIMEOUT, OutcomeKind.WRONG_RESULT]
)
def test_a_failure_that_teaches_nothing_is_failed(path, kind):
    with open_sampler(path, space=SMALL) as sampler:
        sampler.tell(trial_of(sampler.ask(), failed(kind)))

    (kept,) = stored(path)
    assert (kept.state, kept.user_attrs["outcome"]) == (TrialState.FAIL, kind.value)
    assert kept.user_attrs["reason"] == "it broke"


def run_some(path, *, count, **options):
    """Trials of a first driver, as the ledger has them."""
    trials = []
    with open_sampler(path, **options) as sampler:
        for number in range(count):
            trials.append(trial_of(sampler.ask(), measured(step_s=0.1 + number), number=number))
            sampler.tell(trials[-1])
    return trials


def heal(path, trials, **options):
    """What a second driver asks for, and the study that it leaves behind."""
    with open_sampler(path, **options) as sampler:
        sampler.restore(trials)
        asked = ask_all(sampler)
    return asked, stored(path)


def assert_whole(trials, asked, kept, space=SPACE):
    """Each legal candidate was tried by one of the two drivers, and stands once in the study."""
    done = [trial.candidate.key for trial in trials]
    assert sorted(done + asked) == sorted(one.key for one in space.candidates)
    live = [one for one in kept if one.user_attrs["outcome"] != "stopped"]
    assert sorted(one.user_attrs["candidate_key"] for one in live) == sorted(done + asked)
    assert not [one for one in kept if one.state is TrialState.RUNNING]
    by_key = {one.user_attrs["candidate_key"]: one.value for one in live}
    for trial in trials:
        assert by_key[trial.candidate.key] == trial.measurement.step_s


@pytest.mark.parametrize("name", SamplerName)
def test_a_study_that_agrees_is_gone_on_with(path, name):
    trials = run_some(path, count=5, name=name)

    asked, kept = heal(path, trials, name=name)

    assert_whole(trials, asked, kept)
    assert len(kept) == len(SPACE.candidates)


def test_a_lost_study_is_rebuilt(path):
    trials = run_some(path, count=5)
    path.unlink()

    asked, kept = heal(path, trials)

    assert_whole(trials, asked, kept)


@pytest.mark.parametrize("damage", ["garbage", "cut", "empty", "directory"])
def test_a_damaged_study_is_set_aside_and_rebuilt(path, damage):
    trials = run_some(path, count=5)
    content = path.read_bytes()
    path.unlink()
    match damage:
        case "garbage":
            path.write_bytes(b"garbage" * 4096)
        case "cut":
            path.write_bytes(content[: len(content) // 3])
        case "empty":
            path.write_bytes(b"")
        case "directory":
            path.mkdir()

    asked, kept = heal(path, trials)

    assert_whole(trials, asked, kept)
    aside = path.with_name("study.db.aside-1")
    assert aside.exists() == (damage != "empty")  # an empty file is an empty database


def test_what_was_set_aside_is_never_overwritten(path):
    path.with_name("study.db.aside-2").write_text("of last week")
    for content in ("first", "second"):
        path.write_text(content)
        open_sampler(path).close()
        path.unlink()

    asides = {one.name: one.read_text() for one in path.parent.glob("*.aside-*")}
    assert asides == {
        "study.db.aside-1": "first",
        "study.db.aside-2": "of last week",
        "study.db.aside-3": "second",
    }


def test_a_study_of_another_space_is_set_aside(path):
    run_some(path, count=2, space=SMALL)
    trials = [trial_of(SPACE.candidates[0], measured(step_s=9.0))]

    asked, kept = heal(path, trials)

    assert_whole(trials, asked, kept)
    assert path.with_name("study.db.aside-1").exists()


def test_a_trial_left_running_is_stopped_and_asked_for_again(path):
    trials = run_some(path, count=2)
    with open_sampler(path) as ended:
        ended.restore(trials)
        lost = ended.ask()

    asked, kept = heal(path, trials)

    assert_whole(trials, asked, kept)
    assert lost.key in asked
    (stopped,) = [one for one in kept if one.user_attrs["outcome"] == "stopped"]
    assert stopped.state is TrialState.FAIL


def test_a_trial_that_the_ledger_finished_is_told_once(path):
    trials = run_some(path, count=2)
    with open_sampler(path) as ended:
        ended.restore(trials)
        trials.append(trial_of(ended.ask(), measured(step_s=3.5), number=2))  # kept, never told

    asked, kept = heal(path, trials)

    assert_whole(trials, asked, kept)
    assert len(kept) == len(SPACE.candidates)


def test_a_trial_cut_between_the_question_and_its_name_is_stopped(path):
    with open_sampler(path) as ended:
        ended.ask()
    with closing(sqlite3.connect(path)) as database:
        database.execute("DELETE FROM trial_user_attributes")
        database.commit()

    asked, kept = heal(path, [])

    assert_whole([], asked, kept)


def test_a_study_that_is_behind_gets_failures_too(path):
    one, two = SMALL.candidates[:2]
    trials = [
        trial_of(one, out_of_memory(1 << 30), number=0),
        trial_of(two, failed(OutcomeKind.COMMUNICATION), number=1, attempt=0),
        trial_of(two, failed(OutcomeKind.CRASHED), number=1, attempt=1),
    ]

    asked, kept = heal(path, trials, space=SMALL)

    assert asked == [SMALL.candidates[2].key]
    assert [(x.state, x.user_attrs["outcome"], x.user_attrs["attempt"]) for x in kept[:2]] in (
        [(TrialState.PRUNED, "out_of_memory", 0), (TrialState.FAIL, "crashed", 1)],
        [(TrialState.FAIL, "crashed", 1), (TrialState.PRUNED, "out_of_memory", 0)],
    )
    assert [1.0, 0.0] in [x.system_attrs["constraints"] for x in kept[:2]]


def test_trials_outside_the_legal_set_are_left_out_of_the_study(path):
    asked, kept = heal(path, [trial_of(candidate(cp=8))], space=SMALL)

    assert len(asked) == len(kept) == 3


def test_a_study_by_url_is_shared_and_not_set_aside(path):
    url = f"sqlite:///{path}"
    trials = run_some(url, count=2, space=SMALL)

    with open_sampler(url, space=SMALL) as sampler:
        sampler.restore(trials)
        assert len(ask_all(sampler)) == 1
    with pytest.raises(LedgerError, match=r"'s' in .* was made for another search space"):
        open_sampler(url)
    assert [one.name for one in path.parent.iterdir()] == ["study.db"]


@pytest.mark.parametrize(
    "url", ["", "nonsense", "postgresql+nothing://h/db", "sqlite:////none/such/study.db"]
)
def test_a_storage_that_cannot_serve_is_an_error_of_ours(url):
    with pytest.raises(LedgerError, match="cannot use the Optuna storage"):
        open_sampler(url)


@pytest.mark.parametrize("name", ["a b", "what?x=1", "100%25", "a#b", "a:b@c", "tp=1"])
def test_a_run_directory_may_have_any_name(path, name):
    directory = path.parent / name
    directory.mkdir()

    with open_sampler(directory / "study.db", space=SMALL) as sampler:
        sampler.tell(trial_of(sampler.ask()))

    assert [one.name for one in directory.iterdir()] == ["study.db"]
    assert [one.name for one in path.parent.iterdir()] == [name]


def test_a_legal_set_of_one_is_asked_for_once(path):
    alone = space_of(candidate())

    with open_sampler(path, space=alone) as sampler:
        assert ask_all(sampler) == [candidate().key]


def test_a_stopped_trial_does_not_stand_for_the_one_that_the_ledger_holds(path):
    with open_sampler(path) as ended:
        lost = ended.ask()
    with open_sampler(path) as second:
        second.restore([])
    trials = [trial_of(lost, measured(step_s=2.5))]

    asked, kept = heal(path, trials)

    assert_whole(trials, asked, kept)


def test_the_best_predicted_come_after_the_baseline(path):
    seeds = [SPACE.candidates[5], SPACE.candidates[1]]
    with open_sampler(path, baseline=BASELINE) as sampler:
        sampler.seed(seeds)
        assert ask_all(sampler, at_most=3) == [BASELINE.key, *(one.key for one in seeds)]
        assert len(set(ask_all(sampler))) == len(SPACE.candidates) - 3


def test_a_seed_that_was_tried_or_is_not_wanted_is_passed_over(path):
    first, second = SPACE.candidates[5], SPACE.candidates[1]
    with open_sampler(path, baseline=BASELINE) as sampler:
        sampler.restore([trial_of(BASELINE), trial_of(first, number=1)])
        sampler.seed([first, second])
        other = SPACE.candidates[2]
        assert sampler.ask(among={other.key}) == other
        assert sampler.ask() == second


@pytest.mark.parametrize("name", [SamplerName.RANDOM, SamplerName.BRUTE_FORCE])
def test_what_tpe_is_compared_with_is_not_seeded(path, name):
    orders = []
    for seeds in ((), SPACE.candidates[-3:]):
        with open_sampler(IN_MEMORY, name=name) as sampler:
            sampler.seed(seeds)
            orders.append(ask_all(sampler))
    assert orders[0] == orders[1]
