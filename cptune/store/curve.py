"""The rows of a memory curve in Parquet and back, and what the curve was asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from cptune.domain.candidate import candidate_from_axes
from cptune.domain.curve import CurveGrid, CurveRow
from cptune.errors import LedgerError
from cptune.store import schema
from cptune.store.files import write_durably
from cptune.store.ledger import decode, encode
from cptune.store.rows import Row, outcome_columns, outcome_from

ROWS = "curve.parquet"
ASKED = "asked.json"


def write_curve(path: Path, rows: Sequence[CurveRow]) -> None:
    """Keep the rows.

    Raises:
        LedgerError: when the file cannot be written.
    """
    write_durably(path, encode([curve_row(row) for row in rows], schema.CURVE))


def curve_row(row: CurveRow) -> Row:
    """What is printed, and beside it the recipe and all that a trial came to."""
    return {
        "candidate_key": row.candidate.key,
        **row.candidate.axes(),
        **row.to_json(),
        **outcome_columns(row.outcome),
    }


def read_curve(directory: Path) -> list[CurveRow]:
    """The rows that a run has so far; none before the first.

    Raises:
        LedgerError: when they cannot be read.
    """
    path = directory / ROWS
    if not path.exists():
        return []
    try:
        return [_row_from(row) for row in decode(path, schema.CURVE)]
    except (LedgerError, KeyError, TypeError, ValueError) as exc:
        raise LedgerError(
            f"{path} holds no rows to go on from: {exc}", hint="move it away to measure them anew"
        ) from exc


def _row_from(row: Row) -> CurveRow:
    return CurveRow(
        seq_len=row["seq_len"],
        candidate=candidate_from_axes(row),
        outcome=outcome_from(row, ()),
    )


def write_asked(directory: Path, asked: CurveGrid) -> None:
    """Keep what the curve is asked.

    Raises:
        LedgerError: when the file cannot be written.
    """
    write_durably(directory / ASKED, (json.dumps(asdict(asked)) + "\n").encode())


def _whole(numbers: object) -> tuple[int, ...]:
    if not isinstance(numbers, list) or not numbers:
        raise ValueError(f"{numbers!r} is no list of whole numbers above 0")
    if odd := [one for one in numbers if type(one) is not int or one < 1]:
        raise ValueError(f"{odd[0]!r} is no whole number above 0")
    return tuple(sorted({*numbers}))


def read_asked(directory: Path) -> CurveGrid | None:
    """What the curve of a run was asked; None before that is kept.

    Raises:
        LedgerError: when it cannot be read.
    """
    path = directory / ASKED
    if not path.exists():
        return None
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return CurveGrid(**{one.name: _whole(kept[one.name]) for one in fields(CurveGrid)})
    except (OSError, KeyError, TypeError, ValueError) as exc:
        raise LedgerError(f"{path} cannot be read: {exc}") from exc
