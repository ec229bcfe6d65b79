"""Sizes in words for messages; numbers inside stay plain bytes and seconds."""

from __future__ import annotations

_STEPS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def bytes_text(count: int) -> str:
    """A byte count in the largest binary unit that keeps it above one."""
    for size, unit in _STEPS:
        if abs(count) >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"
