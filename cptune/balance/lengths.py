"""Document lengths from text, CSV and JSONL files, plain or gzip, a block at a time.

A line may hold one document or the documents of one packed row, whose order is kept. Parquet comes
in through `cptune.store`.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from cptune.balance.work import LONGEST, Tokens
from cptune.errors import SpecError
from topology.inputs import cannot_read
from topology.words import suggestion

NAMES = ("length", "lengths", "tokens", "num_tokens", "token_count", "seq_len", "len")
_BLOCK_LINES = 1 << 16
_GZIP = b"\x1f\x8b"
_SHOWN = 40  # characters of a bad value
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_JSON_LINES = frozenset({".jsonl", ".ndjson", ".json"})


class CsvReader(Protocol):
    """What csv.reader gives, whose own type has no public name."""

    @property
    def line_num(self) -> int:
        """Lines read so far."""
        ...

    def __iter__(self) -> Iterator[list[str]]: ...


def read_lengths(path: Path, *, column: str | None = None) -> Iterator[Tokens]:
    """Blocks of lengths, in the order of the file.

    Args:
        path: `.csv` and `.tsv`: one column. `.jsonl`: a number, a list or an object a line. Else
            text: whole numbers a line. Each may be gzip, whatever its name.
        column: The column or key; where omitted, the only one or the first of `NAMES`.

    Raises:
        SpecError: when the file cannot be read or holds anything but lengths, with line and value.
    """
    seen = False
    try:
        with _open(path) as lines:
            for block in _blocks(lines, path=path, column=column):
                seen = seen or len(block) > 0
                yield block
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as exc:
        raise SpecError(cannot_read(path, exc), hint="wanted a file of lengths") from exc
    if not seen:
        raise SpecError(f"{path} is empty; wanted document lengths in tokens")


def _open(path: Path) -> IO[str]:
    with path.open("rb") as handle:
        packed = handle.read(2) == _GZIP
    if packed:
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _blocks(lines: IO[str], *, path: Path, column: str | None) -> Iterator[Tokens]:
    kind = path.suffixes[-2] if path.suffix == ".gz" and len(path.suffixes) > 1 else path.suffix
    if kind in _DELIMITERS:
        return _csv_blocks(lines, path=path, column=column, delimiter=_DELIMITERS[kind])
    if kind in _JSON_LINES:
        return _jsonl_blocks(lines, path=path, column=column)
    if column is not None:
        raise SpecError(f"{path} is text and has no column {column!r}; wanted no --column")
    return _text_blocks(lines, path=path)


def _text_blocks(lines: IO[str], *, path: Path) -> Iterator[Tokens]:
    first = 1
    while block := list(islice(lines, _BLOCK_LINES)):
        try:
            found = np.array([int(word) for line in block for word in line.split()], dtype=np.int64)
        except (ValueError, OverflowError):
            found = None
        if found is None or (len(found) and not 1 <= found.min() <= found.max() <= LONGEST):
            at = f"{path}:"
            found = _checked((f"{at}{first + n}", line.split()) for n, line in enumerate(block))
        yield found
        first += len(block)


def _csv_blocks(
    lines: IO[str], *, path: Path, column: str | None, delimiter: str
) -> Iterator[Tokens]:
    reader = csv.reader(lines, delimiter=delimiter)
    try:
        head = next(reader, [])
        found = _column_index(head, path=path, column=column)
        index = found or 0
        if found is None and head:  # without a header the first line is data
            yield _checked(iter([(f"{path}:1", head[:1])]))
        name = None if found is None else head[index].strip()
        while rows := _csv_rows(reader):
            cells = ((f"{path}:{at}", row[index : index + 1] or [""]) for at, row in rows)
            yield _checked(cells, column=name)
    except csv.Error as exc:
        raise SpecError(f"{path}:{reader.line_num}: {exc}") from exc


def _csv_rows(reader: CsvReader) -> list[tuple[int, list[str]]]:
    return [(reader.line_num, row) for row in islice(reader, _BLOCK_LINES) if row]


def _column_index(head: Sequence[str], *, path: Path, column: str | None) -> int | None:
    """Where the lengths stand; None for a file of one column without a header."""
    names = [name.strip() for name in head]
    if column is not None:
        if column not in names:
            raise no_column(f"{path}:1", column, names=names)
        return names.index(column)
    if len(names) == 1:
        return None if _number(names[0]) is not None else 0
    known = [names.index(name) for name in NAMES if name in names]
    if not known and names:
        raise no_column(f"{path}:1", None, names=names)
    return known[0] if known else None


def _jsonl_blocks(lines: IO[str], *, path: Path, column: str | None) -> Iterator[Tokens]:
    first = 1
    while block := list(islice(lines, _BLOCK_LINES)):
        at = (f"{path}:{first + number}" for number in range(len(block)))
        rows = (
            (place, _json_values(line, at=place, column=column))
            for place, line in zip(at, block, strict=True)
            if line.strip()
        )
        yield _checked(rows, column=column)
        first += len(block)


def _json_values(line: str, *, at: str, column: str | None) -> Sequence[object]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as exc:  # endless numbers, deep nests
        raise SpecError(f"{at}: {_show(line.strip())} is not JSON; wanted a number") from exc
    if isinstance(value, dict):
        keys = NAMES if column is None else (column,)
        key = next((name for name in keys if name in value), None)
        if key is None:
            raise SpecError(
                f"{at}: {_show(line.strip())} has no key {' or '.join(keys)}"
                + (f"{suggestion(column, value)}" if column else ""),
                hint=f"--column NAME: there are {', '.join(value) or 'none'}",
            )
        value = value[key]
    return value if isinstance(value, list) else [value]


def no_column(at: str, column: str | None, *, names: Sequence[str]) -> SpecError:
    """The refusal of a column that is not there, or of a choice that nobody can make."""
    there = ", ".join(names)
    if column is not None:
        said = f"{at}: no column {column!r}; there are {there}{suggestion(column, names)}"
        return SpecError(said, hint="--column NAME")
    return SpecError(
        f"{at}: which of the columns {there} holds the lengths is not known",
        hint=f"wanted one of {', '.join(NAMES)}, or --column NAME",
    )


def _checked(rows: Iterator[tuple[str, Sequence[object]]], *, column: str | None = None) -> Tokens:
    """The values of all rows, of a column where there are several.

    Raises:
        SpecError: at the first that is no length.
    """
    return np.array(
        [_length(value, at=at, column=column) for at, row in rows for value in row], dtype=np.int64
    )


def _length(value: object, *, at: str, column: str | None) -> int:
    number = _number(value)
    if number is None or not 1 <= number <= LONGEST or number != int(number):
        of = "" if column is None else f" of column {column!r}"
        raise SpecError(
            f"{at}: {_show(value)}{of} is no document length; "
            f"wanted a whole number from 1 to {LONGEST:,}"
        )
    return int(number)


def _number(value: object) -> float | None:
    """What a cell or a JSON value says, if a number; a NaN is a number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


def check_values(values: Sequence[object], *, path: Path, first: int, column: str) -> Tokens:
    """Lengths that a reader of another format found; `first` is the row of the first one.

    Raises:
        SpecError: at the first that is no length.
    """
    rows = (
        (f"{path}: row {first + number}", value if isinstance(value, list) else [value])
        for number, value in enumerate(values)
    )
    return _checked(rows, column=column)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
