"""Document lengths in a form that a rank can draw from: a few thousand of them, and no file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cptune.balance.answer import OpenFile
from cptune.balance.expected import read_workload
from cptune.domain.workload import FULL_LENGTHS, AttentionMask, Workload

_POOL = 4096  # evenly spaced quantiles: 0.02% of the documents each


def read_pool(workload: Workload, *, open_file: OpenFile) -> tuple[int, ...]:
    """Lengths that stand for the documents of a workload, ascending, none above a sequence.

    Every candidate draws from the same ones. Empty where the mask knows no documents.

    Raises:
        SpecError: when the file or the distribution is wrong.
    """
    if workload.mask is not AttentionMask.DOCUMENT:
        return ()
    if workload.lengths == FULL_LENGTHS:
        return (workload.seq_len,)
    lengths, shares = read_workload(workload, open_file=open_file).points()
    quantiles = (np.arange(_POOL) + 0.5) / _POOL
    at = np.minimum(np.searchsorted(shares.cumsum(), quantiles), len(lengths) - 1)
    pool: Sequence[int] = np.rint(lengths[at]).astype(np.int64).tolist()
    return tuple(min(workload.seq_len, length) for length in pool)
