"""Rich tables for the terminal, made of the summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cptune.report.summary import NOISY, TRIAL_COLUMNS, Judged, trial_cells

_NUMBERS = {"#", "step ms", "tokens/s", "peak", "exposed"}


def trials_table(judged: Sequence[Judged], *, how: str = "") -> Table:
    """Every trial with its verdict; `how` they came about where they did not run."""
    noisy = any(one.trial.measurement and one.trial.measurement.noisy for one in judged)
    title = f"Trials{how} ({NOISY} noisy timing)" if noisy else f"Trials{how}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in TRIAL_COLUMNS:
        number = column in _NUMBERS
        # The layout alone may take a second line: a figure that is cut is worse than none.
        table.add_column(column, justify="right" if number else "left", no_wrap=column != "layout")
    for one in judged:
        style = "bold green" if one.word == "chosen" else None
        table.add_row(*(Text(cell) for cell in trial_cells(one)), style=style)
    return table


def section(title: str, lines: Sequence[str]) -> Group:
    """A heading and its lines."""
    return Group(Text(title, style="bold"), *(Text(f"  {line}") for line in lines), Text(""))


def legend(words: Mapping[str, str], *, shown: Iterable[str]) -> Text:
    """One line under a table: what the words in it mean, of those that are shown."""
    return Text(f"  {meanings(words, shown=shown)}", style="dim")


def meanings(words: Mapping[str, str], *, shown: Iterable[str]) -> str:
    """What the words mean, of those that are shown."""
    there = {*shown}
    return "; ".join(f"{word}: {meaning}" for word, meaning in words.items() if word in there)
