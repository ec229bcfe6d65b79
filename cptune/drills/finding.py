"""What became of a provoked failure, and of its controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cptune.drills.ranks import Ranks

Figure = float | int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a guard said of a fault. Without its controls a refusal shows nothing.

    Args:
        refused: Whether the guard refused the fault, for the reason that it has.
        said: The guard's own words; what happened instead where it said nothing.
        controls: What must hold beside it, such as that the same without the fault passes.
        figures: What was measured, by name.
    """

    refused: bool
    said: str
    controls: Mapping[str, bool]
    figures: Mapping[str, Figure]

    @property
    def caught(self) -> bool:
        """Whether the fault was refused, and every control holds."""
        return self.refused and all(self.controls.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """One failure to provoke.

    Args:
        name: As the command line takes it.
        section: Of the method that the failure is from.
        failure: What goes wrong, in one line.
        guard: Who must catch it.
        judge: Puts what `provoke` brought before the guard.
        provoke: Has the failure on real ranks; None: the guard needs none.
        comes_last: Whether it ends the ranks, so that who comes after it would wait for new ones.
    """

    name: str
    section: str
    failure: str
    guard: str
    judge: Callable[[Any], Finding]
    provoke: Callable[[Ranks], object] | None = None
    comes_last: bool = False

    def to_json(self) -> dict[str, object]:
        """As `cptune drill --list --format json` has it."""
        return {
            "name": self.name,
            "section": self.section,
            "failure": self.failure,
            "guard": self.guard,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Drilled:
    """A drill, and what became of it."""

    drill: Drill
    finding: Finding

    def to_json(self) -> dict[str, object]:
        """As `cptune drill --format json` has it."""
        found = self.finding
        return {
            **self.drill.to_json(),
            "caught": found.caught,
            "evidence": {
                "said": found.said,
                "controls": dict(found.controls),
                "figures": dict(found.figures),
            },
        }
