"""A study in a journal: what a crash leaves in it is mended, what nobody can mend is rebuilt."""

import json
import time

import optuna
import pytest
from fakes import candidate, measured, space_of, trial_of
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from cptune.domain.study import SamplerName, SearchSettings, Storage
from cptune.errors import LedgerError
from cptune.search.sampler import JournalFile, OptunaSampler
from cptune.search.sampler.journal import open_journal

SPACE = space_of(*(candidate(tp=tp, dp=4 // tp) for tp in (1, 2, 4)))
RECORD = b'{"op_code":0,"worker_id":"w","study_name":"s","directions":[1]}\n'


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.journal"


def open_sampler(path):
    return OptunaSampler(
        SPACE,
        settings=SearchSettings(sampler=SamplerName.TPE),
        study_name="s",
        storage=JournalFile(path),
        baseline=SPACE.candidates[0],
    )


def run_two(path):
    """Ask for two candidates, tell both; the trials as a ledger keeps them."""
    trials = []
    with open_sampler(path) as sampler:
        for number in range(2):
            trial = trial_of(sampler.ask(), measured(step_s=1.0 + number), number=number)
            sampler.tell(trial)
            trials.append(trial)
    return trials


def stored(path):
    study = optuna.load_study(study_name="s", storage=open_journal(path))
    return {
        one.user_attrs["candidate_key"]: (one.state, one.value)
        for one in study.get_trials(deepcopy=False)
    }


def whole(trials):
    return {one.candidate.key: (TrialState.COMPLETE, one.measurement.step_s) for one in trials}


def resumed(path, trials):
    """What the study holds after a resume; the third candidate can still be tried."""
    with open_sampler(path) as sampler:
        sampler.restore(trials)
        third = sampler.ask()
        assert third.key not in whole(trials)
        sampler.tell(trial_of(third, measured(step_s=9.0), number=2))
        assert sampler.ask() is None
    return {key: told for key, told in stored(path).items() if key != third.key}


def test_a_study_is_asked_and_told_in_a_journal(path):
    trials = run_two(path)

    assert stored(path) == whole(trials)


@pytest.mark.parametrize("cut", [1, 7, 40, 400])
def test_a_torn_tail_is_cut_off_and_what_it_held_comes_from_the_ledger(path, cut):
    trials = run_two(path)
    path.write_bytes(path.read_bytes()[:-cut])

    assert resumed(path, trials) == whole(trials)
    assert [one.name for one in path.parent.iterdir()] == [path.name]  # mended, not set aside


def test_optuna_alone_would_glue_its_record_to_the_torn_line(path):
    run_two(path)
    path.write_bytes(path.read_bytes()[:-7])
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))

    with pytest.raises((ValueError, AttributeError, KeyError)):
        optuna.load_study(study_name="s", storage=storage).ask()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"\x00\xff garbage\n" + data,
        lambda data: data[: len(data) // 2] + b"\n{}\n" + data[len(data) // 2 :],
        lambda data: data.replace(b'"op_code":4', b'"op_code":77', 1),
        lambda data: b"\n".join(data.split(b"\n")[1:]),
        lambda data: b"[" * 100_000 + b"\n",
        lambda data: RECORD.replace(b'"directions":[1],', b"").replace(b"s}", b"s}"),
    ],
)
def test_garbage_is_set_aside_and_the_study_rebuilt_from_the_ledger(path, damage):
    trials = run_two(path)
    path.write_bytes(damage(path.read_bytes()))

    assert resumed(path, trials) == whole(trials)


def test_an_empty_journal_and_one_of_half_a_line_are_new_studies(path):
    for data in (b"", RECORD[:20]):
        path.write_bytes(data)
        with open_sampler(path) as sampler:
            sampler.refuse_trials()
            assert sampler.ask() == SPACE.candidates[0]


def test_the_lock_of_a_killed_driver_does_not_block(path):
    trials = run_two(path)
    for name in (".lock", ".lock4242.rename"):
        path.with_name(path.name + name).touch()

    began = time.monotonic()
    assert resumed(path, trials) == whole(trials)
    assert time.monotonic() - began < JournalLockGrace  # Optuna waits so long
    assert [one.name for one in path.parent.iterdir()] == [path.name]


JournalLockGrace = 30


def test_a_journal_that_is_no_file_is_an_error_that_names_it(path):
    path.mkdir()

    with pytest.raises(LedgerError, match=r"cannot use the journal .*study\.journal"):
        open_journal(path)


def test_a_study_that_somebody_deleted_is_an_error_with_what_to_do(path):
    with open_sampler(path) as sampler:
        optuna.delete_study(study_name="s", storage=open_journal(path))

        with pytest.raises(LedgerError, match="storage was lost") as caught:
            sampler.ask()

    assert "--resume" in caught.value.hint


def test_every_line_of_the_journal_is_a_record_of_optuna(path):
    run_two(path)

    codes = {json.loads(line)["op_code"] for line in path.read_text().splitlines()}
    assert codes <= {int(one) for one in optuna.storages.journal._storage.JournalOperation}


def test_the_contract_spells_it_in_two_words():
    for word in ("journal", "journal file"):
        assert (Storage(study=word).is_journal, Storage(study=word).file_name) == (
            True,
            "study.journal",
        )
    assert (Storage().file_name, Storage(study="postgresql://x").file_name) == ("study.db", None)
