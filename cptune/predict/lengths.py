"""Document lengths: how many query-key pairs a sequence has, and how far ranks lie apart."""

from __future__ import annotations

import re
from functools import cache
from math import exp, log, sqrt
from statistics import NormalDist

from cptune.domain.workload import AttentionMask, Workload
from cptune.errors import SpecError

_LOGNORMAL = re.compile(r"lognormal\(\s*mean\s*=\s*([\d.eE+]+)\s*,\s*sigma\s*=\s*([\d.eE+]+)\s*\)")
_GRID = 400  # quantiles that stand for the distribution


def pairs_per_sequence(workload: Workload) -> float:
    """Query-key pairs that the mask leaves in one sequence, per head (mean)."""
    square = float(workload.seq_len) ** 2
    if workload.mask is AttentionMask.FULL:
        return square
    if workload.mask is AttentionMask.CAUSAL or workload.lengths == "full":
        return square / 2
    lengths = _documents(workload.lengths, workload.seq_len)
    mean = sum(lengths) / len(lengths)
    return workload.seq_len * sum(length**2 for length in lengths) / len(lengths) / mean / 2


def straggler_factor(workload: Workload, *, groups: int, samples: int) -> float:
    """The slowest of `groups` data-parallel ranks over their mean attention time.

    Documents are drawn independently, so the spread of a rank falls as the root of the documents
    in its `samples` sequences; the largest of n normals lies near the quantile n/(n+1).
    """
    if workload.mask is not AttentionMask.DOCUMENT or workload.lengths == "full" or groups < 2:
        return 1.0
    lengths = _documents(workload.lengths, workload.seq_len)
    work = [length**2 for length in lengths]
    mean_work = sum(work) / len(work)
    spread = sqrt(sum((one - mean_work) ** 2 for one in work) / len(work)) / mean_work
    documents = samples * workload.seq_len / (sum(lengths) / len(lengths))
    return 1 + spread / sqrt(max(1.0, documents)) * NormalDist().inv_cdf(groups / (groups + 1))


@cache
def _documents(lengths: str, seq_len: int) -> tuple[float, ...]:
    found = _LOGNORMAL.fullmatch(lengths.strip())
    if found is None:
        raise SpecError(
            f"workload.lengths | {lengths!r} cannot be planned",
            hint='wanted "full" or "lognormal(mean=..., sigma=...)": the mean in tokens and the '
            "sigma of the logarithm",
        )
    mean, sigma = float(found[1]), float(found[2])
    normal = NormalDist(log(mean) - sigma**2 / 2, sigma) if sigma else None
    quantiles = ((index + 0.5) / _GRID for index in range(_GRID))
    raw = (exp(normal.inv_cdf(q)) if normal else mean for q in quantiles)
    return tuple(min(float(seq_len), length) for length in raw)
