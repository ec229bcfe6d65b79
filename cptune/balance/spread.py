"""How unequal the groups of a step are, averaged over steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from cptune.balance.work import Reals


class Layers(StrEnum):
    """Which layers a figure is of: all of one kind, or the mean layer of a model with both."""

    FULL = "full"
    WINDOW = "window"
    MIXTURE = "mixture"


class Source(StrEnum):
    """Where a figure comes from."""

    THEORY = "theory"
    SIMULATED = "simulated"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The spread of one rank's attention time over the data-parallel groups of a step.

    Time is that of the slowest rank of a group: in pairs where it is counted, in seconds where it
    is measured. Each figure is the mean over steps of its value within a step; `variance` divides
    by the number of groups, and `mean` is over all ranks, so that `slowest_over_mean` tells what a
    step would gain if every rank were as busy as any other.
    """

    mean: float
    variance: float
    cv: float
    max_over_min: float
    slowest_over_mean: float

    @property
    def slowest(self) -> float:
        """The time that a step waits for."""
        return self.mean * self.slowest_over_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadRow:
    """One line of the result."""

    dp: int
    cp: int
    packing: str
    cv: float
    variance: float
    variance_ratio_to_cp1: float | None  # None where only CP=1 is even
    max_over_min: float
    slowest_over_mean: float
    source: Source
    layers: Layers = Layers.FULL


class SpreadMeter:
    """Averages steps one after the other."""

    def __init__(self) -> None:
        self._sums = np.zeros(5)
        self.steps = 0

    def add(self, times: Reals, *, even: Reals | None = None) -> None:
        """Take steps: one line a step, one column a group; every time above 0.

        Args:
            times: Of the slowest rank of each group.
            even: Mean over all ranks of each step; where omitted, the ranks of a group are even.
        """
        mean, variance = times.mean(axis=1), times.var(axis=1)
        slowest, fastest = times.max(axis=1), times.min(axis=1)
        even = mean if even is None else even
        figures = (even, variance, np.sqrt(variance) / mean, slowest / fastest, slowest / even)
        self._sums += np.array([one.sum() for one in figures])
        self.steps += len(times)

    def spread(self) -> Spread:
        """The average so far."""
        mean, variance, cv, max_over_min, slowest_over_mean = (
            float(one) for one in self._sums / self.steps
        )
        return Spread(
            mean=mean,
            variance=variance,
            cv=cv,
            max_over_min=max_over_min,
            slowest_over_mean=slowest_over_mean,
        )


def build_row(
    spread: Spread, *, base: Spread, cp: int, dp: int, packing: str, source: Source
) -> SpreadRow:
    """The line of a spread; `base` is the same at CP=1."""
    return SpreadRow(
        dp=dp,
        cp=cp,
        packing=packing,
        cv=spread.cv,
        variance=spread.variance,
        variance_ratio_to_cp1=_ratio(spread, base),
        max_over_min=spread.max_over_min,
        slowest_over_mean=spread.slowest_over_mean,
        source=source,
    )


def _ratio(spread: Spread, base: Spread) -> float | None:
    if not _is_even(base):
        return spread.variance / base.variance
    return 1.0 if _is_even(spread) else None


def _is_even(spread: Spread) -> bool:
    return spread.variance <= (1e-9 * spread.mean) ** 2


def fit_exponent(cps: list[int], variances: list[float]) -> float:
    """The slope of ln variance against ln CP: -1 where the 1/CP law holds."""
    return float(np.polyfit(np.log(cps), np.log(variances), 1)[0])
