"""Figures as self-contained HTML: the only importer of plotly."""

from __future__ import annotations

from collections.abc import Iterable

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from cptune.balance.spread import SpreadRow
from cptune.domain.curve import Curve

_DASHES = {"theory": "dash", "simulated": "solid", "measured": "dot"}


def balance_figure(rows: Iterable[SpreadRow]) -> str:
    """Spread of attention time over data-parallel groups against CP.

    One line a source, packing and kind of layer, which is named where there are several. The
    coefficient of variation is drawn, since it has no unit: theory and simulation count work, the
    measurement counts seconds.
    """
    lines: dict[tuple[str, ...], list[SpreadRow]] = {}
    rows = list(rows)
    several = len({row.layers for row in rows}) > 1
    for row in rows:
        kind = (f"{row.layers.value} layers",) if several else ()
        lines.setdefault((row.source.value, row.packing, *kind), []).append(row)
    figure = go.Figure()
    for words, points in lines.items():
        ordered = sorted(points, key=lambda row: row.cp)
        figure.add_scatter(
            x=[row.cp for row in ordered],
            y=[row.cv for row in ordered],
            customdata=[(row.dp, row.max_over_min, row.slowest_over_mean) for row in ordered],
            name=", ".join(words),
            mode="lines+markers",
            line={"dash": _DASHES[words[0]]},
            hovertemplate="cp %{x}, dp %{customdata[0]}: cv %{y:.3f}, max/min "
            "%{customdata[1]:.2f}, slowest/mean %{customdata[2]:.3f}",
        )
    figure.update_layout(
        title="Attention time across data-parallel groups", template="simple_white"
    )
    figure.update_xaxes(title="cp", type="log", tickvals=_ticks(lines.values()))
    figure.update_yaxes(title="coefficient of variation", rangemode="tozero")
    return figure.to_html(include_plotlyjs=True, full_html=True)


def curve_figure(curve: Curve) -> str:
    """Peak bytes against sequence length, forward and backward apart: two lines a degree.

    Both axes are logarithms, so that the slope is the power of the growth; the capacity is a line.
    """
    figure = go.Figure()
    for cp in curve.cps:
        rows = [(row.seq_len, row.measurement) for row in curve.of(cp)]
        known = [(seq_len, seen) for seq_len, seen in rows if seen is not None]
        for half, dash in (("forward", "dot"), ("backward", "solid")):
            figure.add_scatter(
                x=[seq_len for seq_len, _ in known],
                y=[getattr(seen, f"{half}_peak_bytes") for _, seen in known],
                name=f"cp {cp}, {half}",
                mode="lines+markers",
                line={"dash": dash},
                hovertemplate="%{x} tokens: %{y:,} bytes",
            )
    figure.add_hline(y=curve.capacity_bytes, line_dash="dash", annotation_text="capacity")
    figure.update_layout(title="Peak memory of a rank", template="simple_white")
    figure.update_xaxes(title="sequence length, tokens", type="log")
    figure.update_yaxes(title="bytes", type="log")
    return figure.to_html(include_plotlyjs=True, full_html=True)


def plotly_script() -> str:
    """The source of plotly.js, to be inlined once in a page of several figures."""
    return get_plotlyjs()


def _ticks(lines: Iterable[list[SpreadRow]]) -> list[int]:
    return sorted({row.cp for points in lines for row in points})
