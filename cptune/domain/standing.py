"""How a condition that a recipe was found under stands now, and its figures in another run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
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


class Likeness(StrEnum):
    """What a figure of the other run is to that of the recipe."""

    SAME = "same"
    WITHIN = "within"
    DIFFERS = "differs"
    UNKNOWN = "unknown"
    NOT_JUDGED = "not judged"  # of another execution


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure, then and now; `rule` is what was wanted, or why nothing is known."""

    what: str
    then: object
    now: object
    verdict: Likeness
    rule: str

    def to_json(self) -> dict[str, object]:
        """As `cptune recipe reproduce --format json` prints it."""
        return asdict(self)
