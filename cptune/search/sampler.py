"""The only door to Optuna: ask and tell over the legal set, kept in a study people can look at.

The Parquet ledger is the truth and the study an index of it: `OptunaSampler` rebuilds a study that
is lost, foreign or behind from the trials it is given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Self

import optuna
import sqlalchemy
import sqlalchemy.exc
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import URL

from cptune.domain.candidate import Candidate
from cptune.domain.outcome import OutcomeKind
from cptune.domain.study import SamplerName, SearchSettings
from cptune.domain.trial import Trial
from cptune.errors import LedgerError, SpecError
from cptune.search.space import SearchSpace
from cptune.search.telling import attributes_of, constraints_of, is_infeasible

_STARTUP_TRIALS = 4  # TPE proposes at random before it has this many trials to learn from
_PROPOSALS = 16  # tries of the inner sampler before the nearest untried candidate is taken
_ALWAYS_SHOWN = ("tp", "cp", "dp")
_SPACE_ATTR = "cptune_space"
_BROKEN = (optuna.exceptions.OptunaError, sqlalchemy.exc.SQLAlchemyError, ImportError)  # driver


class LegalSetSampler(BaseSampler):
    """Lets any Optuna sampler search a legal set without illegal or repeated proposals.

    Args:
        inner: Who proposes; None walks the legal set in its own order.
        space: The legal set.
    """

    def __init__(self, inner: BaseSampler | None, space: SearchSpace) -> None:
        self._inner = inner
        self._axes = _searched_axes(space)
        self.params = {
            candidate.key: {name: candidate.axes()[name] for name in self._axes}
            for candidate in space.candidates
        }
        self.distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(_values(space, name)) for name in self._axes
        }
        self.open_keys: list[str] = list(self.params)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All searched axes: each proposal is one whole candidate."""
        return self.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of an open candidate: proposed as such, or the nearest to a proposal."""
        if self._inner is None or len(self.open_keys) == 1:
            return dict(self.params[self.open_keys[0]])
        open_params = [self.params[key] for key in self.open_keys]
        proposal: dict[str, Any] = {}
        for _ in range(_PROPOSALS):
            proposal = self._propose(study, trial, search_space)
            if proposal in open_params:
                return proposal
        return dict(min(open_params, key=lambda params: _distance(params, proposal)))

    def _propose(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        assert self._inner is not None, "only called when there is an inner sampler"
        proposal = dict(self._inner.sample_relative(study, trial, search_space))
        for name, distribution in search_space.items():
            if name not in proposal:
                proposal[name] = self._inner.sample_independent(study, trial, name, distribution)
        return proposal

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> object:
        """Never needed: every axis is part of the relative search space."""
        raise AssertionError(f"{param_name} is outside the search space {self._axes}")


def check_storage(url: str) -> None:
    """Refuse a storage URL that no installed driver can serve; nothing is connected.

    Raises:
        SpecError: naming the URL without its password.
    """
    try:
        sqlalchemy.create_engine(url).dispose()
    except (sqlalchemy.exc.ArgumentError, ImportError) as exc:
        raise SpecError(
            f"storage.study | {exc}",
            hint='wanted "sqlite" (in the run directory) or a SQLAlchemy URL; PostgreSQL needs '
            "the extra cptune[postgres]",
        ) from exc


class OptunaSampler:
    """Ask and tell over the legal set, in a SQLite study inside the run directory or a given URL.

    Args:
        space: The legal set.
        settings: The sampler's name and seed.
        study_name: The name of the study; the run's own name.
        storage: A SQLAlchemy URL, or the path of a SQLite file.
        baseline: The candidate asked for first.

    Raises:
        LedgerError: when the storage cannot be opened.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        settings: SearchSettings,
        study_name: str,
        storage: Path | str,
        baseline: Candidate,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._candidates = {candidate.key: candidate for candidate in space.candidates}
        self._baseline = baseline
        self._legal = LegalSetSampler(_inner(settings), space)
        self._asked: dict[str, optuna.Trial] = {}
        self._done: set[str] = set()
        self._study = _open_study(study_name, storage, self._legal)

    def ask(self, *, among: Collection[str] | None = None) -> Candidate | None:
        """The next candidate; None when every one (of `among`) was tried."""
        taken = self._done | self._asked.keys()
        untried = [key for key in self._candidates if key not in taken]
        wanted = [key for key in untried if among is None or key in among]
        if not wanted:
            return None
        self._legal.open_keys = [self._baseline.key] if self._baseline.key in wanted else wanted
        trial = self._study.ask(fixed_distributions=self._legal.distributions)
        key = next(key for key in wanted if self._legal.params[key] == trial.params)
        trial.set_user_attr("candidate_key", key)
        self._asked[key] = trial
        return self._candidates[key]

    def tell(self, trial: Trial) -> None:
        """Take the last attempt of a candidate that was asked for."""
        key = trial.candidate.key
        self._finish(self._asked.pop(key), trial)
        self._done.add(key)

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

    def restore(self, trials: Sequence[Trial]) -> None:
        """Make the study agree with the ledger: nothing running, nothing missing, nothing twice."""
        latest = {trial.candidate.key: trial for trial in trials}
        if any(_is_unknown(frozen, latest) for frozen in self._study.get_trials(deepcopy=False)):
            self._study = _begin_anew(self._study, self._legal)
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
        self._done |= latest.keys()

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
        for name, value in constraints.items():
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


