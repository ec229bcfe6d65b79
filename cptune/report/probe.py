"""A probe for people: the edges, what they reach, and which contradict the topology."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cptune.domain.probe import Probe, Verdict
from cptune.domain.units import bytes_text
from cptune.report.tables import section

_COLUMNS = ("ring", "ranks", "from", "to", "kind", "alone", "all at once", "promised", "verdict")
_NUMBERS = {"ring", "ranks", "alone", "all at once", "promised"}
_STEPS = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))
_STYLES = {Verdict.BELOW.value: "bold red", Verdict.KEPT.value: "green"}


def rate_text(bytes_per_s: float | None) -> str:
    """A rate in the largest decimal unit that keeps it above one; ? where nobody told."""
    if bytes_per_s is None:
        return "?"
    for size, unit in _STEPS:
        if bytes_per_s >= size:
            return f"{bytes_per_s / size:.2f} {unit}"
    return f"{bytes_per_s:.0f} B/s"


def probe_view(answer: Mapping[str, Any]) -> Group:
    """Every edge with its rates and verdict, then what they mean."""
    edges = answer["edges"]
    size = bytes_text(answer["payload_bytes"])
    title = (
        f"{len(edges)} edges of rings with tp={answer['tp']}, cp={answer['cp']} over "
        f"{answer['transport']}, {size} at a time, median of {answer['repeats']}"
    )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in _NUMBERS else "left", no_wrap=True)
    for edge in edges:
        cells = (Text(cell) for cell in _cells(edge))
        table.add_row(*cells, style=_STYLES.get(edge["verdict"]))
    return Group(table, section("Together", _together_lines(answer)))


def below_lines(probe: Probe) -> list[str]:
    """The edges that contradict the topology, each in one line."""
    return [
        f"{edge.a.name} -> {edge.b.name} (ranks {edge.planned.a_rank} -> {edge.planned.b_rank}, "
        f"{edge.planned.kind or 'kind not told'}): {rate_text(edge.reading.idle_bytes_per_s)} "
        f"over {probe.transport}, {rate_text(edge.planned.promised_bytes_per_s)} promised: a share "
        f"of {edge.promised_share:.3g}, wanted {probe.ask.share:g} or more"
        for edge in probe.below
    ]


def _cells(edge: Mapping[str, Any]) -> list[str]:
    return [
        str(edge["ring"]),
        f"{edge['a_rank']} -> {edge['b_rank']}",
        edge["a_device"],
        edge["b_device"],
        edge["kind"] or "?",
        rate_text(edge["bytes_per_s"]),
        rate_text(edge["busy_bytes_per_s"]),
        rate_text(edge["promised_bytes_per_s"]),
        edge["verdict"],
    ]


def _together_lines(answer: Mapping[str, Any]) -> list[str]:
    edges = answer["edges"]
    slowest = min(edges, key=lambda edge: edge["bytes_per_s"])
    busiest = min(edges, key=lambda edge: edge["busy_bytes_per_s"])
    counts = {word: sum(edge["verdict"] == word for edge in edges) for word in Verdict}
    said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return [
        f"slowest alone: {_named(slowest)} {rate_text(slowest['bytes_per_s'])}",
        f"slowest, all at once: {_named(busiest)} {rate_text(busiest['busy_bytes_per_s'])}",
        f"{said}; kept is {answer['share']:g} or more of the promise, alone",
        *answer["notes"],
    ]


def _named(edge: Mapping[str, Any]) -> str:
    return f"{edge['a_device']} -> {edge['b_device']}"
