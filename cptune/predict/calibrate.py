"""Residuals of finished trials move the rates and narrow the band; never without a new version.

Time is corrected apart for compute and for exposed communication, since a link and a kernel err
for different reasons. A correction is the median over trials, so that one odd trial moves little,
and is shrunk towards none while they are few. The band is conformal: it never becomes wider than
the model's own, and narrows from eight trials on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, log
from statistics import median

_BELIEF = 2.0  # trials' worth of belief in the uncalibrated model
_CONFORMAL_TRIALS = 8
#: Exposed communication below this share of a predicted step says nothing of the links: what such
#: a trial waits for, as ranks that share a core do, goes with its compute.
_NEGLIGIBLE = 0.15
_COVERAGE = 0.95
#: A band never narrows to less: trials of one kind agree within 2% and say nothing of another kind,
#: and of 70 layouts with pipelines and recomputation nine in ten peak within 6% of what is likely.
_LEAST_RATIO = 1.06


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """What was predicted of one trial, uncalibrated, and what it measured; above zero."""

    predicted_compute_s: float
    measured_compute_s: float
    predicted_exposed_s: float
    measured_exposed_s: float
    predicted_peak_bytes: float
    measured_peak_bytes: float

    @property
    def tells_of_links(self) -> bool:
        """Is enough communication predicted that its measurement says something?"""
        predicted_s = self.predicted_compute_s + self.predicted_exposed_s
        return self.predicted_exposed_s > _NEGLIGIBLE * predicted_s

    @property
    def compute(self) -> tuple[float, float]:
        """Measured and predicted seconds of what is taken for compute."""
        waited_s = 0.0 if self.tells_of_links else self.measured_exposed_s
        return self.measured_compute_s + waited_s, self.predicted_compute_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Factors on the model's parts and what they were learnt from.

    `peak_ratio` bounds measured over calibrated peak, None while too few trials say so.
    """

    version: str = ""
    trials: int = 0
    compute_factor: float = 1.0
    exposed_factor: float = 1.0
    peak_factor: float = 1.0
    peak_ratio: float | None = None

    def model_version(self, base: str) -> str:
        """The version that is stored beside a prediction."""
        return f"{base}+{self.version}" if self.version else base

    def narrow(self, low: float, likely: float, high: float) -> tuple[float, float, float]:
        """A band of bytes around the calibrated likely peak, inside the one given."""
        centre = self.peak_factor * likely
        if self.peak_ratio is None:
            return min(low, centre), centre, max(high, centre)
        return max(low, centre / self.peak_ratio), centre, min(high, centre * self.peak_ratio)


#: The model as it ships.
UNCALIBRATED = Calibration()


def calibrate(residuals: Sequence[Residual], *, belief_trials: float = _BELIEF) -> Calibration:
    """Learn factors from finished trials; the same trials give the same version.

    Args:
        residuals: Of finished trials.
        belief_trials: How many trials the uncalibrated times are worth; 0 where the rates of the
            device are not known. Memory is counted rather than measured and always worth two.

    Raises:
        ValueError: when a prediction or a measurement is not above zero.
    """
    if not residuals:
        return UNCALIBRATED
    compute = [one.compute for one in residuals]
    peak = [(one.measured_peak_bytes, one.predicted_peak_bytes) for one in residuals]
    for measured, predicted in (*compute, *peak):
        if not (measured > 0 and predicted > 0):
            raise ValueError(
                f"measured {measured:g} and predicted {predicted:g}; wanted both above 0"
            )
    exposed = [
        (one.measured_exposed_s, one.predicted_exposed_s)
        for one in residuals
        if one.measured_exposed_s > 0 and one.tells_of_links
    ]
    peak_factor = _factor(peak, _BELIEF)
    spread = [abs(log(measured / predicted / peak_factor)) for measured, predicted in peak]
    digest = hashlib.sha256(repr([*compute, *exposed, *peak]).encode()).hexdigest()[:8]
    return Calibration(
        version=f"{len(residuals)}trials.{digest}",
        trials=len(residuals),
        compute_factor=_factor(compute, belief_trials),
        exposed_factor=_factor(exposed, belief_trials),
        peak_factor=peak_factor,
        peak_ratio=_conformal_ratio(spread),
    )


def _factor(pairs: Sequence[tuple[float, float]], belief_trials: float) -> float:
    """The median of measured over predicted, shrunk towards one; one without pairs."""
    if not pairs:
        return 1.0
    middle = median(log(seen / said) for seen, said in pairs)
    return exp(middle * len(pairs) / (len(pairs) + belief_trials))


def _conformal_ratio(spread: Sequence[float]) -> float | None:
    """The ratio that covers a further trial of the same kinds with 95%, from eight trials on."""
    if len(spread) < _CONFORMAL_TRIALS:
        return None
    rank = min(len(spread), ceil((len(spread) + 1) * _COVERAGE))
    return max(_LEAST_RATIO, exp(sorted(spread)[rank - 1]))
