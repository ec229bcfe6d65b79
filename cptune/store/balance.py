"""Document lengths out of Parquet columns, and the rows of a balance study into Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cptune.balance.lengths import NAMES, check_values, no_column, read_lengths
from cptune.balance.spread import SpreadRow
from cptune.balance.study import row_fields
from cptune.balance.work import LONGEST, Tokens
from cptune.errors import SpecError
from cptune.store import schema
from cptune.store.files import write_durably
from cptune.store.ledger import encode
from topology.inputs import cannot_read

_MAGIC = b"PAR1"
_BLOCK_ROWS = 1 << 17
_BUFFER_BYTES = 1 << 20


def open_lengths(path: Path, column: str | None = None) -> Iterator[Tokens]:
    """Blocks of document lengths from any file that cptune reads, Parquet or text.

    Raises:
        SpecError: when the file cannot be read or holds anything but lengths, with line and value.
    """
    try:
        with path.open("rb") as handle:
            parquet = handle.read(len(_MAGIC)) == _MAGIC
    except OSError as exc:
        raise SpecError(cannot_read(path, exc)) from exc
    if not parquet:
        return read_lengths(path, column=column)
    return _read_column(path, column=column)


def write_balance(path: Path, rows: Sequence[SpreadRow]) -> None:
    """Keep the rows of a study.

    Raises:
        LedgerError: when the file cannot be written.
    """
    write_durably(path, encode([row_fields(row) for row in rows], schema.BALANCE))


def _read_column(path: Path, *, column: str | None) -> Iterator[Tokens]:
    first = 1
    try:
        # Buffered ahead, as is the default, the whole column would stay in memory.
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER_BYTES) as file:
            name = _column_name(file.schema_arrow, path=path, column=column)
            for batch in file.iter_batches(batch_size=_BLOCK_ROWS, columns=[name]):
                yield _block(batch.column(0), path=path, first=first, column=name)
                first += batch.num_rows
    except (OSError, ValueError, pa.ArrowException) as exc:  # a value Python has no type for
        raise SpecError(cannot_read(path, exc)) from exc
    if first == 1:
        raise SpecError(f"{path} is empty; wanted document lengths in tokens")


def _column_name(columns: pa.Schema, *, path: Path, column: str | None) -> str:
    names: list[str] = columns.names
    found = [column] if column is not None else [name for name in NAMES if name in names]
    if column is None and len(names) == 1:
        found = names
    if not found or found[0] not in names:
        raise no_column(f"{path}", column, names=names)
    return found[0]


def _block(values: pa.Array, *, path: Path, first: int, column: str) -> Tokens:
    """The lengths of one block; a list in a row is a packed row."""
    if pa.types.is_integer(values.type) and values.null_count == 0:
        # What an unsigned column holds beyond int64 turns negative, so it is refused below.
        found = values.cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False)
        if not len(found) or 1 <= found.min() <= found.max() <= LONGEST:
            return np.asarray(found, dtype=np.int64)
    return check_values(values.to_pylist(), path=path, first=first, column=column)
