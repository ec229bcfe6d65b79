"""The Parquet ledger: one file per trial and table, whole or absent; the trials file comes last.

A file that is cut, altered or foreign is quarantined by name and never hides the other rows.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cptune.domain.trial import Trial
from cptune.errors import LedgerError
from cptune.store import schema
from cptune.store.files import remove_temporaries, sha256_of, write_durably
from cptune.store.row import Row
from cptune.store.rows import (
    edge_rows,
    rank_rows,
    step_rows,
    trial_from_rows,
    trial_row,
)
from cptune.store.run_id import read_run_id, settle_run_id
from cptune.store.trace_rows import exposure_rows, was_traced
from cptune.store.traces import TRACES, write_trace

_SATELLITES: dict[str, tuple[pa.Schema, Callable[[Trial], list[Row]]]] = {
    "ranks": (schema.RANKS, rank_rows),
    "edges": (schema.EDGES, edge_rows),
    "steps": (schema.STEPS, step_rows),
    "exposures": (schema.EXPOSURES, exposure_rows),
}
_TABLES = ("trials", *_SATELLITES)


class ParquetLedger:
    """Finished trials in a run directory. One writer at a time: the holder of the run's lock.

    Args:
        directory: The run directory.
        writable: Whether this process may write, sweep temporaries and quarantine.
    """

    def __init__(self, directory: Path, *, writable: bool) -> None:
        self._directory = directory
        self._writable = writable
        self._quarantined: list[str] = []
        if writable:
            for table in _TABLES:
                self._make(table)
                remove_temporaries(directory / table)
            remove_temporaries(directory / TRACES)
            self._run_id: str | None = settle_run_id(directory, kept=self._kept_ids())
        else:
            self._run_id = read_run_id(directory)

    def _kept_ids(self) -> Iterator[str]:
        for path in (self._directory / "trials").glob("*.parquet"):
            with suppress(LedgerError):  # what cannot be read is set aside when it is asked for
                yield from (row["run_id"] for row in decode(path, schema.TRIALS) if row["run_id"])

    @property
    def quarantined(self) -> list[str]:
        """What the last read could not read, as "table/file: why"."""
        return self._quarantined

    def append(self, trial: Trial) -> None:
        """Keep a trial and the trace of its step; it is finished once its trials file has its name.

        That file tells the run and the digests of the others, so that none can stand in for it.

        Raises:
            LedgerError: when a file cannot be written.
        """
        assert self._writable, "a reader does not append"
        assert self._run_id is not None, "a writer has an id"
        name = f"{trial.number:06d}-{trial.candidate.key}-a{trial.attempt}.parquet"
        row = trial_row(trial) | {"run_id": self._run_id}
        for table, (columns, rows) in _SATELLITES.items():
            data = encode(rows(trial), columns)
            write_durably(self._directory / table / name, data)
            row[f"{table}_sha256"] = sha256_of(data)
        row["trace_sha256"] = write_trace(self._directory, trial, run_id=self._run_id)
        write_durably(self._directory / "trials" / name, encode([row], schema.TRIALS))

    def read(self) -> list[Trial]:
        """All trials that can be read, by number and attempt."""
        self._quarantined = []
        found: list[Trial] = []
        for path in sorted((self._directory / "trials").glob("*.parquet")):
            rows = self._rows("trials", path.name, schema.TRIALS)
            if rows is None or not self._is_of_run(rows, path.name):
                continue
            satellites: dict[str, list[Row]] = {}
            for table, (columns, _) in _SATELLITES.items():
                if self._is_due(table, path.name, ranks=satellites.get("ranks", [])):
                    own = self._rows(table, path.name, columns)
                    kept = own is not None and self._belongs(own, rows, table, path.name)
                    satellites[table] = own if own and kept else []
            if not satellites["ranks"]:
                self._quarantine("trials", path.name, why="its ranks are lost: where it ran")
                continue
            try:
                (row,) = rows
                found.append(trial_from_rows(row, **satellites))
            except (KeyError, TypeError, ValueError) as exc:
                self._quarantine("trials", path.name, why=f"holds no trial: {exc}")
        return sorted(found, key=lambda trial: (trial.number, trial.attempt))

    def _is_due(self, table: str, name: str, *, ranks: Sequence[Row]) -> bool:
        """Whether a file must be there: runs from before there were traces have no exposures."""
        there = (self._directory / table / name).exists()
        return table != "exposures" or there or any(map(was_traced, ranks))

    def _is_of_run(self, trial: list[Row], name: str) -> bool:
        """Whether a trial was kept in this run, as far as both tell."""
        odd = {row["run_id"] for row in trial} - {None, self._run_id}
        if self._run_id is None or not odd:
            return True
        self._quarantine("trials", name, why=f"is of run {odd.pop()}, wanted {self._run_id}")
        return False

    def _belongs(self, own: list[Row], trial: list[Row], table: str, name: str) -> bool:
        """Whether rows are of the trial whose file has the same name: files can be swapped."""
        wanted = {(row["candidate_key"], row["attempt"]) for row in trial}
        odd = {(row["candidate_key"], row["attempt"]) for row in own} - wanted
        if not (wanted and odd):
            return self._is_as_written(trial, table, name)
        seen = ", ".join(f"{key} attempt {attempt}" for key, attempt in sorted(odd, key=str))
        of = ", ".join(f"{key} attempt {attempt}" for key, attempt in sorted(wanted, key=str))
        self._quarantine(table, name, why=f"holds rows of {seen}, wanted those of {of}")
        return False

    def _is_as_written(self, trial: list[Row], table: str, name: str) -> bool:
        """Whether a file is the one that was written with its trial, as far as that tells."""
        told = {row[f"{table}_sha256"] for row in trial} - {None}
        path = self._directory / table / name
        if not (told and path.exists()) or (seen := sha256_of(path.read_bytes())) in told:
            return True
        why = f"was altered or is of another run: SHA-256 {seen[:12]}, wanted {told.pop()[:12]}"
        self._quarantine(table, name, why=why)
        return False

    def _rows(self, table: str, name: str, columns: pa.Schema) -> list[Row] | None:
        try:
            return decode(self._directory / table / name, columns)
        except LedgerError as exc:
            self._quarantine(table, name, why=str(exc))
            return None

    def _quarantine(self, table: str, name: str, *, why: str) -> None:
        self._quarantined.append(f"{table}/{name}: {why}")
        path = self._directory / table / name
        if self._writable and path.exists():
            self._make("quarantine")
            path.rename(self._directory / "quarantine" / f"{table}-{name}")

    def _make(self, name: str) -> None:
        try:
            (self._directory / name).mkdir(exist_ok=True)
        except OSError as exc:
            raise LedgerError(f"cannot make {self._directory / name}: {exc.strerror}") from exc


def encode(rows: Sequence[Row], columns: pa.Schema) -> bytes:
    """Rows as the bytes of a Parquet file with page checksums; an absent column is null."""
    unknown = {name for row in rows for name in row} - set(columns.names)
    assert not unknown, f"columns {sorted(unknown)} are not in the schema"
    buffer = io.BytesIO()
    table = pa.Table.from_pylist(list(rows), schema=columns)
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    return buffer.getvalue()


def decode(path: Path, columns: pa.Schema) -> list[Row]:
    """The rows of a Parquet file of this schema; a column that came after it is null.

    Raises:
        LedgerError: when the file is missing, cut, altered or of another schema.
    """
    try:
        table = pq.read_table(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as exc:
        raise LedgerError(f"cannot be read: {exc}") from exc
    if why := schema.why_foreign(table.schema, columns):
        raise LedgerError(f"is foreign: {why}")
    blank = dict.fromkeys(columns.names)
    return [blank | row for row in table.to_pylist()]
