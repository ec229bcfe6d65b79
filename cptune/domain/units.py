"""Sizes in words for messages; numbers inside stay plain bytes and seconds."""

from __future__ import annotations

from collections.abc import Iterable

_STEPS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def bytes_text(count: int | None) -> str:
    """A byte count in the largest binary unit that keeps it above one; None: nobody saw it."""
    if count is None:
        return "unknown"
    for size, unit in _STEPS:
        if abs(count) >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


def common_unit(counts: Iterable[float]) -> tuple[int, str]:
    """The largest binary unit, GiB at most, in which none of the counts above zero is below one."""
    least = min((count for count in counts if count > 0), default=0)
    for size, unit in _STEPS[1:]:
        if least >= size:
            return size, unit
    return 1, "B"


def in_unit(count: float, size: int) -> str:
    """A count in a unit to a tenth; to two digits where that would read 0.0."""
    value = count / size
    return f"{value:.1f}" if value == 0 or abs(value) >= 0.1 else f"{value:.2g}"
