"""What sequential packing comes to without drawing a single document.

Documents are independent, so the stream is a renewal process and a row is a window on it. The
moments of a row's work follow from one recurrence over its length; the 1/CP law is their limit for
rows much longer than any document (W. L. Smith, "Regenerative stochastic processes", Proc. R. Soc.
A 232, 1955: the variance of a cumulative process grows linearly).
"""

from __future__ import annotations

import math

import numpy as np

from cptune.balance.extremes import RowMoments, beta_extremes, one_document_pairs, without_rare
from cptune.balance.histogram import Histogram
from cptune.balance.simulate import Setting
from cptune.balance.spread import Spread
from cptune.balance.work import Reals, Work

_CELLS = 1024  # of a row; the recurrence is quadratic in them


def row_moments(histogram: Histogram, *, row_tokens: int, work: Work) -> RowMoments:
    """Mean and variance of the pairs in a row of the stream.

    With F the lengths, c the pairs of a piece and M the moments of a row that begins with a
    document: M1(x) = E[min(L,x) costs; + M1(x-L) where L < x], and alike for the square; the first
    piece of a row has the residual length of density (1-F)/E[L]. On a grid of `_CELLS` cells, each
    length shared between two neighbours so that its mean is kept.
    """
    near = min(row_tokens, int(_CELLS * histogram.mean_tokens / 4))
    far = near < row_tokens and 4 * histogram.max_tokens <= near
    held = near if far else row_tokens
    mean, variance = _pair_moments(histogram, row_tokens=held, work=work)
    if far:  # beyond, both grow by what each token adds, and the grid would be coarse
        per_token, variance_per_token = _per_token(histogram, work)
        mean += per_token * (row_tokens - held)
        variance += variance_per_token * (row_tokens - held)
    most = work.pairs(np.array([float(row_tokens)]))
    return RowMoments(
        row_tokens=row_tokens,
        fixed=work.token_keys * row_tokens,
        pairs_mean=mean,
        pairs_variance=max(0.0, variance),
        most_pairs=float(most[0]),
    )


def _pair_moments(histogram: Histogram, *, row_tokens: int, work: Work) -> tuple[float, float]:
    pairs = work.pairs
    cells = min(row_tokens, _CELLS)
    size = row_tokens / cells
    lengths, shares = histogram.points()
    edges = np.arange(cells + 1, dtype=np.float64) * size
    at_edge = pairs(edges)
    inside = lengths < row_tokens
    mass = [
        _on_grid(lengths[inside] / size, shares[inside] * pairs(lengths[inside]) ** power, cells)
        for power in range(3)
    ]
    first, second = _from_start(mass, at_edge)
    spans = np.array([(np.minimum(lengths, edge) * shares).sum() for edge in edges])
    head = np.diff(spans) / (lengths * shares).sum()  # the residual ends in this cell
    whole = 1.0 - head.sum()  # one document covers the row
    rest = np.arange(cells)[::-1]
    next_first = (first[rest] + first[rest + 1]) / 2
    next_second = (second[rest] + second[rest + 1]) / 2
    cost = pairs((edges[:-1] + edges[1:]) / 2)
    mean = (head * (cost + next_first)).sum() + whole * at_edge[-1]
    square = (head * (cost**2 + 2 * cost * next_first + next_second)).sum()
    square += whole * at_edge[-1] ** 2
    return float(mean), float(square - mean**2)


def _on_grid(positions: Reals, weights: Reals, cells: int) -> Reals:
    lower = np.floor(positions).astype(np.int64)
    upper_share = positions - lower
    grid = np.zeros(cells + 1)
    np.add.at(grid, lower, weights * (1 - upper_share))
    np.add.at(grid, lower + 1, weights * upper_share)
    return grid


def _from_start(mass: list[Reals], at_edge: Reals) -> tuple[Reals, Reals]:
    """First and second moment of rows of 0..cells cells that begin with a document."""
    count, cost, square = mass
    cut = 1.0 - np.cumsum(count)  # longer than the row
    first, second = np.zeros_like(at_edge), np.zeros_like(at_edge)
    own = 1.0 - count[0]
    costs, squares = np.cumsum(cost), np.cumsum(square)
    for x in range(1, len(at_edge)):
        past, past_square = first[x - 1 :: -1], second[x - 1 :: -1]
        first[x] = (costs[x] + count[1 : x + 1] @ past + cut[x] * at_edge[x]) / own
        crossed = 2 * (cost[1 : x + 1] @ past + cost[0] * first[x])
        later = count[1 : x + 1] @ past_square
        second[x] = (squares[x] + crossed + later + cut[x] * at_edge[x] ** 2) / own
    return first, second


