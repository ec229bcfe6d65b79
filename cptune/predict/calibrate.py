"""Residuals of finished trials move the rates and narrow the band; never without a new version.

Time is corrected apart for compute and for exposed communication, since a link and a kernel err
for different reasons. Corrections are shrunk towards none while trials are few, and the band is
conformal: it never becomes wider than the model's own, and narrows from eight trials on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, fsum, log

_SHRINK = 2.0  # trials' worth of belief in the uncalibrated model
_CONFORMAL_TRIALS = 8
_COVERAGE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """What was predicted of one trial, uncalibrated, and what it measured."""

    predicted_compute_s: float
    measured_compute_s: float
    predicted_exposed_s: float
    measured_exposed_s: float
    predicted_peak_bytes: float
    measured_peak_bytes: float


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


def calibrate(residuals: Sequence[Residual]) -> Calibration:
    """Learn factors from finished trials; the same trials give the same version.

    Raises:
        ValueError: when a prediction or a measurement is not above zero.
    """
    if not residuals:
        return UNCALIBRATED
    compute = [(one.measured_compute_s, one.predicted_compute_s) for one in residuals]
    peak = [(one.measured_peak_bytes, one.predicted_peak_bytes) for one in residuals]
    for measured, predicted in (*compute, *peak):
        if not (measured > 0 and predicted > 0):
            raise ValueError(
                f"measured {measured:g} and predicted {predicted:g}; wanted both above 0"
            )
    exposed = [
        (one.measured_exposed_s, one.predicted_exposed_s)
        for one in residuals
        if one.measured_exposed_s > 0 and one.predicted_exposed_s > 0
    ]
    peak_factor = _factor(peak)
    spread = [abs(log(measured / predicted / peak_factor)) for measured, predicted in peak]
    digest = hashlib.sha256(repr([*compute, *exposed, *peak]).encode()).hexdigest()[:8]
    return Calibration(
        version=f"{len(residuals)}trials.{digest}",
        trials=len(residuals),
        compute_factor=_factor(compute),
        exposed_factor=_factor(exposed),
        peak_factor=peak_factor,
        peak_ratio=_conformal_ratio(spread),
    )


def _factor(pairs: Sequence[tuple[float, float]]) -> float:
    """The geometric mean of measured over predicted, shrunk towards one."""
    return exp(fsum(log(seen / said) for seen, said in pairs) / (len(pairs) + _SHRINK))


def _conformal_ratio(spread: Sequence[float]) -> float | None:
    """The ratio that covers a further trial with 95%, from eight trials on."""
    if len(spread) < _CONFORMAL_TRIALS:
        return None
    rank = min(len(spread), ceil((len(spread) + 1) * _COVERAGE))
    return exp(sorted(spread)[rank - 1])
