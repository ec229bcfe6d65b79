"""The Optuna journal of a run: repaired before it is opened, refused where it cannot be.

Optuna appends to a line that a full disk or a kill cut short, and from then on the file cannot be
read. One driver holds the run directory, so that a lock file found here belongs to a dead one; left
there it would block for 30 s.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from cptune.errors import LedgerError

#: What a replay of records that make no history raises.
_NO_HISTORY = (KeyError, IndexError, TypeError, ValueError, AttributeError, AssertionError)


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A study in a journal file of a run directory that this process holds."""

    path: Path


def open_journal(path: Path) -> JournalStorage:
    """Open the journal, made where it is not there, without the lock and the torn line of a crash.

    Raises:
        LedgerError: when it cannot be read, or is no journal but for its last line.
    """
    try:
        for left in path.parent.glob(f"{path.name}.lock*"):  # also half renamed ones
            left.unlink(missing_ok=True)
        _cut_torn_line(path)
        _check_lines(path)
        backend = JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path)))
        return JournalStorage(backend)
    except OSError as exc:
        raise LedgerError(f"cannot use the journal {path}: {exc.strerror or exc}") from exc
    except _NO_HISTORY as exc:
        raise LedgerError(f"{path} is no journal of Optuna: {exc!r}") from exc


def _cut_torn_line(path: Path) -> None:
    """Keep what ends in a newline: Optuna writes records and their newline in one go."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        whole = file.read()
        kept = whole.rfind(b"\n") + 1
        if kept < len(whole):
            file.truncate(kept)
            os.fsync(file.fileno())


def _check_lines(path: Path) -> None:
    """Optuna skips nothing and names no line, so each is looked at here.

    Raises:
        ValueError: naming the first line that is no record.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as exc:
                raise ValueError(f"line {number} is no JSON") from exc
            if not isinstance(record, dict) or not isinstance(record.get("op_code"), int):
                raise ValueError(f"line {number} is no record")
