"""Any Optuna sampler over a legal set: no illegal and no repeated proposal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial

from cptune.domain.study import SamplerName, SearchSettings
from cptune.search.space import SearchSpace

_STARTUP_TRIALS = 4  # TPE proposes at random before it has this many trials to learn from
_PROPOSALS = 16  # tries of the inner sampler before the nearest untried candidate is taken
_ALWAYS_SHOWN = ("tp", "cp", "dp")


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


def inner_sampler(settings: SearchSettings) -> BaseSampler | None:
    """Optuna's sampler of that name; None where the order is the legal set's, or a guide's."""
    match settings.sampler:
        case SamplerName.TPE:
            return TPESampler(
                seed=settings.seed, n_startup_trials=_STARTUP_TRIALS, constant_liar=False
            )
        case SamplerName.RANDOM:
            return RandomSampler(seed=settings.seed)
        case SamplerName.BRUTE_FORCE | SamplerName.GP | SamplerName.RESIDUAL_GP:
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
