"""Files that are whole or absent, whatever ends the process that writes them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from cptune.errors import LedgerError

TEMPORARY_PREFIX = ".tmp-"


def write_durably(path: Path, data: bytes) -> None:
    """Write to a temporary name in the same directory, fsync, rename, fsync the directory.

    Raises:
        LedgerError: when the file cannot be written; nothing of it is left.
    """
    with _temporary(path) as temporary:
        with temporary.open("xb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
        sync_directory(path.parent)


def check_writable(path: Path) -> None:
    """Try what `write_durably` will do, short of the rename: what is there stays as it is.

    Raises:
        LedgerError: when the file could not be written.
    """
    with _temporary(path) as temporary:
        temporary.open("xb").close()
        temporary.unlink()


@contextmanager
def _temporary(path: Path) -> Generator[Path]:
    """A temporary name beside a file; nothing is left under it after an error.

    Raises:
        LedgerError: for whatever the system refused inside.
    """
    try:
        if path.exists() and not path.is_file():
            raise LedgerError(f"cannot write {path}: it is there and is no regular file")
        temporary = path.with_name(
            f"{TEMPORARY_PREFIX}{path.name}-{os.getpid()}-{secrets.token_hex(4)}"
        )
    except OSError as exc:
        raise LedgerError(f"cannot write {path}: {exc.strerror or exc}") from exc
    try:
        yield temporary
    except OSError as exc:
        with suppress(OSError):
            temporary.unlink()
        raise LedgerError(f"cannot write {path}: {exc.strerror or exc}") from exc


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_temporaries(directory: Path) -> None:
    """Remove what an ended writer left under a temporary name."""
    for path in directory.glob(f"{TEMPORARY_PREFIX}*"):
        path.unlink(missing_ok=True)
