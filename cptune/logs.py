"""What a run did and when, one JSON object a line; read back only to say how a run ended."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

#: Events by which a run tells how far it has come.
SWEEP_STARTED, SWEEP_FINISHED = "sweep_started", "sweep_finished"


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


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a log, in order, without lines that were cut short; none where it is lost."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [event for line in lines if (event := _event(line)) is not None]


def _event(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None
