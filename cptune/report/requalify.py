"""What a recipe depends on, for people: what is not as it was, and the rest counted."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cptune.domain.standing import Condition, Standing

_LONGEST = 44  # characters of a value: hashes and platforms are told apart by fewer


def requalify_answer(conditions: Sequence[Condition]) -> dict[str, object]:
    """What `cptune recipe requalify --format json` prints."""
    return {
        "requalify": any(one.standing is Standing.CHANGED for one in conditions),
        "conditions": [
            {"what": one.what, "then": one.then, "now": one.now, "standing": one.standing.value}
            for one in conditions
        ],
    }


def requalify_view(conditions: Sequence[Condition]) -> Group:
    """A table of what is not the same, and how much is."""
    odd = [one for one in conditions if one.standing is not Standing.SAME]
    same = Text(f"{len(conditions) - len(odd)} of {len(conditions)} conditions are the same")
    if not odd:
        return Group(same)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("condition", "then", "now", "standing"):
        table.add_column(column, overflow="fold")
    for one in odd:
        cells = (one.what, _short(one.then), _short(one.now), one.standing.value)
        table.add_row(*map(Text, cells))
    return Group(table, same)


def _short(value: str | None) -> str:
    if value is None:
        return "?"
    return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 3]}..."
