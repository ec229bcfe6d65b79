"""When a trial was timed for long enough: a rule over the steps of the slowest rank.

The figure of a trial is the median of its steps, so the interval is that of the median: between
order statistics, whatever the distribution (David and Nagaraja, Order Statistics, section 7.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import comb
from statistics import median

#: Half-width of the interval, over the median, that is narrow enough unless a spec says otherwise.
CI_SHARE = 0.03
_CONFIDENCE = 0.95
#: A step that is faster than the one before by more than this share says that caches still fill.
_STILL_WARMING = 0.10
#: Warm-up takes at most so many times the steps that were asked for.
_LONGEST_WARMUP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """Seconds in, decision out; every rank that sees the same seconds decides the same.

    Args:
        warmup_steps: Steps thrown away, at least.
        steps: Steps that are timed, at least.
        max_steps: Steps that are timed, at most.
        ci_share: The half-width of the interval, over the median, that is narrow enough.
        timed_s: Seconds of timed steps after which none is added to `steps`.
    """

    warmup_steps: int
    steps: int
    max_steps: int
    ci_share: float
    timed_s: float

    def is_warm(self, seconds: Sequence[float]) -> bool:
        """Whether the next step may be timed, after these steps of warm-up."""
        if len(seconds) < self.warmup_steps:
            return False
        if len(seconds) < 2 or len(seconds) >= _LONGEST_WARMUP * self.warmup_steps:
            return True
        return seconds[-1] >= (1 - _STILL_WARMING) * seconds[-2]

    def is_done(self, seconds: Sequence[float]) -> bool:
        """Whether these timed steps are enough."""
        if len(seconds) < self.steps:
            return False
        if len(seconds) >= self.max_steps or sum(seconds) >= self.timed_s:
            return True
        return not is_noisy(seconds, wanted=self.ci_share)


def is_noisy(seconds: Sequence[float], *, wanted: float) -> bool:
    """Whether the interval of the median is wider than wanted, or not known."""
    share = ci_share(seconds)
    return share is None or share > wanted


def ci_share(seconds: Sequence[float]) -> float | None:
    """Half the width of the median's 95% interval over the median; None below six samples."""
    interval = median_interval(seconds)
    if interval is None:
        return None
    return (interval[1] - interval[0]) / 2 / median(seconds)


def median_interval(seconds: Sequence[float]) -> tuple[float, float] | None:
    """The narrowest symmetric pair of order statistics that holds the median with 95%.

    [x(k), x(n+1-k)] holds it with 1 - 2 P(Binomial(n, 1/2) < k). None where even the extremes do
    not: below six samples.
    """
    count = len(seconds)
    below = accumulate(comb(count, index) / 2**count for index in range(count // 2 + 1))
    rank = sum(2 * tail <= 1 - _CONFIDENCE for tail in below)
    if rank == 0:
        return None
    ordered = sorted(seconds)
    return ordered[rank - 1], ordered[count - rank]
