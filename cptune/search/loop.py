"""The loop: ask, place, launch, keep, tell, until the budget or the legal set is spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cptune.domain.candidate import Candidate
from cptune.domain.depth import Depth
from cptune.domain.guards import why_not_applied, why_unlike, why_unlike_batch
from cptune.domain.outcome import RETRIED, Failure, Measurement
from cptune.domain.stamp import Stamp
from cptune.domain.study import Budget
from cptune.domain.trial import Predicted, Trial
from cptune.seams import Clock, Launcher, Ledger, Observer, Sampler
from cptune.search.choose import Choice, Limits, choose
from cptune.search.space import SearchSpace

_MAX_ATTEMPTS = 2


#: What is expected of a candidate; None where nobody can tell.
Predict = Callable[[Candidate], Predicted | None]


#: Why a measurement cannot be what it says; None where nothing speaks against it.
Guard = Callable[[Measurement, Candidate], Failure | None]


def _nothing(candidate: Candidate) -> None:
    del candidate


def _nothing_wrong(measurement: Measurement, candidate: Candidate) -> None:
    del measurement, candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """Everything of the world that the loop touches."""

    sampler: Sampler
    launcher: Launcher
    ledger: Ledger
    clock: Clock
    observer: Observer
    predict: Predict = _nothing
    guard: Guard = _nothing_wrong


class SearchLoop:
    """One search over a legal set, from what the ledger already holds.

    Args:
        space: The legal set.
        limits: What a recipe must keep to.
        budget: When to stop.
        stamp: What every trial is stamped with.
        seams: The world.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        limits: Limits,
        budget: Budget,
        stamp: Stamp,
        seams: Seams,
    ) -> None:
        self._space, self._limits, self._budget = space, limits, budget
        self._stamp, self._seams = stamp, seams
        self._trials = list(seams.ledger.read())
        for name in seams.ledger.quarantined:
            seams.observer.note(f"quarantined {name}")
        seams.sampler.restore(self._finished())

    @property
    def trials(self) -> Sequence[Trial]:
        """Every attempt kept so far."""
        return self._trials

    def run(self) -> Choice:
        """Try candidates until the trials, the time or the legal set is spent; then choose."""
        clock, sampler = self._seams.clock, self._seams.sampler
        total = min(self._budget.trials, len(self._space.candidates))
        deadline_s = clock.monotonic_s() + self._budget.wall_s
        while (done := len(self._finished())) < total:
            if clock.monotonic_s() >= deadline_s:
                self._seams.observer.note(
                    f"the time budget of {self._budget.wall_s:g} s ended after {done} of {total} "
                    "candidates"
                )
                break
            candidate = sampler.ask(among=self._owed(total - done))
            if candidate is None:
                break
            self._seams.observer.trial_started(candidate, done=done, total=total)
            trial = self._try(candidate)
            sampler.tell(trial)
            self._seams.observer.trial_finished(trial, best=self._choice().trial)
        return self._choice()

    def confirm(self, full: Launcher) -> Choice:
        """Run what is chosen at full depth, until the choice is one that was.

        Args:
            full: Runs whole models, where the trials so far may have been of fewer layers.
        """
        while (chosen := self._choice().trial) is not None and _depth(chosen.outcome) is not None:
            self._seams.observer.note(f"{chosen.candidate.describe()} is run at full depth")
            trial = self._attempt(
                chosen.candidate, number=chosen.number, attempt=chosen.attempt + 1, launcher=full
            )
            self._seams.ledger.append(trial)
            self._trials.append(trial)
            self._seams.observer.trial_finished(trial, best=self._choice().trial)
        return self._choice()

    def _choice(self) -> Choice:
        return choose(self._finished(), self._space, self._limits)

    def _finished(self) -> list[Trial]:
        """The last attempt of each candidate, unless another attempt is due."""
        latest = {trial.candidate.key: trial for trial in self._trials}
        return [trial for trial in latest.values() if not _is_due_again(trial)]

    def _owed(self, remaining: int) -> set[str] | None:
        """What the certificate still needs, once the budget is only just enough for it.

        A recipe is certified when every smaller CP is ruled out, so its candidates come first when
        no other trial can be afforded any more.
        """
        chosen = self._choice().trial
        if chosen is None:
            return None
        tried = {trial.candidate.key for trial in self._finished()}
        owed = {
            candidate.key
            for candidate in self._space.candidates
            if candidate.layout.cp < chosen.candidate.layout.cp and candidate.key not in tried
        }
        return owed if owed and remaining <= len(owed) else None

    def _try(self, candidate: Candidate) -> Trial:
        before = [trial for trial in self._trials if trial.candidate.key == candidate.key]
        number = before[0].number if before else self._next_number()
        attempt = len(before)
        while True:
            trial = self._attempt(candidate, number=number, attempt=attempt)
            self._seams.ledger.append(trial)
            self._trials.append(trial)
            if not _is_due_again(trial):
                return trial
            self._seams.observer.note(f"{candidate.describe()} is tried again: {trial.reason}")
            attempt += 1

    def _next_number(self) -> int:
        return 1 + max((trial.number for trial in self._trials), default=-1)

    def _attempt(
        self,
        candidate: Candidate,
        *,
        number: int,
        attempt: int,
        launcher: Launcher | None = None,
    ) -> Trial:
        launcher, clock = launcher or self._seams.launcher, self._seams.clock
        # Before the launch: an expectation is none once the answer is known.
        predicted = self._seams.predict(candidate)
        placement = launcher.place(candidate)
        started_at = clock.utc()
        outcome = self._guarded(candidate, launcher.launch(candidate, placement))
        return Trial(
            number=number,
            attempt=attempt,
            candidate=candidate,
            placement=placement,
            outcome=outcome,
            convergence_fingerprint=self._stamp.convergence,
            execution_fingerprint=self._stamp.execution,
            started_at=started_at,
            finished_at=clock.utc(),
            predicted=predicted,
        )

    def _guarded(
        self, candidate: Candidate, outcome: Measurement | Failure
    ) -> Measurement | Failure:
        if isinstance(outcome, Failure):
            return outcome
        # A model of fewer layers starts with another loss.
        depth = _layers(outcome)
        alike = (one for one in self._trials if one.measurement and _layers(one.outcome) == depth)
        anchor = next(alike, None)
        return (
            why_not_applied(outcome, candidate.layout)
            or self._seams.guard(outcome, candidate)
            or why_unlike_batch(outcome, candidate.layout)
            or why_unlike(outcome, anchor)
            or outcome
        )


def _depth(outcome: Measurement | Failure) -> Depth | None:
    return outcome.depth if isinstance(outcome, Measurement) else None


def _layers(outcome: Measurement | Failure) -> tuple[int, int] | None:
    depth = _depth(outcome)
    return None if depth is None else depth.layers_measured


def _is_due_again(trial: Trial) -> bool:
    return trial.kind in RETRIED and trial.attempt + 1 < _MAX_ATTEMPTS
