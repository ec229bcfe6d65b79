"""What a page is put together from: sections of lines, tables and figures; plain text throughout.

Nothing here is HTML yet, so that nothing can be forgotten to be escaped: the template escapes all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

#: A figure as plotly.js takes it: `data` and `layout`.
Plot = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One row of a table.

    Args:
        cells: Text, in the order of the columns.
        mark: How the row stands out: "chosen", "bad" or not at all.
        places: Where it stands when the rows are ordered by each of the grid's `orders`.
    """

    cells: tuple[str, ...]
    mark: str = ""
    places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table; `numbers` are the columns that stand to the right, `orders` those to sort by."""

    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    title: str = ""
    numbers: frozenset[str] = frozenset()
    orders: tuple[str, ...] = ()
    legend: str = ""
    kind: ClassVar[str] = "grid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What a figure is of; without it its numbers say nothing."""

    input: str
    configuration: str
    window: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A drawing and the table of everything drawn in it.

    Args:
        name: Of the figure on the page.
        title: What it shows.
        basis: What of.
        grids: The same numbers for readers without scripts.
        plot: Drawn by plotly.js; None where `svg` is drawn already.
        svg: Markup that is valid whatever a name holds, as `topology.svg` makes it.
    """

    name: str
    title: str
    basis: Basis
    grids: tuple[Grid, ...] = ()
    plot: Plot | None = None
    svg: str = ""
    kind: ClassVar[str] = "figure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """A long text under one line that opens it."""

    title: str
    text: str
    kind: ClassVar[str] = "folded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, what is said first, and what follows."""

    anchor: str
    title: str
    lines: tuple[str, ...] = ()
    parts: tuple[Grid | Figure | Folded, ...] = ()


def grid_of(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[str], title: str = ""
) -> Grid:
    """A table of text; every column that is not among the words is one of numbers."""
    return Grid(
        title=title,
        columns=tuple(columns),
        lines=tuple(Line(cells=tuple(row)) for row in rows),
        numbers=frozenset(columns) - frozenset(words),
    )


def places_by(keys: Sequence[Any]) -> list[int]:
    """Where each item stands when they are ordered by a key; what has none comes last."""
    known = sorted((key, place) for place, key in enumerate(keys) if key is not None)
    missing = [place for place, key in enumerate(keys) if key is None]
    ranks = {place: rank for rank, place in enumerate([*(place for _, place in known), *missing])}
    return [ranks[place] for place in range(len(keys))]
