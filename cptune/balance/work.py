"""What attention over documents costs, as a function of their lengths alone.

Lengths are int64 arrays of tokens; work is in query-key pairs of one head and one layer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cptune.balance.asked import Split
from cptune.errors import SpecError
from topology.words import suggestion

Tokens = NDArray[np.int64]
Reals = NDArray[np.float64]
KERNEL = "fa2-h100"
LONGEST = 1 << 40  # tokens of a document; more is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The cost of causal attention over one document, in one layer or the mean layer of a model.

    Args:
        window: Tokens to the left that a query sees in a window layer; None for a full layer.
        token_keys: What a token costs beside its pairs, in keys: 0 counts pairs alone.
        full_share: Of the layers that are full where the others have a window.
    """

    window: int | None = None
    token_keys: float = 0.0
    full_share: float = 0.0

    def __post_init__(self) -> None:
        if self.window is not None and not 1 <= self.window <= LONGEST:
            raise ValueError(f"window is {self.window}; wanted 1 to {LONGEST:,} tokens, or none")
        if not 0 <= self.token_keys <= LONGEST:
            raise ValueError(f"token_keys is {self.token_keys}; wanted 0 to {LONGEST:,}")
        if not 0 <= self.full_share <= 1:
            raise ValueError(f"full_share is {self.full_share}; wanted 0 to 1")

    def of(self, tokens: Tokens | Reals) -> Reals:
        """The work of each document: its pairs, and `token_keys` for each token."""
        return self.pairs(tokens) + self.token_keys * tokens

    def pairs(self, tokens: Tokens | Reals) -> Reals:
        """Query-key pairs of each document: L(L+1)/2, less what a window hides."""
        length = tokens.astype(np.float64)
        full = length * (length + 1) / 2
        if self.window is None:
            return full
        near = np.minimum(length, self.window + 1)
        windowed = near * (near + 1) / 2 + (length - near) * near
        return self.full_share * full + (1 - self.full_share) * windowed


def rank_pairs(
    documents: Sequence[int], *, cp: int, split: Split, window: int | None = None
) -> Reals:
    """Pairs that each rank of one context group attends, for the documents of one row."""
    pieces = np.asarray(documents, dtype=np.int64)
    counts = np.array([len(pieces)])
    return rank_work(pieces, counts, cp=cp, split=split, work=Work(window=window))[0]


def rank_work(pieces: Tokens, counts: Tokens, *, cp: int, split: Split, work: Work) -> Reals:
    """The work of each rank of each row.

    Args:
        pieces: Documents of all rows, row after row; none of 0 tokens.
        counts: How many of them each row has.
        cp: Ranks of a context group.
        split: How a row goes over them.
        work: The cost of a document.

    Returns:
        One line a row, one column a rank.
    """
    costs = work.of(pieces)
    row_of = np.repeat(np.arange(len(counts)), counts)
    if split is Split.DOCUMENT or cp == 1:
        whole = np.bincount(row_of, costs, minlength=len(counts))
        return np.repeat(whole[:, None] / cp, cp, axis=1)
    if split is Split.WHOLE:
        ends = np.cumsum(counts)
        return np.stack(
            [_longest_first(costs[a - n : a], cp) for a, n in zip(ends, counts, strict=True)]
        )
    tokens = np.bincount(row_of, pieces, minlength=len(counts)).astype(np.int64)
    chunks = cp if split is Split.CONTIGUOUS else 2 * cp
    starts = np.cumsum(tokens) - tokens
    edges = starts[:, None] + np.arange(chunks + 1) * tokens[:, None] // chunks
    by_chunk = np.diff(_work_before(edges, pieces=pieces, costs=costs, work=work), axis=1)
    return by_chunk if split is Split.CONTIGUOUS else (by_chunk + by_chunk[:, ::-1])[:, :cp]


def _work_before(positions: Tokens, *, pieces: Tokens, costs: Reals, work: Work) -> Reals:
    """Work of all queries before each position; a document cut there keeps its earlier keys."""
    ends = np.cumsum(pieces)
    before = np.concatenate([[0.0], np.cumsum(costs)])
    whole = np.searchsorted(ends, positions, side="right")
    begun = positions - np.concatenate([[0], ends])[whole]
    return before[whole] + work.of(begun)


def _longest_first(costs: Reals, cp: int) -> Reals:
    ranks = np.zeros(cp)
    for cost in np.sort(costs)[::-1]:
        ranks[ranks.argmin()] += cost
    return ranks


def fit_token_keys(tokens: Tokens, seconds: Reals) -> float:
    """The `token_keys` with which work is most nearly proportional to the times of a kernel.

    Least squares of the relative error of seconds = a * pairs + b * tokens; b / a, at least 0.
    """
    parts = np.stack([Work().pairs(tokens), tokens.astype(np.float64)], axis=1) / seconds[:, None]
    (per_pair, per_token), *_ = np.linalg.lstsq(parts, np.ones(len(tokens)), rcond=None)
    return max(0.0, float(per_token / per_pair)) if per_pair > 0 else 0.0


@cache
def published_token_keys(kernel: str = KERNEL) -> float:
    """`token_keys` of a kernel whose times were published.

    Raises:
        SpecError: when no times of this kernel are known.
    """
    known = published("kernels")
    if kernel not in known:
        raise SpecError(
            f"kernel {kernel!r} is not known; known: {', '.join(sorted(known))}"
            f"{suggestion(kernel, sorted(known))}"
        )
    tokens, milliseconds = np.array(known[kernel]["milliseconds"]).T
    return fit_token_keys(tokens.astype(np.int64), milliseconds)


@cache
def published(table: str) -> dict[str, dict[str, Any]]:
    """A table of published.toml: what others measured, by name."""
    text = resources.files("cptune.balance").joinpath("published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)[table]
