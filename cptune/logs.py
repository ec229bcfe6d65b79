"""What a run did and when, one JSON object a line; for people and scripts, never read back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import IO


class EventLog:
    """Appends events to a file; each line is flushed as it is written."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def write(self, event: str, **fields: object) -> None:
        """Append one event with the time of now, UTC."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"at": now, "event": event, **fields}, default=str)
        self._file.write(line + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
