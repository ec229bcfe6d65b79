"""The rows of a memory curve in Parquet and back, and what the curve was asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from cptune.domain.candidate import candidate_from_axes
from cptune.domain.checks import MOST_TOKENS
from cptune.domain.curve import CurveGrid, CurveRow
from cptune.errors import LedgerError, SpecError
from cptune.store import schema
from cptune.store.files import write_durably
from cptune.store.ledger import decode, encode
from cptune.store.rows import Row, outcome_columns, outcome_from
from topology.words import suggestion

ROWS = "curve.parquet"
ASKED = "asked.json"
#: The way out for a curve whose file does not tell what it was asked.
MEND = "put the file back as the curve wrote it, or start another curve without --resume"


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


def read_asked(directory: Path) -> CurveGrid | None:
    """What the curve of a run was asked; None before that is kept.

    Raises:
        LedgerError: when it cannot be read.
        SpecError: when it does not hold what a curve can be asked, with everything that is wrong.
    """
    path = directory / ASKED
    if not path.exists():
        return None
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise LedgerError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    except ValueError as exc:
        raise SpecError(f"{path} is no JSON: {exc}") from exc
    names = [one.name for one in fields(CurveGrid)]
    if wrong := _why_not_asked(kept, names):
        raise SpecError("\n".join(f"{path} | {one}" for one in wrong), hint=MEND)
    return CurveGrid(**{name: tuple(sorted({*kept[name]})) for name in names})


def _why_not_asked(kept: object, names: Sequence[str]) -> list[str]:
    """Everything for which this is not what a curve is asked."""
    if not isinstance(kept, dict):
        return [f"it holds {kept!r:.40}; wanted an object with {' and '.join(names)}"]
    wrong = [f"{name} is unknown{suggestion(name, names)}" for name in kept if name not in names]
    for name in names:
        numbers = kept.get(name)
        if not isinstance(numbers, list) or not numbers:
            told = f"is {numbers!r:.40}" if name in kept else "is missing"
            wrong.append(f"{name} {told}; wanted a list of whole numbers above 0")
            continue
        odd = [one for one in numbers if type(one) is not int or not 1 <= one <= MOST_TOKENS]
        if odd:
            wrong.append(f"{name} has {odd[0]!r:.40}; wanted whole numbers, 1 to {MOST_TOKENS}")
    return wrong
