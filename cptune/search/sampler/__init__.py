"""The only door to Optuna: ask and tell over the legal set, kept in a study people can look at.

The Parquet ledger is the truth and the study an index of it: `OptunaSampler` rebuilds a study that
is lost, foreign or behind from the trials it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Self

import optuna
from optuna.trial import FrozenTrial, TrialState

from cptune.domain.candidate import Candidate
from cptune.domain.outcome import OutcomeKind
from cptune.domain.study import SamplerName, SearchSettings
from cptune.domain.trial import Predicted, Trial
from cptune.errors import SpecError
from cptune.search.guide import Guide
from cptune.search.sampler.journal import JournalFile
from cptune.search.sampler.legal_set import LegalSetSampler, inner_sampler
from cptune.search.sampler.study import (
    Place,
    begin_anew,
    check_storage,
    kept_in_storage,
    open_study,
)
from cptune.search.space import SearchSpace
from cptune.search.telling import attributes_of, constraints_of, is_infeasible

__all__ = ["JournalFile", "LegalSetSampler", "OptunaSampler", "check_storage"]


class OptunaSampler:
    """Ask and tell over the legal set, in a study inside the run directory or at a given URL.

    Args:
        space: The legal set.
        settings: The sampler's name and seed.
        study_name: The name of the study; the run's own name.
        storage: A SQLAlchemy URL, the path of a SQLite file, or a journal file; None: in memory.
        baseline: The candidate asked for first; None: whom the sampler likes.

    Raises:
        LedgerError: when the storage cannot be opened.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        settings: SearchSettings,
        study_name: str,
        storage: Place,
        baseline: Candidate | None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._candidates = {candidate.key: candidate for candidate in space.candidates}
        self._space, self._settings = space, settings
        self._legal = LegalSetSampler(inner_sampler(settings), space)
        self._guide = self._guided({}) if settings.sampler is SamplerName.GP else None
        self._firsts: tuple[str, ...] = () if baseline is None else (baseline.key,)
        self._asked: dict[str, optuna.Trial] = {}
        self._told: dict[str, Trial] = {}
        self._study = open_study(study_name, storage, self._legal)

    @kept_in_storage()
    def ask(self, *, among: Collection[str] | None = None) -> Candidate | None:
        """The next candidate; None when every one (of `among`) was tried."""
        taken = self._told.keys() | self._asked.keys()
        untried = [key for key in self._candidates if key not in taken]
        wanted = [key for key in untried if among is None or key in among]
        if not wanted:
            return None
        firsts = [key for key in self._firsts if key in wanted]
        self._legal.open_keys = firsts[:1] or self._open(wanted)
        trial = self._study.ask(fixed_distributions=self._legal.distributions)
        key = next(key for key in wanted if self._legal.params[key] == trial.params)
        trial.set_user_attr("candidate_key", key)
        self._asked[key] = trial
        return self._candidates[key]

    def _open(self, wanted: list[str]) -> list[str]:
        """Whom Optuna may choose from: all, or the one that the guide names."""
        if self._guide is None:
            assert self._settings.sampler is not SamplerName.RESIDUAL_GP, "it is led, or it is none"
            return wanted
        return [self._guide.choose(wanted, self._told)]

    def seed(self, candidates: Iterable[Candidate]) -> None:
        """Ask for these first, in this order, after the baseline.

        Only TPE is led so: the others are what it is compared with.
        """
        if self._settings.sampler is SamplerName.TPE:
            self._firsts = (*self._firsts, *(candidate.key for candidate in candidates))

    def lead(self, predict: Callable[[Candidate], Predicted], *, room_bytes: int) -> None:
        """Say what is expected of each candidate, which the residual process corrects.

        Args:
            predict: Asked once of every candidate, and only for that sampler.
            room_bytes: What a peak may come to; 0: not known.
        """
        if self._settings.sampler is SamplerName.RESIDUAL_GP:
            said = {key: predict(one) for key, one in self._candidates.items()}
            self._guide = self._guided(said, room_bytes=room_bytes)

    def _guided(self, predicted: Mapping[str, Predicted], *, room_bytes: int = 0) -> Guide:
        seed = self._settings.seed
        return Guide(self._space, seed=seed, predicted=predicted, room_bytes=room_bytes)

    @kept_in_storage()
    def tell(self, trial: Trial) -> None:
        """Take the last attempt of a candidate that was asked for."""
        key = trial.candidate.key
        self._finish(self._asked.pop(key), trial)
        self._told[key] = trial

    def refuse_trials(self) -> None:
        """Refuse a study that an earlier run of this name left in a storage of its own.

        Raises:
            SpecError: when the study holds trials.
        """
        count = len(self._study.get_trials(deepcopy=False))
        if count:
            raise SpecError(
                f"storage.study | study {self._study.study_name!r} holds {count} trials already",
                hint="give the run another name, or --resume in the run directory they belong to",
            )

    @kept_in_storage()
    def restore(self, trials: Sequence[Trial]) -> None:
        """Make the study agree with the ledger: nothing running, nothing missing, nothing twice."""
        latest = {trial.candidate.key: trial for trial in trials}
        if any(_is_unknown(frozen, latest) for frozen in self._study.get_trials(deepcopy=False)):
            self._study = begin_anew(self._study, self._legal)
        known: set[str] = set()
        for frozen in self._study.get_trials(deepcopy=False):
            key = frozen.user_attrs.get("candidate_key")
            if frozen.state is TrialState.RUNNING:
                live = optuna.Trial(self._study, frozen._trial_id)
                if key in latest:
                    self._finish(live, latest[key])
                else:
                    live.set_user_attr("outcome", OutcomeKind.STOPPED.value)
                    self._study.tell(live, state=TrialState.FAIL)
                    continue
            if frozen.user_attrs.get("outcome") != OutcomeKind.STOPPED.value:
                known.add(str(key))
        for key in latest.keys() & self._candidates.keys() - known:
            self._add(latest[key])
        self._told |= latest

    def close(self) -> None:
        """Let go of the storage's connections."""
        self._study._storage.remove_session()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _finish(self, live: optuna.Trial, trial: Trial) -> None:
        for name, value in attributes_of(trial).items():
            live.set_user_attr(name, value)
        constraints = constraints_of(trial)
        known = live.constraints  # a crash may have left some, and a second value is ignored
        for name, value in constraints.items():
            if name not in known:
                live.set_constraint(name, value)
        # optuna-dashboard 0.21 reads the list that Optuna 4 wrote, not the keys of Optuna 5.
        self._study._storage.set_trial_system_attr(
            live._trial_id, "constraints", list(constraints.values())
        )
        state, value = _state(trial)
        self._study.tell(live, value, state=state)

    def _add(self, trial: Trial) -> None:
        state, value = _state(trial)
        self._study.add_trial(
            optuna.create_trial(
                state=state,
                value=value,
                params=self._legal.params[trial.candidate.key],
                distributions=self._legal.distributions,
                user_attrs=attributes_of(trial),
                system_attrs={"constraints": list(constraints_of(trial).values())},
                constraints=constraints_of(trial),
            )
        )


def _is_unknown(frozen: FrozenTrial, latest: Mapping[str, Trial]) -> bool:
    """Whether the study holds as finished what the ledger does not: a row that was lost since."""
    outcome = frozen.user_attrs.get("outcome")
    finished = frozen.state.is_finished() and outcome != OutcomeKind.STOPPED.value
    return finished and frozen.user_attrs.get("candidate_key") not in latest


def _state(trial: Trial) -> tuple[TrialState, float | None]:
    if trial.measurement is not None:
        return TrialState.COMPLETE, trial.measurement.step_s
    # A pruned trial with a violated constraint is one the samplers learn from; a failed one is not.
    return (TrialState.PRUNED if is_infeasible(trial) else TrialState.FAIL), None
