"""What a page about a run is made of: the run as it lies on the disk, judged, and nothing drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from cptune.domain.recipe import Recipe
from cptune.domain.study import Storage, SweepSpec
from cptune.domain.trial import Trial
from cptune.report.summary import Judged, without_password
from topology.nouns import Topology


class RunState(StrEnum):
    """How far a run has come."""

    FINISHED = "finished"
    RUNNING = "still going"
    ENDED = "ended early"  # by a signal, a crash or a lost machine; --resume goes on


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedRun:
    """A run, read whole.

    Args:
        directory: Of the run.
        spec: Resolved.
        state: How far it has come.
        state_note: The same in a sentence; empty for a finished run.
        trials: Every attempt, by number and attempt.
        judged: One a candidate: what the last attempt, or the rounds of finals joined, came to.
        capacity_bytes: What a rank may hold; None where neither recipe, spec nor devices tell.
        recipe: As the run kept it, or, of a run that is not finished, as it would be now; None:
            nothing passes.
        recipe_text: The content of recipe.json; empty where there is none to be believed.
        topology: What ranks were placed on; None: lost.
        trace: The answer of `cptune trace` for the recipe; None: no step of it was traced.
        doubts: What of the run cannot be read, or contradicts the rest, a sentence each.
        quarantined: Files that hold no trial of this run, as "table/file: why".
        notes: What the run said of itself, in order.
        spec_text: The spec as TOML, without a password; empty: not to be shown.
    """

    directory: Path
    spec: SweepSpec
    state: RunState
    state_note: str = ""
    trials: tuple[Trial, ...] = ()
    judged: tuple[Judged, ...] = ()
    capacity_bytes: int | None = None
    recipe: Recipe | None = None
    recipe_text: str = ""
    topology: Topology | None = None
    trace: Mapping[str, Any] | None = None
    doubts: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    spec_text: str = ""

    @property
    def storage(self) -> Storage:
        """Where the study is, as it may be shown."""
        return Storage(study=without_password(self.spec.storage.study))

    @property
    def chosen(self) -> Judged | None:
        """The trial that the recipe was made from."""
        if self.recipe is None:
            return None
        key = self.recipe.candidate.key
        return next((one for one in self.judged if one.trial.candidate.key == key), None)

    @property
    def allowed_bytes(self) -> int | None:
        """The largest peak that leaves the margin free."""
        if self.capacity_bytes is None:
            return None
        return int(self.capacity_bytes * (1 - self.spec.cluster.memory_margin))
