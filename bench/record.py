"""What a benchmark says: tables, claims that may break, and the page that keeps both."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under column names; every cell is already text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        grid = [self.columns, *self.rows]
        widths = [max(len(row[at]) for row in grid) for at in range(len(self.columns))]
        lines = [
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            for row in (self.columns, ["-" * width for width in widths], *self.rows)
        ]
        return "\n".join([self.title, "", *(f"{line} |" for line in lines)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Something asserted about this run.

    `known_miss` is why it is not met, where that is known: such a claim is printed as missed and
    breaks nothing, so a second claim bounds how far it may miss.
    """

    what: str
    seen: str
    wanted: str
    holds: bool
    known_miss: str = ""

    @property
    def breaks(self) -> bool:
        """Does it fail the benchmark?"""
        return not self.holds and not self.known_miss

    def __str__(self) -> str:
        word = "holds " if self.holds else "BROKEN" if self.breaks else "MISSED"
        why = f" ({self.known_miss})" if self.known_miss and not self.holds else ""
        return f"{word} {self.what}: seen {self.seen}, wanted {self.wanted}{why}"


def at_most(what: str, seen: float, bound: float) -> Claim:
    """Claim that `seen` does not exceed `bound`."""
    wanted = f"at most {bound:.4g}"
    return Claim(what=what, seen=f"{seen:.4g}", wanted=wanted, holds=seen <= bound)


def at_least(what: str, seen: float, bound: float) -> Claim:
    """Claim that `seen` reaches `bound`."""
    wanted = f"at least {bound:.4g}"
    return Claim(what=what, seen=f"{seen:.4g}", wanted=wanted, holds=seen >= bound)


def exactly(what: str, seen: object, wanted: object) -> Claim:
    """Claim that counts are equal."""
    return Claim(what=what, seen=f"{seen}", wanted=f"exactly {wanted}", holds=seen == wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One benchmark's outcome. `notes` define what the columns mean."""

    notes: Sequence[str]
    tables: Sequence[Table]
    claims: Sequence[Claim]

    def __str__(self) -> str:
        tables = [str(table) for table in self.tables]
        claims = "\n".join(f"- {claim}" for claim in self.claims)
        return "\n\n".join(["\n".join(f"- {note}" for note in self.notes), *tables, claims])


def write_page(name: str, report: Report) -> Path:
    """Keep a report with the machine, the versions, the date and the command."""
    page = RESULTS / f"{name}.md"
    page.parent.mkdir(exist_ok=True)
    facts = [
        f"machine: {_cpu_model()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        f"versions: Python {platform.python_version()}, torch {version('torch')}, "
        f"cptune {version('cptune')}",
        f"date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"command: `python -m bench {name}`",
    ]
    listed = "\n".join(f"- {fact}" for fact in facts)
    page.write_text(f"# bench {name}\n\n{listed}\n\n{report}\n", encoding="ascii")
    return page


def _cpu_model() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return found[1] if found else platform.machine()
