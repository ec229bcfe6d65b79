"""How a condition that a recipe was found under stands now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Standing(StrEnum):
    """How a condition stands now. What is not known now forces nothing, and is said."""

    SAME = "same"
    CHANGED = "changed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One thing that a recipe depends on; None: not told then, or not known now."""

    what: str
    then: str | None
    now: str | None

    @property
    def standing(self) -> Standing:
        """Whether it has changed."""
        if self.then is None or self.now is None:
            return Standing.UNKNOWN
        return Standing.SAME if self.then == self.now else Standing.CHANGED
