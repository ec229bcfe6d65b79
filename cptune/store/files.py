"""Files that are whole or absent, whatever ends the process that writes them."""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

from cptune.errors import LedgerError

TEMPORARY_PREFIX = ".tmp-"
_NAME_PART = 32  # characters of the name, so that with the rest no system finds it too long


def write_durably(path: Path, data: bytes) -> None:
    """Write to a temporary name in the same directory, fsync, rename, fsync the directory.

    Raises:
        LedgerError: when the file cannot be written; nothing of it is left.
    """
    temporary = path.with_name(
        f"{TEMPORARY_PREFIX}{path.name[:_NAME_PART]}-{os.getpid()}-{secrets.token_hex(4)}"
    )
    try:
        if path.exists() and not path.is_file():
            raise LedgerError(f"cannot write {path}: it is there and is no regular file")
        with temporary.open("xb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as exc:
        with suppress(OSError):
            temporary.unlink()
        raise LedgerError(f"cannot write {path}: {exc.strerror or exc}") from exc


def sha256_of(data: bytes) -> str:
    """The digest by which a file is known again."""
    return hashlib.sha256(data).hexdigest()


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
