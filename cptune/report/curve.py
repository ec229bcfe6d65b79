"""A memory curve for people: one line a degree and length, then where CP begins to help."""

from __future__ import annotations

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cptune.domain.curve import BASELINE, Curve, CurveRow
from cptune.domain.units import bytes_text
from cptune.report.tables import legend, section

COLUMNS = (
    "cp",
    "tokens",
    "forward",
    "backward",
    "peak",
    "states",
    "reserved",
    "step ms",
    "outcome",
)
_MEANINGS = {
    "forward": "most live bytes of a rank in that pass, as backward and peak are",
    "states": "weights, gradients, optimizer",
    "reserved": "most that the whole process held on a CPU, outside the budget; on a GPU what its "
    "allocator had taken",
}


def row_cells(row: CurveRow) -> tuple[str, ...]:
    """One row of the table, in the order of `COLUMNS`."""
    seen = row.measurement
    if seen is None:
        short = row.shortage
        why = "" if short is None else f", {bytes_text(short.short_bytes)} short"
        return (str(row.cp), f"{row.seq_len:,}", *("-",) * 6, f"{row.kind}{why}")
    states = "-" if seen.memory is None else bytes_text(seen.memory.states_bytes)
    return (
        str(row.cp),
        f"{row.seq_len:,}",
        bytes_text(seen.forward_peak_bytes),
        bytes_text(seen.backward_peak_bytes),
        bytes_text(seen.peak_allocated_bytes),
        states,
        bytes_text(seen.peak_reserved_bytes),
        f"{seen.step_s * 1e3:,.0f}",
        row.kind.value,
    )


def progress_line(row: CurveRow) -> str:
    """One row while the curve is measured."""
    cp, tokens, forward, backward, *_, word = row_cells(row)
    found = word if row.measurement is None else f"forward {forward}, backward {backward}"
    return f"CP={cp}  {tokens:>9} tokens  {found}"


def curve_lines(curve: Curve) -> list[str]:
    """What the figures mean."""
    lines = [_degree_line(curve, cp) for cp in curve.cps]
    fits, faster = curve.shortest_helping(), curve.shortest_faster()
    if BASELINE in curve.cps:
        lines += [
            "CP=1 fits wherever another degree does"
            if fits is None
            else f"CP helps from {fits:,} tokens on: CP=1 does not fit there",
            "no degree was faster than CP=1 beyond the spread of their steps"
            if faster is None
            else f"CP is faster than CP=1 from {faster:,} tokens on",
        ]
    return lines


def _degree_line(curve: Curve, cp: int) -> str:
    longest, power = curve.longest_fitting(cp), curve.exponent(cp)
    growth = "" if power is None else f"; grows with the sequence to the power {power:.2f}"
    if longest is None:
        return f"CP={cp}: no length tried fits{growth}"
    return f"CP={cp}: longest that fits {longest:,} tokens (to {curve.granule:,}){growth}"


def curve_page(curve: Curve) -> Group:
    """The table and its lines."""
    table = Table(
        title=f"Peak of a rank, {bytes_text(curve.capacity_bytes)} each",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "outcome" else "right", no_wrap=True)
    for cp in curve.cps:
        for row in curve.of(cp):
            table.add_row(*(Text(cell) for cell in row_cells(row)))
    warnings = curve.warnings()
    noted = [section("Warnings", warnings)] if warnings else []
    return Group(
        table, legend(_MEANINGS, shown=COLUMNS), section("Curve", curve_lines(curve)), *noted
    )
