"""Everything of the world that the search loop touches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cptune.domain.candidate import Candidate
from cptune.domain.outcome import Failure, Measurement
from cptune.domain.proof import Proof
from cptune.domain.trial import Predicted
from cptune.seams import Clock, Launcher, Ledger, Observer, Sampler
from cptune.search.foresight import WhyTooBig

#: What is expected of a candidate; None where nobody can tell.
Predict = Callable[[Candidate], Predicted | None]


#: Why a measurement cannot be what it says; None where nothing speaks against it.
Guard = Callable[[Measurement, Candidate], Failure | None]


#: Whether a candidate computes what the unsharded model computes.
Prove = Callable[[Candidate], Proof]


def nothing(candidate: Candidate) -> None:
    """Expect nothing of a candidate."""
    del candidate


def nothing_wrong(measurement: Measurement, candidate: Candidate) -> None:
    """Hold nothing against a measurement."""
    del measurement, candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """Everything of the world that the loop touches.

    `full` runs whole models, where `launcher` may run fewer layers; None: `launcher` does.
    `finals` too, and follows their steps by what finalists are asked once; None: `full` does.
    `prove` is asked of what is measured as a finalist or chosen; None: nothing is proven.
    """

    sampler: Sampler
    launcher: Launcher
    ledger: Ledger
    clock: Clock
    observer: Observer
    predict: Predict = nothing
    why_too_big: WhyTooBig = nothing
    guard: Guard = nothing_wrong
    full: Launcher | None = None
    finals: Launcher | None = None
    prove: Prove | None = None

    def launcher_of(self, *, turn: int, full: bool) -> Launcher:
        """Who runs a candidate in a round of finals, or in the search at full depth or not."""
        if turn == 1 or (full and turn == 0):
            return self.finals or self.full or self.launcher
        return (self.full or self.launcher) if turn else self.launcher
