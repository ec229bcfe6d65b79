"""A recipe and another run of it, for people: then, now and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cptune.domain.standing import Condition, Likeness, Row
from cptune.domain.units import bytes_text
from cptune.report.requalify import requalify_answer, requalify_view

_HASH = 12  # characters of a fingerprint
_STYLES = {Likeness.DIFFERS: "bold red", Likeness.UNKNOWN: "yellow", Likeness.NOT_JUDGED: "yellow"}


def reproduce_answer(
    conditions: Sequence[Condition], rows: Sequence[Row], *, run: str | None, reproduced: bool
) -> dict[str, object]:
    """What `cptune recipe reproduce --format json` prints."""
    return {
        "reproduced": reproduced,
        "run": run,
        **requalify_answer(conditions),
        "rows": [row.to_json() for row in rows],
    }


def reproduce_view(conditions: Sequence[Condition], rows: Sequence[Row]) -> Group:
    """What has changed, and every figure then and now."""
    parts: list[RenderableType] = [requalify_view(conditions)]
    if rows:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column in ("figure", "then", "now", "verdict", "wanted"):
            table.add_column(column, overflow="fold")
        for row in rows:
            label, word = _SHOWN.get(row.what, (row.what.replace("_", " "), _plain))
            cells = (label, *(_known(one, word) for one in (row.then, row.now)))
            table.add_row(*map(Text, (*cells, row.verdict.value, row.rule)), style=_style(row))
        parts.append(table)
    return Group(*parts)


def _style(row: Row) -> str | None:
    return _STYLES.get(row.verdict)


def _known(value: object, word: Callable[[object], str]) -> str:
    return "?" if value is None else word(value)


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.8g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _hash(value: object) -> str:
    return str(value)[:_HASH]


def _bytes(value: object) -> str:
    return f"{value} ({bytes_text(value)})" if isinstance(value, int) else str(value)


def _ms(value: object) -> str:
    return f"{value * 1e3:,.1f}" if isinstance(value, float) else str(value)


def _share(value: object) -> str:
    return f"{value:.1%}" if isinstance(value, float) else str(value)


_SHOWN: Mapping[str, tuple[str, Callable[[object], str]]] = {
    "convergence_fingerprint": ("convergence fingerprint", _hash),
    "equivalence_fixture": ("equivalence fixture", _hash),
    "peak_allocated_bytes": ("peak bytes", _bytes),
    "step_s": ("step ms", _ms),
    "exposed_share": ("exposed communication", _share),
}
