"""A few candidates that stand for many: every two values of two axes that go together, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from cptune.domain.candidate import Candidate

_Pair = tuple[tuple[str, object], tuple[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """Chosen candidates, and how many of the pairs of axis values they have."""

    candidates: tuple[Candidate, ...]
    covered: int
    pairs: int


def cover_pairs(candidates: Sequence[Candidate], *, most: int) -> Cover:
    """Choose greedily what adds most pairs, the first of equals, until nothing adds any.

    Args:
        candidates: A legal set.
        most: How many to choose at most.
    """
    wanted = {candidate.key: _pairs(candidate) for candidate in candidates}
    everything = set[_Pair]().union(*wanted.values())
    left, chosen = set(everything), list[Candidate]()
    while left and len(chosen) < most:
        best = max(candidates, key=lambda one: len(wanted[one.key] & left))
        chosen.append(best)
        left -= wanted[best.key]
    covered = len(everything) - len(left)
    return Cover(candidates=tuple(chosen), covered=covered, pairs=len(everything))


def _pairs(candidate: Candidate) -> set[_Pair]:
    return set(combinations(candidate.axes().items(), 2))
