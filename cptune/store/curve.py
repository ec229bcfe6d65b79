"""The rows of a memory curve in Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cptune.domain.curve import CurveRow
from cptune.store import schema
from cptune.store.files import write_durably
from cptune.store.ledger import encode
from cptune.store.part_rows import split_columns
from cptune.store.rows import Row

_TIMES = ("step_s", "step_p10_s", "step_p90_s", "tokens_per_s", "tokens_per_s_per_gpu")


def write_curve(path: Path, rows: Sequence[CurveRow]) -> None:
    """Keep the rows.

    Raises:
        LedgerError: when the file cannot be written.
    """
    write_durably(path, encode([curve_row(row) for row in rows], schema.CURVE))


def curve_row(row: CurveRow) -> Row:
    """What is printed, and beside it the recipe, the parts of the peak, the time and the reason."""
    columns: Row = {
        "candidate_key": row.candidate.key,
        **row.candidate.axes(),
        **row.to_json(),
        "reason": row.reason,
        **split_columns(row.split),
    }
    if row.measurement is not None:
        columns |= {name: getattr(row.measurement, name) for name in _TIMES}
    if (short := row.shortage) is not None:
        columns |= {
            "oom_kind": short.kind.value,
            "asked_bytes": short.asked_bytes,
            "free_bytes": short.free_bytes,
            "short_bytes": short.short_bytes,
        }
    return columns
