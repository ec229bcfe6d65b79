"""An exact Gaussian process over the few points of a search, in numpy alone.

Formulas are those of Rasmussen and Williams, Gaussian Processes for Machine Learning (2006): the
posterior and the evidence by Cholesky factors (algorithm 2.1), the Matern kernel of 5/2 (4.17). The
cost of n known and m asked points is n^3 + n*n*m, a grid of kernels more; n is at most the trials
of a sweep, so a few hundred.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import erf, exp, pi, sqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Reals: TypeAlias = NDArray[np.float64]

#: Axes are in doublings, so a length of 2 says that layouts a factor of four apart are alike.
_LENGTHS = (1.0, 2.0, 4.0)
_SCALES = (0.1, 0.2, 0.4, 0.8, 1.6)
#: What is thought likely before there are trials: within a factor of four, with 95%.
_USUAL_LENGTH, _USUAL_SCALE, _SPREAD = 2.0, 0.2, 0.7
_NO_SHARE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A Matern kernel of 5/2, one offset that all points share, and the noise of one reading.

    All but `length` are standard deviations in the unit of the values.
    """

    length: float
    scale: float
    offset: float
    noise: float

    def covariance(self, a: Reals, b: Reals) -> Reals:
        """Of the values at some points (rows of a) and at others (rows of b), without noise."""
        apart = a[:, None, :] - b[None, :, :]
        r = np.sqrt(5.0 * np.sum(apart * apart, axis=2)) / self.length
        matern: Reals = (1.0 + r + r * r / 3.0) * np.exp(-r)
        return self.scale**2 * matern + self.offset**2


def posterior(kernel: Kernel, x: Reals, y: Reals, asked: Reals) -> tuple[Reals, Reals]:
    """Mean and standard deviation of the value, without noise, at the asked points.

    Args:
        kernel: Of the process, whose mean is zero.
        x: Known points, a row each; may be none.
        y: What was read there.
        asked: The points asked about, a row each.
    """
    prior = kernel.scale**2 + kernel.offset**2
    if not len(y):
        return np.zeros(len(asked)), np.full(len(asked), sqrt(prior))
    factor = _factor(kernel, x)
    weights = np.linalg.solve(factor.T, np.linalg.solve(factor, y))
    cross = kernel.covariance(x, asked)
    told = np.linalg.solve(factor, cross)
    left = np.maximum(prior - np.sum(told * told, axis=0), 0.0)
    return cross.T @ weights, np.sqrt(left)


def log_evidence(kernel: Kernel, x: Reals, y: Reals) -> float:
    """Log of the density that the process gives to what was read."""
    factor = _factor(kernel, x)
    whitened = np.linalg.solve(factor, y)
    volume = float(np.sum(np.log(np.diag(factor))))
    return -0.5 * float(whitened @ whitened) - volume - 0.5 * len(y) * float(np.log(2 * pi))


def fit_kernel(x: Reals, y: Reals, *, offset: float, noise: float) -> Kernel:
    """The likeliest kernel of a small grid, with a belief that decides while trials are few."""

    def likelihood(kernel: Kernel) -> float:
        odd = np.log(kernel.length / _USUAL_LENGTH), np.log(kernel.scale / _USUAL_SCALE)
        belief = -0.5 * sum(float(one / _SPREAD) ** 2 for one in odd)
        return log_evidence(kernel, x, y) + belief

    grid = (
        Kernel(length=length, scale=scale, offset=offset, noise=noise)
        for length, scale in product(_LENGTHS, _SCALES)
    )
    return max(grid, key=likelihood)


def normal_share(z: float) -> float:
    """The share of a standard normal below z."""
    return 0.5 * (1.0 + erf(z / sqrt(2.0)))


def mean_below(mean: float, sd: float, bound: float) -> float:
    """The mean of that part of a normal that lies below a bound; far above it, the bound."""
    z = (bound - mean) / sd
    share = normal_share(z)
    density = exp(-0.5 * z * z) / sqrt(2.0 * pi)
    return bound if share < _NO_SHARE else mean - sd * density / share


def expected_improvement(mean: float, sd: float, best: float) -> float:
    """By how much a normal value is expected to lie below `best`, counting above as none.

    Jones, Schonlau and Welch, J. Global Optimization 13 (1998), equation 15.
    """
    if sd <= 0.0:
        return max(0.0, best - mean)
    z = (best - mean) / sd
    density = exp(-0.5 * z * z) / sqrt(2.0 * pi)
    return max(0.0, (best - mean) * normal_share(z) + sd * density)


def _factor(kernel: Kernel, x: Reals) -> Reals:
    """The lower Cholesky factor of the covariance of readings."""
    noise = kernel.noise**2 * np.eye(len(x))
    return np.asarray(np.linalg.cholesky(kernel.covariance(x, x) + noise), dtype=np.float64)
