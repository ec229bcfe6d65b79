"""What a run did and when, one JSON object a line; for people and scripts, never read back."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO


class EventLog:
    """Appends events to a file; each line is flushed as it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def write(self, event: str, **fields: object) -> None:
        """Append one event with the time of now, UTC."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"at": now, "event": event, **fields}, default=str)
        with self._named():
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with self._named():
            self._file.close()

    @contextmanager
    def _named(self) -> Generator[None]:
        """What the system refuses inside names the file: a handle's error does not."""
        try:
            yield
        except OSError as exc:
            raise OSError(exc.errno, f"cannot write: {exc.strerror}", str(self._path)) from exc
