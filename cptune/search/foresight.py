"""What a prediction does in a search: it leaves out what cannot fit, and learns from the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cptune.domain.candidate import Candidate
from cptune.domain.outcome import Failure, OutcomeKind
from cptune.domain.trial import Trial
from cptune.domain.units import bytes_text
from cptune.predict.trials import TrialPredictor
from cptune.seams import Ledger, Observer
from cptune.search.space import SearchSpace

#: Why a candidate cannot fit, from its prediction alone; None where it may.
WhyTooBig = Callable[[Candidate], Failure | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """A candidate that is ruled out without a trial, and why."""

    candidate: Candidate
    failure: Failure


def prune(space: SearchSpace, *, tried: Sequence[Trial], why: WhyTooBig) -> list[Pruned]:
    """The candidates that were not tried yet and cannot fit, in the order of the legal set."""
    known = {trial.candidate.key for trial in tried}
    return [
        Pruned(candidate=one, failure=failure)
        for one in space.candidates
        if one.key not in known and (failure := why(one)) is not None
    ]


def pruned_note(pruned: Sequence[Pruned], *, of: int) -> str:
    """One line on what was left out, with the candidate that came closest to fitting."""
    near = min(pruned, key=lambda one: _short_bytes(one.failure))
    return (
        f"{len(pruned)} of {of} candidates are predicted not to fit and are not tried; nearest, "
        f"{near.candidate.describe()}: {bytes_text(_short_bytes(near.failure))} too much"
    )


def is_pruned(trial: Trial) -> bool:
    """Was it ruled out by its prediction? Such a row costs no budget."""
    return trial.kind is OutcomeKind.INFEASIBLE


def _short_bytes(failure: Failure) -> int:
    return failure.shortage.short_bytes if failure.shortage else 0


class LearningLedger:
    """A ledger whose trials the predictor learns from, as they are read and as they are added.

    Args:
        inner: Who keeps them.
        predictor: Who learns.
        observer: Told when a new version of the model begins.
    """

    def __init__(self, inner: Ledger, predictor: TrialPredictor, observer: Observer) -> None:
        self._inner, self._predictor, self._observer = inner, predictor, observer

    def append(self, trial: Trial) -> None:
        """Keep a trial durably, then learn from it."""
        self._inner.append(trial)
        self._learn([trial])

    def read(self) -> Sequence[Trial]:
        """All kept trials by number and attempt; the model is what they make it."""
        trials = self._inner.read()
        self._learn(trials)
        return trials

    @property
    def quarantined(self) -> Sequence[str]:
        """What the last read could not read."""
        return self._inner.quarantined

    def _learn(self, trials: Sequence[Trial]) -> None:
        if self._predictor.learn(trials):
            known = self._predictor.calibration
            self._observer.model_changed(
                f"predictions are now of model {self._predictor.model_version}: compute "
                f"x{known.compute_factor:.3g}, exposed communication x{known.exposed_factor:.3g}, "
                f"memory x{known.peak_factor:.3g}"
            )