def _inner(settings: SearchSettings) -> BaseSampler | None:
    match settings.sampler:
        case SamplerName.TPE:
            return TPESampler(
                seed=settings.seed, n_startup_trials=_STARTUP_TRIALS, constant_liar=False
            )
        case SamplerName.RANDOM:
            return RandomSampler(seed=settings.seed)
        case SamplerName.BRUTE_FORCE:
            return None


def _searched_axes(space: SearchSpace) -> list[str]:
    rows = [candidate.axes() for candidate in space.candidates]
    return [
        name for name in rows[0] if name in _ALWAYS_SHOWN or len({row[name] for row in rows}) > 1
    ]


def _values(space: SearchSpace, name: str) -> list[int | str]:
    seen = {candidate.axes()[name] for candidate in space.candidates}
    return sorted(seen, key=lambda value: (isinstance(value, str), value))


def _distance(params: Mapping[str, object], proposal: Mapping[str, object]) -> int:
    return sum(params[name] != proposal[name] for name in params)


def _is_unknown(frozen: FrozenTrial, latest: Mapping[str, Trial]) -> bool:
    """Whether the study holds as finished what the ledger does not: a row that was lost since."""
    outcome = frozen.user_attrs.get("outcome")
    finished = frozen.state.is_finished() and outcome != OutcomeKind.STOPPED.value
    return finished and frozen.user_attrs.get("candidate_key") not in latest


def _begin_anew(study: optuna.Study, sampler: LegalSetSampler) -> optuna.Study:
    """An empty study in the place of one that cannot be mended: finished trials are fixed."""
    storage, name = study._storage, study.study_name
    attributes = study.user_attrs
    optuna.delete_study(study_name=name, storage=storage)
    fresh = optuna.create_study(
        study_name=name, storage=storage, sampler=sampler, direction="minimize"
    )
    for key, value in attributes.items():
        fresh.set_user_attr(key, value)
    return fresh


def _state(trial: Trial) -> tuple[TrialState, float | None]:
    if trial.measurement is not None:
        return TrialState.COMPLETE, trial.measurement.step_s
    # A pruned trial with a violated constraint is one the samplers learn from; a failed one is not.
    return (TrialState.PRUNED if is_infeasible(trial) else TrialState.FAIL), None


def _open_study(name: str, storage: Path | str, sampler: LegalSetSampler) -> optuna.Study:
    """Open or create the study; a SQLite file that cannot serve is set aside, never deleted."""
    space = repr(sorted((key, str(value)) for key, value in sampler.distributions.items()))
    url = _sqlite_url(storage) if isinstance(storage, Path) else storage
    try:
        study = _create(name, url, sampler)
        if study.user_attrs.get(_SPACE_ATTR, space) != space:
            raise LedgerError(f"study {name!r} in {storage} was made for another search space")
    except (LedgerError, *_BROKEN) as exc:
        if not isinstance(storage, Path):
            raise LedgerError(f"cannot use the Optuna storage: {exc}") from exc
        _set_aside(storage)
        study = _create(name, url, sampler)
    study.set_user_attr(_SPACE_ATTR, space)
    return study


def _sqlite_url(path: Path) -> str:
    """Quoted, since a path may hold '?' or '%'."""
    return URL.create("sqlite", database=str(path)).render_as_string()


def _create(name: str, url: str, sampler: LegalSetSampler) -> optuna.Study:
    return optuna.create_study(
        study_name=name, storage=url, sampler=sampler, direction="minimize", load_if_exists=True
    )


def _set_aside(path: Path) -> None:
    names = (path.with_name(f"{path.name}.aside-{number}") for number in count(1))
    if path.exists():
        path.rename(next(name for name in names if not name.exists()))
