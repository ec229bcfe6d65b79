"""What the documents of a workload come to, as numbers that a prediction and a choice can use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cptune.domain.workload import FULL_LENGTHS, AttentionMask, Workload


def has_documents(workload: Workload) -> bool:
    """Whether the mask tells apart documents that are shorter than a sequence."""
    return workload.mask is AttentionMask.DOCUMENT and workload.lengths != FULL_LENGTHS


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentLoad:
    """Attention work of packed sequences, expected over many batches.

    Args:
        pairs_per_sequence: Query-key pairs of one sequence and head, on average.
        pairs_share: Of attention work, what grows with pairs; the rest grows with tokens.
        slowest_over_mean: By the number of data-parallel groups: attention work of the slowest
            group over the mean of a step, on average over steps; 1 is even.
    """

    pairs_per_sequence: float
    slowest_over_mean: Mapping[int, float]
    pairs_share: float = 1.0

    def work_ratio(self, pairs_ratio: float) -> float:
        """Slowest over mean work of groups of equal tokens, from that of their pairs."""
        return 1 + (pairs_ratio - 1) * self.pairs_share

    def straggler_factor(self, groups: int) -> float:
        """By how much the slowest of so many groups exceeds the mean attention time of a step.

        Raises:
            ValueError: when the global batch does not go into so many groups.
        """
        if groups not in self.slowest_over_mean:
            known = ", ".join(map(str, sorted(self.slowest_over_mean)))
            raise ValueError(f"{groups} data-parallel groups, wanted one of {known}")
        return self.slowest_over_mean[groups]