def predict_spread(histogram: Histogram, *, setting: Setting, cp: int) -> Spread:
    """The spread over the groups of a step under sequential packing, each document split evenly.

    Variance and mean are exact for independent documents. The extremes take the pairs as
    beta-distributed with these moments, between 0 and one document that fills the row; the slowest
    is at least the row that the longest document of the step makes slow by itself, and the fastest
    is sought among the half of the rows that hold none of the longest.
    """
    groups, row_tokens = setting.world // cp, cp * setting.tokens_per_gpu
    moments = row_moments(histogram, row_tokens=row_tokens, work=setting.work)
    mean = moments.fixed + moments.pairs_mean
    if groups == 1 or moments.pairs_variance <= (1e-9 * mean) ** 2:
        return Spread(mean=mean / cp, variance=0.0, cv=0.0, max_over_min=1.0, slowest_over_mean=1.0)
    common = without_rare(histogram, row_tokens)
    light = row_moments(common, row_tokens=row_tokens, work=setting.work)
    within = moments.pairs_variance * (groups - 1) / groups
    alone = one_document_pairs(histogram, light=light, groups=groups, work=setting.work)
    slowest = moments.fixed + max(alone, beta_extremes(moments, groups)[1])
    fastest = light.fixed + beta_extremes(light, max(1.0, groups / 2))[0]
    return Spread(
        mean=mean / cp,
        variance=within / cp**2,
        cv=math.sqrt(within) / mean,
        max_over_min=slowest / fastest,
        slowest_over_mean=slowest / mean,
    )


def law_variance(histogram: Histogram, *, tokens_per_gpu: int, cp: int, work: Work) -> float:
    """The 1/CP law: variance of a rank's work while no document is near as long as a row.

    Per token of the stream the work has variance Var(c - L * E[c]/E[L]) / E[L]; a row has cp times
    the tokens of a rank, and each rank does 1/cp of it.
    """
    return _per_token(histogram, work)[1] * tokens_per_gpu / cp


def _per_token(histogram: Histogram, work: Work) -> tuple[float, float]:
    """Mean and variance of the pairs that each token adds to a row much longer than a document."""
    lengths, shares = histogram.points()
    pairs = work.pairs(lengths)
    mean_tokens = (lengths * shares).sum()
    mean = (pairs * shares).sum() / mean_tokens
    return float(mean), float(((pairs - lengths * mean) ** 2 * shares).sum() / mean_tokens)


def straggler_factor(histogram: Histogram, *, setting: Setting, cp: int) -> float:
    """By how much the slowest group exceeds the mean attention time of a step; 1 is even."""
    return predict_spread(histogram, setting=setting, cp=cp).slowest_over_mean


def describe_regime(histogram: Histogram, *, setting: Setting) -> str:
    """Whether variance falls as 1/CP here, or rises first and up to where."""
    tokens, longest = setting.tokens_per_gpu, histogram.max_tokens
    if longest <= tokens:
        short = f"documents reach {longest:,} tokens, at most the {tokens:,} of a GPU: "
        if longest <= tokens / 2:
            return short + "variance falls as 1/CP"
        return short + "variance falls a little slower than 1/CP, since rows cut the long ones"
    variances = {}
    cp = 1
    while cp == 1 or cp * tokens < 4 * longest:
        moments = row_moments(histogram, row_tokens=cp * tokens, work=setting.work)
        variances[cp] = moments.pairs_variance / cp**2
        cp *= 2
    peak = max(variances, key=lambda one: variances[one])
    over = f"documents reach {longest:,} tokens, more than the {tokens:,} of a GPU: "
    if peak == 1:
        return over + "cuts weaken the 1/CP law, variance falls from the start"
    return over + (
        f"longer ones become admissible as CP grows, so variance first rises, up to CP={peak} "
        f"({variances[peak] / variances[1]:.1f} times CP=1), and falls as 1/CP beyond "
        f"CP={-(-longest // tokens)}"
    )
