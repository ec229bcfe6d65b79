"""The slowest and the fastest of many rows, from the moments of one and the longest documents."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cptune.balance.histogram import Histogram
from cptune.balance.work import Work

_POINTS = 4096  # of a distribution function
_CUTS = 512  # of a row


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMoments:
    """The work of a row: what never varies, and mean and variance of the pairs."""

    row_tokens: int
    fixed: float
    pairs_mean: float
    pairs_variance: float
    most_pairs: float  # one document fills the row


def without_rare(histogram: Histogram, row_tokens: int) -> Histogram:
    """The documents short enough that half of all rows hold none that is longer."""
    per_row = row_tokens / histogram.mean_tokens
    return histogram.up_to(histogram.quantile(max(0.5, 0.5 ** (1 / per_row))))


def beta_extremes(moments: RowMoments, count: float) -> tuple[float, float]:
    """Expected smallest and largest pairs of so many independent rows, beta-distributed.

    E[min] is the integral of (1-F)^n and E[max] that of 1-F^n, here over the logit of the share of
    `most_pairs`, in which neither end is crowded.
    """
    share = moments.pairs_mean / moments.most_pairs
    spread = moments.pairs_variance / moments.most_pairs**2
    rest = share * (1 - share)
    if spread <= 1e-18 or spread >= rest:
        return moments.pairs_mean, moments.pairs_mean if spread < rest else moments.most_pairs
    alpha, beta = (one * (rest / spread - 1) for one in (share, 1 - share))
    reach = min(40.0, 12 * math.sqrt(spread) / rest)
    logit = math.log(share / (1 - share)) + np.linspace(-reach, reach, _POINTS)
    log_x, log_rest = -np.logaddexp(0.0, -logit), -np.logaddexp(0.0, logit)
    density = np.exp((height := alpha * log_x + beta * log_rest) - height.max())
    below = np.cumsum(density) / density.sum()
    x = np.exp(log_x)
    smallest = x[0] + np.trapezoid((1 - below) ** count, x)
    largest = x[-1] - np.trapezoid(below**count, x)
    return float(smallest) * moments.most_pairs, float(largest) * moments.most_pairs


def one_document_pairs(
    histogram: Histogram, *, light: RowMoments, groups: int, work: Work
) -> float:
    """Expected pairs of the row with the longest piece of a step, the rest of it being `light`.

    A row of R tokens holds on average ((R-x) P(L>x) + E[(L-x)+]) / E[L] pieces longer than x: of
    documents that begin in it, and of the one that reaches into it. Such pieces are rare, so none
    is in any row with probability exp(-groups * that).
    """
    lengths, shares = histogram.points()
    cuts = np.linspace(0.0, light.row_tokens, _CUTS + 1)
    longer = np.array([shares[lengths > cut].sum() for cut in cuts])
    beyond = np.array([(np.maximum(lengths - cut, 0.0) * shares).sum() for cut in cuts])
    pieces = ((light.row_tokens - cuts) * longer + beyond) / (lengths * shares).sum()
    none_longer = np.exp(-groups * pieces)
    chance = np.append(np.diff(none_longer), 1.0 - none_longer[-1])
    longest = np.append((cuts[:-1] + cuts[1:]) / 2, light.row_tokens)
    rest = light.pairs_mean * (1 - longest / light.row_tokens)
    pairs = work.pairs(longest) + rest
    return float((pairs * chance).sum() / chance.sum())
