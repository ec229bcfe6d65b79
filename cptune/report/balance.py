"""A balance study for people: one line a CP and source, then what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cptune.balance.batches import Compared
from cptune.balance.spread import SpreadRow
from cptune.balance.study import Study
from cptune.report.tables import section

COLUMNS = (
    *("cp", "dp", "packing", "layers", "source"),
    *("cv", "variance / CP1", "max/min", "slowest/mean"),
)
_WORDS = frozenset({"packing", "layers", "source"})


def spread_cells(row: SpreadRow) -> tuple[str, ...]:
    """One row of the table, in the order of `COLUMNS`."""
    figures = (row.cv, row.variance_ratio_to_cp1, row.max_over_min, row.slowest_over_mean)
    return (
        str(row.cp),
        str(row.dp),
        row.packing,
        row.layers.value,
        row.source.value,
        *("-" if figure is None else f"{figure:.3g}" for figure in figures),
    )


def study_lines(study: Study) -> list[str]:
    """What the figures mean and what to do."""
    return [
        *study.advice.lines(),
        *study.notes,
        *(_compared_line(one) for one in study.compared),
    ]


def balance_page(study: Study) -> Group:
    """The table and its lines."""
    seen = study.lengths
    table = Table(
        title=f"{seen.count:,} documents, mean {seen.mean_tokens:,.0f} tokens, "
        f"longest {seen.max_tokens:,}",
        title_justify="left",
        expand=False,
    )
    for column in COLUMNS:
        justify = "left" if column in _WORDS else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for row in _by_cp(study.rows):
        table.add_row(*(Text(cell) for cell in spread_cells(row)))
    return Group(table, section("Advice", study_lines(study)))


def _by_cp(rows: Sequence[SpreadRow]) -> list[SpreadRow]:
    kinds = list(dict.fromkeys(row.layers for row in rows))
    return sorted(rows, key=lambda row: (kinds.index(row.layers), row.cp))


def _compared_line(one: Compared) -> str:
    return (
        f"CP={one.cp} on CPU kernels: cv {one.measured.cv:.3f} measured, {one.counted.cv:.3f} "
        f"from single documents, same groups; correlation {one.correlation:.3f}"
    )
