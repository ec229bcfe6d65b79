"""A table that somebody else made, Parquet or CSV, as plain rows."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cptune.errors import SpecError
from cptune.store.row import Row
from topology.inputs import cannot_read

_MAGIC = b"PAR1"


def read_plain_table(path: Path) -> list[Row]:
    """The rows of a Parquet or CSV file by column; cells of a CSV are texts, an empty one is None.

    Raises:
        SpecError: when it cannot be read, or a CSV has no header or a row with more cells than it.
    """
    try:
        with path.open("rb") as file:
            is_parquet = file.read(len(_MAGIC)) == _MAGIC
        return _read_parquet(path) if is_parquet else _read_csv(path)
    except (OSError, ValueError, csv.Error, pa.ArrowException) as exc:
        raise SpecError(
            cannot_read(path, exc), hint="wanted a Parquet or CSV file, or a run directory"
        ) from exc


def _read_parquet(path: Path) -> list[Row]:
    rows: list[Row] = pq.read_table(path).to_pylist()
    return rows


def _read_csv(path: Path) -> list[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        if not reader.fieldnames:
            raise ValueError("it is empty")
        rows = list(reader)
    for row in rows:
        if None in row:
            raise ValueError(f"a row has more cells than the header: {row[None]}")
    return [{name: value or None for name, value in row.items()} for row in rows]
