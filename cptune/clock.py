"""The clocks of this machine, as `cptune.seams.Clock` wants them."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    """The clocks of this machine."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()

    def utc(self) -> str:
        """Now, to the millisecond."""
        return datetime.now(UTC).isoformat(timespec="milliseconds")
