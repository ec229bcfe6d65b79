"""What `cptune trace` answers: communication of a traced step by axis and layer, and the links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from statistics import fmean
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cptune.bench.timeline import seconds
from cptune.domain.outcome import Measurement
from cptune.domain.timeline import ABLATION, BY_INTERVALS, WORLD, Exposed, RankTrace, Span
from cptune.domain.trial import Trial
from cptune.report.tables import legend, meanings

_UNKNOWN = "unknown"
#: Of the tables of exposed communication, by either method.
EXPOSED_COLUMNS = (
    "axis",
    "layer",
    "total ms",
    "exposed ms",
    "hidden",
    "blocked ms",
    "late ms",
    "bytes",
)
#: Of the table of links.
LINK_COLUMNS = (
    "link",
    "axis",
    "bytes",
    "moving ms",
    "MB/s",
    "of its rate",
    "busy",
    "exposed ms",
    "contention",
)

#: Titles of the tables.
BY_UNION = "By the union of intervals"
BY_STEPS = "By ablation: step minus step without transfer"
LINKS = "Links: utilisation is not overlap"

_BESIDE = "beside"
_MEANINGS = {
    WORLD: "loss and gradient norm of all ranks",
    _BESIDE: "of no layer",
    "hidden": "under compute",
    "blocked ms": "standing still in waits",
    "late ms": "of it, until a peer had computed",
}
_LINK_MEANINGS = {
    "of its rate": "MB/s over those of its fastest large message",
    "busy": "moving, of the step",
    "contention": "time beside the other groups over time alone",
}

Row = dict[str, Any]


def trace_answer(
    trial: Trial, *, run: str, trace_file: str | None, spans: Mapping[int, Sequence[Span]]
) -> Row:
    """The JSON of `cptune trace`.

    Args:
        trial: Measured, with a traced step on every rank.
        run: Its run directory.
        trace_file: Where its spans are; None: lost.
        spans: Of each rank.
    """
    seen = trial.measurement
    assert seen is not None, "a measured trial"
    traces = {one.rank: one.trace for one in seen.ranks if one.trace is not None}
    return {
        "run": run,
        "trial": trial.number,
        "attempt": trial.attempt,
        "candidate": trial.candidate.describe(),
        "step_s": seen.step_s,
        "traced_step_s": seen.traced_step_s,
        "exposed_share": seen.exposed_share,
        "clock_error_s": max(trace.clock_error_s for trace in traces.values()),
        "communication": _rows(traces.values(), methods=BY_INTERVALS),
        "ablation": _rows(traces.values(), methods={ABLATION}),
        "links": [row | _contention(seen, row) for row in _links(traces, spans)],
        "trace_file": trace_file,
    }


def _rows(traces: Iterable[RankTrace], *, methods: AbstractSet[str]) -> list[Row]:
    """Means over the ranks that have the row, whole axes first, then their layers."""
    held: dict[tuple[str, bool, int | None], list[Exposed]] = defaultdict(list)
    for trace in traces:
        for one in trace.exposed:
            if one.method in methods:
                held[one.axis, one.whole, one.layer].append(one)
    return [
        {
            "axis": axis,
            "layer": layer,
            "whole_axis": whole,
            "communication_s": _mean(rows, "communication_s"),
            "exposed_s": _mean(rows, "exposed_s"),
            "blocked_s": _mean(rows, "blocked_s"),
            "late_s": _mean(rows, "late_s"),
            "bytes": _mean(rows, "bytes"),
            "ranks": len(rows),
        }
        for (axis, whole, layer), rows in held.items()
        if ABLATION in methods or any(one.bytes for one in rows)
    ]


def _mean(rows: Sequence[Exposed], name: str) -> float | None:
    """None where one rank could not tell."""
    values = [getattr(row, name) for row in rows]
    return None if None in values else fmean(values)


def _links(traces: Mapping[int, RankTrace], spans: Mapping[int, Sequence[Span]]) -> list[Row]:
    """Each link by which messages came: how busy it was, beside what of it nothing hid.

    The rate of a link is that of its fastest large message here: messages that travel together
    share it, and a small one is all latency.
    """
    held: dict[tuple[int, int, str], list[Span]] = defaultdict(list)
    for rank, own in spans.items():
        for span in own:
            if span.peer is not None and not span.name.endswith(", sent"):
                held[span.peer, rank, str(span.axis)].append(span)
    found: list[Row] = []
    for (source, to, axis), messages in sorted(held.items()):
        moved = sum(span.bytes or 0 for span in messages)
        moving_s = seconds((span.start_s, span.stop_s) for span in messages)
        rate = _best_rate(messages)
        whole = traces[to].whole(axis)
        found.append(
            {
                "a_rank": source,
                "b_rank": to,
                "axis": axis,
                "bytes": moved,
                "transfer_s": moving_s,
                "bytes_per_s": moved / moving_s if moving_s else None,
                "best_bytes_per_s": rate or None,
                "utilisation": moved / moving_s / rate if moving_s and rate else None,
                "busy_share": moving_s / traces[to].step_s,
                "exposed_s": whole.exposed_s if whole else None,
            }
        )
    return found


def _contention(seen: Measurement, link: Row) -> Row:
    """How much longer its transfers took beside those of the other groups, where that was tried."""
    own = next(one for one in seen.ranks if one.rank == link["b_rank"])
    at = (
        edge for edge in own.edges if (edge.peer_rank, edge.axis) == (link["a_rank"], link["axis"])
    )
    edge = next(at, None)
    names = ("idle_s", "busy_s", "contention")
    return {name: None if edge is None else getattr(edge, name) for name in names}


def _best_rate(messages: Sequence[Span]) -> float:
    large = max(span.bytes or 0 for span in messages) / 2
    timed = ((span.bytes or 0, span.stop_s - span.start_s) for span in messages)
    return max((size / took for size, took in timed if size >= large and took > 0), default=0.0)


def trace_view(answer: Row) -> Group:
    """The answer for people."""
    rows, links = answer["communication"], answer["links"]
    parts = [*map(Text, trace_lines(answer)), _table(BY_UNION, rows)]
    if answer["ablation"]:
        parts += [_table(BY_STEPS, answer["ablation"])]
    parts += [legend(_MEANINGS, shown=_words([*rows, *answer["ablation"]])), Text()]
    if links:
        parts += [_link_table(links), legend(_LINK_MEANINGS, shown=LINK_COLUMNS), Text()]
    where = answer["trace_file"]
    parts += [Text(f"trace     {where or 'lost'}" + (" (ui.perfetto.dev opens it)" * bool(where)))]
    return Group(*parts)


def trace_lines(answer: Row) -> list[str]:
    """Whose step it is, how long it took, and how well its clocks agree."""
    traced = answer["traced_step_s"]
    return [
        f"{answer['run']}, trial {answer['trial']} attempt {answer['attempt']}: "
        f"{answer['candidate']}",
        f"traced step {traced * 1e3:,.0f} ms (timed steps {answer['step_s'] * 1e3:,.0f} ms), "
        f"exposed communication {answer['exposed_share']:.1%} of it, mean over ranks",
        f"clocks of the ranks agree within {answer['clock_error_s'] * 1e3:.3f} ms",
    ]


def exposed_meanings(answer: Row) -> str:
    """What the words in the tables of exposed communication mean."""
    rows = [*answer["communication"], *answer["ablation"]]
    return meanings(_MEANINGS, shown=_words(rows))


def link_meanings() -> str:
    """What the columns of the table of links mean."""
    return meanings(_LINK_MEANINGS, shown=LINK_COLUMNS)


def _words(rows: Sequence[Row]) -> set[str]:
    """The words of the table that need one: of its columns, its axes and its layers."""
    layers = {_BESIDE for row in rows if row["layer"] is None and not row["whole_axis"]}
    return {*EXPOSED_COLUMNS, *layers, *(str(row["axis"]) for row in rows)}


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = _plain(title, EXPOSED_COLUMNS, words=2)
    for row in rows:
        table.add_row(*exposed_cells(row), style="bold" if row["whole_axis"] else None)
    return table


def exposed_cells(row: Row) -> tuple[str, ...]:
    """One row of `communication` or `ablation`, in the order of `EXPOSED_COLUMNS`."""
    return (
        row["axis"],
        "all" if row["whole_axis"] else _layer(row["layer"]),
        _ms(row["communication_s"]),
        _ms(row["exposed_s"]),
        _hidden(row),
        *("-" if row[name] is None else _ms(row[name]) for name in ("blocked_s", "late_s")),
        "-" if row["bytes"] is None else f"{row['bytes']:,.0f}",
    )


def _link_table(rows: Sequence[Row]) -> Table:
    table = _plain(LINKS, LINK_COLUMNS, words=2)
    for row in rows:
        table.add_row(*link_cells(row))
    return table


def link_cells(row: Row) -> tuple[str, ...]:
    """One row of `links`, in the order of `LINK_COLUMNS`."""
    return (
        f"{row['a_rank']} -> {row['b_rank']}",
        row["axis"],
        f"{row['bytes']:,}",
        _ms(row["transfer_s"]),
        _UNKNOWN if row["bytes_per_s"] is None else f"{row['bytes_per_s'] / 1e6:,.1f}",
        _UNKNOWN if row["utilisation"] is None else f"{row['utilisation']:.0%}",
        f"{row['busy_share']:.0%}",
        _ms(row["exposed_s"]),
        contention_text(row["contention"]),
    )


def contention_text(ratio: float | None) -> str:
    """How many times longer beside the other groups; unknown where that was not tried."""
    return _UNKNOWN if ratio is None else f"{ratio:.2f}x"


def _plain(title: str, columns: Sequence[str], *, words: int) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < words else "right", no_wrap=True)
    return table


def _layer(layer: int | None) -> str:
    return _BESIDE if layer is None else str(layer)


def _ms(value_s: float | None) -> str:
    return _UNKNOWN if value_s is None else f"{value_s * 1e3:,.1f}"


def _hidden(row: Row) -> str:
    total, exposed = row["communication_s"], row["exposed_s"]
    if total is None or exposed is None or total <= 0:
        return _UNKNOWN if total is None or exposed is None else "-"
    return f"{1 - exposed / total:.0%}"
