"""A replay for people: regret by sampler and workload, and what of the table was used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cptune.report.tables import section

_MOST_LINES = 5


def replay_view(answer: Mapping[str, Any]) -> Group:
    """The samplers over all workloads, each workload's mean regret, and the rows left out."""
    parts = [_overall(answer)]
    if len(answer["workloads"]) > 1:
        parts.append(_by_workload(answer))
    return Group(
        *parts, section("Table", [*_table_lines(answer["table"]), *_prune_lines(answer["overall"])])
    )


def _overall(answer: Mapping[str, Any]) -> Table:
    after = list(answer["overall"]["regret"])
    noise = f"noise {answer['noise']:.1%}" if answer["noise"] else "no noise"
    table = _table(
        f"Mean regret after N trials, over {len(answer['workloads'])} workloads x "
        f"{answer['seeds']} seeds, {noise}; worst after {after[-1]}; median trials to 5% and 2%"
    )
    last = ("worst", "5%", "2%", "twice", "illegal", "oom")
    for column in ("sampler", *after, *last):
        table.add_column(column, justify="left" if column == "sampler" else "right", no_wrap=True)
    for name, found in answer["samplers"].items():
        figures = found["overall"]
        regret = figures["regret"]
        table.add_row(
            name,
            *(f"{regret[at]['mean']:.1%}" for at in after),
            f"{regret[after[-1]]['worst']:.1%}",
            *(_trials_text(figures["trials_to"][within]) for within in ("5%", "2%")),
            str(figures["duplicates"]),
            str(figures["illegal_asks"]),
            f"{figures['out_of_memory']['mean']:.1f}",
        )
    return table


def _by_workload(answer: Mapping[str, Any]) -> Table:
    samplers = answer["samplers"]
    table = _table("Mean regret after 3 trials, by workload")
    for column in ("workload", "candidates", *samplers):
        left = column == "workload"
        table.add_column(column, justify="left" if left else "right", no_wrap=not left)
    for name, found in answer["workloads"].items():
        cells = (
            f"{one['workloads'][name]['regret']['3']['mean']:.1%}" for one in samplers.values()
        )
        table.add_row(Text(name), str(found["candidates"]), *cells)
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _trials_text(found: Mapping[str, float | None]) -> str:
    """Median trials, and the share of searches that came there where it is not all."""
    median, share = found["median"], found["reached_share"] or 0.0
    text = "never" if median is None else f"{median:.0f}"
    return text if share == 1 else f"{text} ({share:.0%})"


def _table_lines(table: Mapping[str, Any]) -> list[str]:
    lines = [f"{table['rows']} rows, {table['candidates']} candidates"]
    for what in ("unreadable", "illegal", "duplicates"):
        found = table[what]
        if found:
            lines.append(f"{len(found)} {what}, left out:")
            lines += [f"  {one}" for one in found[:_MOST_LINES]]
            lines += [f"  and {len(found) - _MOST_LINES} more"] if len(found) > _MOST_LINES else []
    return [*lines, *table["notes"]]


def _prune_lines(overall: Mapping[str, Any]) -> list[str]:
    """What a search leaves out that ran; the best must never be among it."""
    false, best = overall["false_prunes"], overall["best_pruned"]
    return [
        f"{false} candidates that ran are left out by their prediction, the best one in {best} "
        "workloads"
    ]
