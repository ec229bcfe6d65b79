"""Document lengths: how many query-key pairs a sequence has, and how far ranks lie apart.

The figures come in as data from `cptune.balance`, which stands above this package.
"""

from __future__ import annotations

from cptune.domain.documents import DocumentLoad
from cptune.domain.workload import AttentionMask, Workload


def pairs_per_sequence(workload: Workload, documents: DocumentLoad | None = None) -> float:
    """Query-key pairs that the mask leaves in one sequence, per head (mean)."""
    if documents is not None:
        return documents.pairs_per_sequence
    square = float(workload.seq_len) ** 2
    return square if workload.mask is AttentionMask.FULL else square / 2


def straggler_factor(documents: DocumentLoad | None, *, groups: int) -> float:
    """Attention work of the slowest of `groups` data-parallel ranks over their mean; 1 is even."""
    return 1.0 if documents is None or groups < 2 else documents.straggler_factor(groups)
