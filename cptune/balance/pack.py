"""Documents of one step into the rows of its groups, every row filled to the token.

Each packing takes the documents that hold exactly rows x row_tokens tokens and gives (pieces, how
many of them each row has). A document that is cut restarts: its pieces do not see each other.
"""

from __future__ import annotations

import numpy as np

from cptune.balance.asked import Packing
from cptune.balance.work import Reals, Tokens, Work


def pack(
    documents: Tokens, *, rows: int, row_tokens: int, packing: Packing, work: Work
) -> tuple[Tokens, Tokens]:
    """The pieces of all rows, row after row, and how many each row has.

    Outside `sequential`, a document longer than a row fills rows of its own, and what fits nowhere
    whole fills the gaps that are left: no packing trains on fewer tokens than another.
    """
    assert documents.sum() == rows * row_tokens, "the documents of a step fill its rows"
    if packing is Packing.SEQUENTIAL:
        return cut_rows(documents, row_tokens=row_tokens)
    pieces = _cut_long(documents, row_tokens)
    costs = work.of(pieces)
    if packing is Packing.QUADRATIC:
        order = np.argsort(-costs, kind="stable")
        pieces, costs = pieces[order], costs[order]
    row_of, left = _place(pieces, costs, rows=rows, row_tokens=row_tokens, packing=packing)
    placed = row_of >= 0
    holes = np.flatnonzero(left)
    tail, counts = _fill(pieces[~placed], left[holes])
    pieces = np.concatenate([pieces[placed], tail])
    row_of = np.concatenate([row_of[placed], np.repeat(holes, counts)])
    order = np.argsort(row_of, kind="stable")
    return pieces[order], np.bincount(row_of, minlength=rows)


def cut_rows(documents: Tokens, *, row_tokens: int) -> tuple[Tokens, Tokens]:
    """Cut the stream of documents into rows of equal length."""
    ends = np.cumsum(documents)
    rows = int(ends[-1]) // row_tokens
    return _cut_at(ends, np.arange(1, rows + 1) * row_tokens)


def cut_stream(documents: Tokens, tokens: int) -> tuple[Tokens, Tokens]:
    """The documents of the first so many tokens, and the rest; one is cut where need be."""
    ends = np.cumsum(documents)
    last = int(np.searchsorted(ends, tokens))
    head, rest = documents[: last + 1].copy(), documents[last:].copy()
    head[-1] -= ends[last] - tokens
    rest[0] = ends[last] - tokens
    return head, rest if rest[0] else rest[1:]


def _cut_at(ends: Tokens, cuts: Tokens) -> tuple[Tokens, Tokens]:
    edges = np.union1d(ends, cuts)
    pieces = np.diff(edges, prepend=0)
    return pieces, np.diff(np.searchsorted(edges, cuts, side="right"), prepend=0)


def _cut_long(documents: Tokens, row_tokens: int) -> Tokens:
    """Documents of at most a row: a longer one as full rows and its rest."""
    parts = -(-documents // row_tokens)
    if parts.max() == 1:
        return documents
    pieces = np.full(int(parts.sum()), row_tokens, dtype=np.int64)
    pieces[np.cumsum(parts) - 1] = documents - (parts - 1) * row_tokens
    return pieces


def _place(
    pieces: Tokens, costs: Reals, *, rows: int, row_tokens: int, packing: Packing
) -> tuple[Tokens, Tokens]:
    """The row of each piece, -1 where none has room for it, and the tokens left in each row."""
    row_of = np.full(len(pieces), -1, dtype=np.int64)
    left = np.full(rows, row_tokens, dtype=np.int64)
    loads = np.zeros(rows)
    for index, piece in enumerate(pieces):
        has_room = left >= piece
        if packing is Packing.QUADRATIC:
            row = int(np.where(has_room, loads, np.inf).argmin())
        else:
            row = int(has_room.argmax())
        if has_room[row]:
            row_of[index] = row
            left[row] -= piece
            loads[row] += costs[index]
    return row_of, left


def _fill(pieces: Tokens, holes: Tokens) -> tuple[Tokens, Tokens]:
    """Cut the pieces to fill the holes one after the other."""
    if not len(pieces):
        return pieces, np.zeros(len(holes), dtype=np.int64)
    return _cut_at(np.cumsum(pieces), np.cumsum(holes))


class StepCutter:
    """Cuts a stream of documents into whole steps; what begins the next step is kept back.

    Args:
        step_tokens: Tokens of one step over all groups.
    """

    def __init__(self, step_tokens: int) -> None:
        self._step_tokens = step_tokens
        self._kept: list[Tokens] = []
        self._kept_tokens = 0

    def feed(self, documents: Tokens) -> Tokens | None:
        """Documents of one or more whole steps, the last one cut; None while there is no step."""
        self._kept.append(documents)
        self._kept_tokens += int(documents.sum())
        whole = self._kept_tokens // self._step_tokens * self._step_tokens
        if not whole:
            return None
        stream = np.concatenate(self._kept)
        ready, rest = cut_stream(stream, whole)
        self._kept = [rest]
        self._kept_tokens -= whole
        return ready
