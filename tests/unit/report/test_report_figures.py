"""The balance figure draws every row once, in words of the table."""

from dataclasses import replace

from cptune.balance.spread import Source, SpreadRow
from cptune.report.figures import balance_figure

ROW = SpreadRow(
    dp=8,
    cp=1,
    packing="sequential",
    cv=0.25,
    variance=4.0,
    variance_ratio_to_cp1=1.0,
    max_over_min=3.0,
    slowest_over_mean=1.5,
    source=Source.THEORY,
)


def test_a_line_for_each_source_and_packing_in_order_of_cp():
    rows = [replace(ROW, cp=4, dp=2, cv=0.125), ROW, replace(ROW, source=Source.MEASURED, cv=0.5)]

    page = balance_figure(rows)

    assert '"name":"theory, sequential"' in page
    assert '"name":"measured, sequential"' in page
    assert '"x":[1,4],"y":[0.25,0.125]' in page
    assert "coefficient of variation" in page


def test_the_page_needs_no_network():
    page = balance_figure([ROW])

    assert "<script src=" not in page
    assert len(page) > 1_000_000  # plotly itself is inside
