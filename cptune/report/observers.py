"""What is said while a sweep runs: a progress line on a terminal, plain lines elsewhere, a log."""

from __future__ import annotations

from contextlib import suppress

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from cptune.domain.candidate import Candidate
from cptune.domain.trial import Trial
from cptune.domain.units import bytes_text
from cptune.logs import EventLog
from cptune.seams import Observer


class Terminal:
    """Speaks on stderr. On a terminal one live line shows the trial and the recipe so far."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._best = "no candidate passes yet"
        self._model: str | None = None

    def trial_started(self, candidate: Candidate, *, done: int, total: int) -> None:
        """Show what runs now."""
        self._show(f"{done + 1}/{total} {candidate.describe()} | {self._best}")

    def finalist_started(self, candidate: Candidate, *, turn: int, turns: int) -> None:
        """Show which finalist runs again."""
        self._show(f"finals {turn}/{turns} {candidate.describe()} | {self._best}")

    def _show(self, text: str) -> None:
        if not self._console.is_terminal:
            return
        if self._status is None:
            self._status = self._console.status(escape(text))
            self._status.start()
        else:
            self._status.update(escape(text))

    def trial_finished(self, trial: Trial, *, best: Trial | None) -> None:
        """Say what it came to."""
        if best is not None and best.measurement is not None:
            rate = best.measurement.tokens_per_s
            self._best = f"recipe so far {best.candidate.describe()} {rate:,.0f} tokens/s"
        again = f" again, round {trial.round}" if trial.round else ""
        self._say(f"trial {trial.number:>3}{again}  {_result(trial)}")
        if not self._console.is_terminal:
            self._say(f"           {self._best}")

    def note(self, message: str) -> None:
        """Say something that a person should know."""
        self._say(f"note: {message}")

    def model_changed(self, message: str) -> None:
        """Keep it until the end: a line for each trial would be noise."""
        self._model = message

    def _say(self, line: str) -> None:
        # A reader that went away, or a full disk behind it, does not end a sweep.
        with suppress(OSError, ValueError):
            self._console.print(line, markup=False, soft_wrap=True)

    def close(self) -> None:
        """End the live line, and say by which model the last prediction was made."""
        if self._status is not None:
            self._status.stop()
            self._status = None
        if self._model is not None:
            self.note(self._model)
            self._model = None


class Logged:
    """Keeps every event in a log and passes it on."""

    def __init__(self, inner: Observer, log: EventLog) -> None:
        self._inner, self._log = inner, log

    def trial_started(self, candidate: Candidate, *, done: int, total: int) -> None:
        """Log the start."""
        self._log.write("trial_started", candidate_key=candidate.key, done=done, total=total)
        self._inner.trial_started(candidate, done=done, total=total)

    def finalist_started(self, candidate: Candidate, *, turn: int, turns: int) -> None:
        """Log the start."""
        self._log.write("finalist_started", candidate_key=candidate.key, round=turn, rounds=turns)
        self._inner.finalist_started(candidate, turn=turn, turns=turns)

    def trial_finished(self, trial: Trial, *, best: Trial | None) -> None:
        """Log the end."""
        self._log.write(
            "trial_finished",
            candidate_key=trial.candidate.key,
            number=trial.number,
            attempt=trial.attempt,
            round=trial.round,
            outcome=trial.kind.value,
            reason=trial.reason,
            best=None if best is None else best.candidate.key,
        )
        self._inner.trial_finished(trial, best=best)

    def note(self, message: str) -> None:
        """Log the note."""
        self._log.write("note", message=message)
        self._inner.note(message)

    def model_changed(self, message: str) -> None:
        """Log every version."""
        self._log.write("model_changed", message=message)
        self._inner.model_changed(message)


def _result(trial: Trial) -> str:
    layout = f"{trial.source:<38}"
    seen = trial.measurement
    if seen is None:
        return f"{layout} {trial.kind}: {trial.reason}"
    return (
        f"{layout} {seen.step_s * 1e3:,.0f} ms  {seen.tokens_per_s:,.0f} tokens/s  "
        f"peak {bytes_text(seen.peak_allocated_bytes)}  exposed {seen.exposed_share:.1%}"
    )
