"""A band of memory beside what a device holds, so that the verdict follows from what is read."""

from __future__ import annotations

from dataclasses import dataclass

from cptune.domain.units import bytes_text, common_unit

#: How the verdict follows from a band, for a line beside it.
FIT_RULE = "fits: yes where high is inside the margin, no where low is above the device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The lowest, likely and highest peak of the worst rank, and what they are held to, in bytes.

    `capacity_bytes` is that of a device, `inside_bytes` what the margin leaves; 0 where not known.
    """

    low_bytes: float
    likely_bytes: float
    high_bytes: float
    capacity_bytes: int
    inside_bytes: int

    def __str__(self) -> str:
        """All five in one unit, to two digits."""
        size, _ = self._unit()
        return f"{self.band} of {bounds_text(self.capacity_bytes, self.inside_bytes, size=size)}"

    @property
    def band(self) -> str:
        """The three peaks, in the unit of all five."""
        size, unit = self._unit()
        peaks = (self.low_bytes, self.likely_bytes, self.high_bytes)
        low, likely, high = (f"{one / size:.2f}" for one in peaks)
        return f"low {low}, likely {likely}, high {high} {unit}"

    def _unit(self) -> tuple[int, str]:
        return common_unit((self.low_bytes, self.likely_bytes, self.high_bytes, self.inside_bytes))


def bounds_text(capacity_bytes: int, inside_bytes: int, *, size: int) -> str:
    """What a device holds and what the margin leaves, in a unit that is named beside it."""
    if not capacity_bytes:
        return "a device of unknown capacity"
    return f"{capacity_bytes / size:.2f} a device, {inside_bytes / size:.2f} inside the margin"


def beyond_text(beyond_bytes: int, reserve_bytes: int) -> str:
    """By how much the likely peak, with what a process holds beside it, misses the margin."""
    outside = f" with {bytes_text(reserve_bytes)} outside the allocator" if reserve_bytes else ""
    return f"likely {bytes_text(beyond_bytes)} beyond the margin{outside}"
