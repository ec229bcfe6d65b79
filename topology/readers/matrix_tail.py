"""The affinity columns behind the cells of a GPU matrix, where an empty cell shifts the rest."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

AFFINITY = re.compile(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*|N/A")
CPU, NUMA = "<cpu>", "<numa>"


@dataclass(frozen=True, slots=True)
class Tail:
    """The words behind the cells; None is empty, N/A or not to be told apart."""

    cpu: str | None = None
    numa: str | None = None


class HasTail(Protocol):
    """A row, as far as its end matters."""

    line: int
    label: str
    rest: str
    tail: Tail


def split_tail(rows: Sequence[HasTail], *, names: list[str], last: int) -> list[str]:
    """Give each GPU row its affinities; returns notes.

    Args:
        rows: They get their `tail`.
        names: The affinity columns of the header, in order; guessed by no one if absent.
        last: Number of the last line that is not blank: a cut there leaves a word unsure.
    """
    named = names or _usual_names(rows)
    known = _positions(rows, names=named)
    unsure: list[str] = []
    for row in rows:
        if not row.label.startswith("GPU") or not row.rest.strip():
            continue
        words = row.rest.split()
        found = _assign(row, names=named, known=known)
        short = row.line == last and len(words) < _most(rows)
        if found is None or (short and named[-1] not in found):
            unsure.append(row.label)
            continue
        cells = {name: None if word == "N/A" else word for name, word in found.items()}
        row.tail = Tail(cpu=cells.get(CPU), numa=cells.get(NUMA))
    if unsure:
        return [f"rows {', '.join(unsure)}: affinity columns cannot be told apart and are unknown"]
    return []


def _usual_names(rows: Sequence[HasTail]) -> list[str]:
    """Without a header: the columns are always printed in this order."""
    return [CPU, NUMA, "<gpu-numa>"][: _most(rows)]


def _most(rows: Sequence[HasTail]) -> int:
    return max((len(row.rest.split()) for row in rows), default=0)


def _assign(row: HasTail, *, names: list[str], known: dict[int, str]) -> dict[str, str] | None:
    """Column name -> word, or None where words are missing and nothing says which."""
    words = row.rest.split()
    if len(words) == len(names):
        return dict(zip(names, words, strict=True))
    if len(words) > len(names):
        return None
    if "\t" in row.rest:
        cells = [cell.strip() for cell in row.rest.lstrip(" ").removeprefix("\t").split("\t")]
        found = {name: cell for name, cell in zip(names[:2], cells, strict=False) if cell}
        return found | ({names[-1]: cells[-1]} if len(cells) > len(names) else {})
    placed = {known.get(match.start()): match.group() for match in re.finditer(r"\S+", row.rest)}
    return None if None in placed else {str(name): word for name, word in placed.items()}


def _positions(rows: Sequence[HasTail], *, names: list[str]) -> dict[int, str]:
    """Where each column starts in the rows that are whole; a place of two columns is left out."""
    places: dict[int, set[str]] = {}
    for row in rows:
        matches = list(re.finditer(r"\S+", row.rest))
        if len(matches) == len(names):
            for name, match in zip(names, matches, strict=True):
                places.setdefault(match.start(), set()).add(name)
    return {place: names.pop() for place, names in places.items() if len(names) == 1}
