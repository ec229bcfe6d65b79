"""Ends what a local Ray leaves when its driver is killed: Ray's own agents may stay for ever.

Runs as a process of its own, `python reaper.py PID`: it waits for the end of its standard input,
which the driver PID holds, then kills every process that has a file of the driver's Ray session
open. Ray's processes overwrite their environment, so that no variable there would tell them.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

_PATIENCE_S = 10.0
_POLL_S = 0.05


def main(driver: str) -> None:
    """Wait for the driver to end or to close its side, then leave nothing of its Ray."""
    sys.stdin.buffer.read()
    own = {os.getpid(), int(driver)}
    inside = re.compile(rf"/session_[0-9_-]+_{driver}/")  # ray: session_DATE_TIME_PID
    deadline = time.monotonic() + _PATIENCE_S
    while (pids := _holders(inside) - own) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_POLL_S)


def _holders(inside: re.Pattern[str]) -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if any(inside.search(str(link.readlink())) for link in (path / "fd").iterdir()):
                found.add(int(path.name))
        except OSError:
            continue
    return found


if __name__ == "__main__":
    main(sys.argv[1])
