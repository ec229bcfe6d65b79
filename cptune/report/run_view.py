"""What `cptune report` says on a terminal: where the page is, and what speaks against the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.text import Text

from cptune.domain.units import bytes_text
from cptune.report.tables import section


def report_view(answer: Mapping[str, Any]) -> Group:
    """The answer for people."""
    recipe = answer["recipe"] or "no recipe"
    lines = [
        f"page      {answer['page']} ({bytes_text(answer['page_bytes'])}, opens without a network)",
        f"run       {answer['state']}: {recipe}",
    ]
    parts = [*map(Text, lines)]
    doubts = answer["doubts"]
    return Group(*parts, *([section("What speaks against it", doubts)] if doubts else []))
