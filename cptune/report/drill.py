"""Drills for people: what each provokes, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cptune.report.tables import section

CAUGHT, MISSED = "caught", "MISSED"


def drill_view(answer: Mapping[str, Any]) -> Group:
    """The answer of `cptune drill`: the verdicts, then the words of each guard with its figures."""
    table = _table("Drills", ("drill", "verdict", "guard", "what was provoked"))
    for one in answer["drills"]:
        cells = (one["name"], word(one["caught"]), _short(one["guard"]), one["failure"])
        table.add_row(*map(Text, cells), style=None if one["caught"] else "bold red")
    said = [line for one in answer["drills"] for line in _lines(one)]
    return Group(table, section("What the guards said", said))


def list_view(answer: Mapping[str, Any]) -> Table:
    """The answer of `cptune drill --list`."""
    table = _table("Drills", ("drill", "section", "what is provoked", "guard"))
    for one in answer["drills"]:
        cells = (one["name"], one["section"], one["failure"], _short(one["guard"]))
        table.add_row(*map(Text, cells))
    return table


def word(caught: bool) -> str:
    """The verdict in a word."""
    return CAUGHT if caught else MISSED


def _short(guard: str) -> str:
    """Its names without that of the package, which all have."""
    return guard.replace("cptune.", "")


def _lines(one: Mapping[str, Any]) -> list[str]:
    evidence = one["evidence"]
    figures = ", ".join(f"{name} {_figure(value)}" for name, value in evidence["figures"].items())
    broken = [name for name, holds in evidence["controls"].items() if not holds]
    lines = [f"{one['name']}: {evidence['said']}", f"  {figures}"]
    return [*lines, *(f"  the control does not hold: {name}" for name in broken)]


def _figure(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=place == 0, overflow="fold")
    return table
