"""The loop: ask, place, launch, keep, tell, until the budget is spent; then the finals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cptune.domain import guards
from cptune.domain.candidate import Candidate
from cptune.domain.outcome import RETRIED, Failure, Measurement
from cptune.domain.proof import Proof
from cptune.domain.stamp import Stamp
from cptune.domain.study import Budget
from cptune.domain.trial import Trial, searched
from cptune.search.choose import Choice, Limits, choose, finalists_of
from cptune.search.foresight import is_pruned, prune, pruned_note
from cptune.search.proven import Proofs
from cptune.search.seams import Seams
from cptune.search.space import SearchSpace

_MAX_ATTEMPTS = 2


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
        self._proofs = Proofs(seams.prove, seams.observer)
        self._trials = list(seams.ledger.read())
        for name in seams.ledger.quarantined:
            seams.observer.note(f"quarantined {name}")
        seams.sampler.restore(self._finished())

    @property
    def trials(self) -> Sequence[Trial]:
        """Every attempt kept so far."""
        return self._trials

    def proof_of(self, candidate: Candidate) -> Proof | None:
        """The proof that a candidate computes what the unsharded model computes."""
        return self._proofs.of(candidate)

    def run(self) -> Choice:
        """Try candidates until the trials, the time or the legal set is spent; then choose.

        What the choice lies between is measured again, in turns, before it is made.
        """
        clock, sampler = self._seams.clock, self._seams.sampler
        if self._finished():
            self._prune()
        deadline_s = clock.monotonic_s() + self._budget.wall_s
        while True:
            done, total = self._progress()
            if done >= total:
                break
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
            self._prune()
        self._run_finals(deadline_s=deadline_s)
        self._confirm(deadline_s=deadline_s)
        return self._choice()

    def _run_finals(self, *, deadline_s: float) -> None:
        """Measure the finalists in turns, round by round, as far as the time goes."""
        finalists = finalists_of(self._finished(), self._limits)
        turns = self._budget.finalist_rounds if finalists else 0
        clock, observer = self._seams.clock, self._seams.observer
        for turn in range(1, turns + 1):
            due = [trial for trial in finalists if self._is_due(trial.candidate, turn)]
            left_s = deadline_s - clock.monotonic_s()
            if due and sum(trial.again_s for trial in due) >= left_s:
                observer.note(
                    f"round {turn} of {turns} of the {len(finalists)} finalists does not fit in "
                    f"the {max(0.0, left_s):.0f} s left of the time budget of "
                    f"{self._budget.wall_s:g} s: the choice rests on what was timed before"
                )
                return
            for trial in due:
                observer.finalist_started(trial.candidate, turn=turn, turns=turns)
                again = self._try(trial.candidate, turn=turn)
                observer.trial_finished(again, best=self._choice().trial)

    def _is_due(self, candidate: Candidate, turn: int) -> bool:
        """Whether a finalist still has to run in a round; not once it failed for good."""
        own = [one for one in self._trials if one.round and one.candidate.key == candidate.key]
        failed = any(one.measurement is None and one.kind not in RETRIED for one in own)
        last = next((one for one in reversed(own) if one.round == turn), None)
        return not failed and (last is None or self._is_due_again(last))

    def _confirm(self, *, deadline_s: float) -> None:
        """Run what is chosen at full depth, cross-check and prove it, until a choice stands."""
        checked: set[str] = set()
        while (chosen := self._choice().trial) is not None:
            if chosen.depth is not None:
                why = "is run at full depth"
            elif self._lacks_check(chosen, deadline_s) and chosen.candidate.key not in checked:
                why = "is run again, to cross-check its exposed communication by ablation"
            elif self._refute(chosen):
                continue
            else:
                return
            checked.add(chosen.candidate.key)
            self._seams.observer.note(f"{chosen.candidate.describe()} {why}")
            trial = self._try(chosen.candidate, full=True)
            self._seams.observer.trial_finished(trial, best=self._choice().trial)

    def _refute(self, chosen: Trial) -> bool:
        """Keep the failure of a choice that its proof refutes; False where it stands."""
        failure = self._proofs.why_wrong(chosen.candidate)
        if failure is None:
            return False
        now = self._seams.clock.utc()
        attempts = sum(one.candidate.key == chosen.candidate.key for one in self._trials)
        refuted = replace(
            chosen,
            attempt=attempts,
            outcome=failure,
            started_at=now,
            finished_at=now,
            proof_id=self._proofs.id_of(chosen.candidate),
        )
        self._seams.ledger.append(refuted)
        self._trials.append(refuted)
        self._seams.observer.trial_finished(refuted, best=self._choice().trial)
        return True

    def _lacks_check(self, chosen: Trial, deadline_s: float) -> bool:
        """Whether a cross-check was asked for, is missing, and there is time for it."""
        if self._seams.finals is None or self._budget.finalist_rounds == 0:
            return False
        has_time = chosen.again_s < deadline_s - self._seams.clock.monotonic_s()
        return has_time and chosen.measurement is not None and chosen.measurement.lacks_ablation

    def _choice(self) -> Choice:
        finals = [trial for trial in self._trials if trial.round]
        return choose([*self._finished(), *finals], self._space, self._limits)

    def _finished(self) -> list[Trial]:
        """The last attempt of each candidate in the search, unless another attempt is due."""
        latest = {trial.candidate.key: trial for trial in searched(self._trials)}
        return [trial for trial in latest.values() if not self._is_due_again(trial)]

    def _is_due_again(self, trial: Trial) -> bool:
        if trial.kind not in RETRIED:
            return False
        same = [
            one
            for one in self._trials
            if (one.candidate.key, one.round) == (trial.candidate.key, trial.round)
        ]
        return len(same) < _MAX_ATTEMPTS

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

    def _progress(self) -> tuple[int, int]:
        """Candidates tried, and how many there will be; what is pruned counts as neither."""
        finished = self._finished()
        pruned = sum(is_pruned(trial) for trial in finished)
        total = min(self._budget.trials, len(self._space.candidates) - pruned)
        return len(finished) - pruned, total

    def _prune(self) -> None:
        """Keep a row for each candidate that its prediction rules out; none is launched.

        Only after a trial: the first, the control, is tried whatever it needs.
        """
        pruned = prune(self._space, tried=self._trials, why=self._seams.why_too_big)
        for one in pruned:
            now = self._seams.clock.utc()
            trial = Trial(
                number=self._next_number(),
                attempt=0,
                candidate=one.candidate,
                placement=self._seams.launcher.place(one.candidate),
                outcome=one.failure,
                convergence_fingerprint=self._stamp.convergence,
                execution_fingerprint=self._stamp.execution,
                launcher=self._stamp.launcher,
                started_at=now,
                finished_at=now,
                predicted=self._seams.predict(one.candidate),
            )
            self._seams.ledger.append(trial)
            self._trials.append(trial)
        if pruned:
            self._seams.sampler.restore(self._finished())
            self._seams.observer.note(pruned_note(pruned, of=len(self._space.candidates)))

    def _try(self, candidate: Candidate, *, turn: int = 0, full: bool = False) -> Trial:
        before = [trial for trial in self._trials if trial.candidate.key == candidate.key]
        number = before[0].number if before else self._next_number()
        attempt = len(before)
        while True:
            trial = self._attempt(candidate, number=number, attempt=attempt, turn=turn, full=full)
            self._seams.ledger.append(trial)
            trial = trial.without_spans()  # they are kept there
            self._trials.append(trial)
            if not self._is_due_again(trial):
                return trial
            self._seams.observer.note(f"{candidate.describe()} is tried again: {trial.reason}")
            attempt += 1

    def _next_number(self) -> int:
        return 1 + max((trial.number for trial in self._trials), default=-1)

    def _attempt(
        self, candidate: Candidate, *, number: int, attempt: int, turn: int, full: bool
    ) -> Trial:
        clock = self._seams.clock
        launcher = self._seams.launcher_of(turn=turn, full=full)
        # Before the launch: an expectation is none once the answer is known.
        predicted = self._seams.predict(candidate)
        placement = launcher.place(candidate)
        started_at = clock.utc()
        is_final = turn > 0 or full
        refuted = self._proofs.why_wrong(candidate) if is_final else None
        outcome = refuted or self._guarded(candidate, launcher.launch(candidate, placement))
        return Trial(
            number=number,
            attempt=attempt,
            round=turn,
            candidate=candidate,
            placement=placement,
            outcome=outcome,
            convergence_fingerprint=self._stamp.convergence,
            execution_fingerprint=self._stamp.execution,
            launcher=self._stamp.launcher,
            started_at=started_at,
            finished_at=clock.utc(),
            predicted=predicted,
            proof_id=self._proofs.id_of(candidate) if is_final else None,
        )

    def _guarded(
        self, candidate: Candidate, outcome: Measurement | Failure
    ) -> Measurement | Failure:
        if isinstance(outcome, Failure) or self._stamp.launcher.is_simulated:
            return outcome
        # A model of fewer layers starts with another loss.
        depth = _layers(outcome)
        seen = ((one, one.measurement) for one in self._trials)
        anchor = next((one for one, its in seen if its and _layers(its) == depth), None)
        return (
            guards.why_other_recompute(outcome, candidate)
            or guards.why_not_applied(outcome, candidate.layout)
            or self._seams.guard(outcome, candidate)
            or guards.why_unlike_batch(outcome, candidate.layout, anchor)
            or guards.why_unlike(outcome, anchor)
            or outcome
        )


def _layers(outcome: Measurement) -> tuple[int, int] | None:
    return None if outcome.depth is None else outcome.depth.layers_measured
