"""The most memory that a rank had at once, by phase; and the high-water mark of its process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Most live bytes in a phase and in all, and the most that was held for them."""

    forward_bytes: int
    backward_bytes: int
    allocated_bytes: int
    reserved_bytes: int


def restart_process_peak() -> None:
    """Start the high-water mark of this process anew (proc(5), clear_refs 5)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def process_peak_bytes() -> int:
    """The high-water mark of this process's resident memory since `restart_process_peak`."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert found, "proc(5) promises VmHWM"
    return int(found.group(1)) * 1024
