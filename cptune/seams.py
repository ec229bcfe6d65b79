"""The places where cptune touches the world, as protocols; each has a fake in tests/fakes.py."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from cptune.domain.candidate import Candidate
from cptune.domain.outcome import Failure, Measurement
from cptune.domain.placement import Placement
from cptune.domain.trial import Trial


class Launcher(Protocol):
    """Runs a candidate and returns what it came to; never raises for a candidate's own failure."""

    def place(self, candidate: Candidate) -> Placement:
        """The devices that the candidate's ranks will run on."""
        ...

    def launch(self, candidate: Candidate, placement: Placement) -> Measurement | Failure:
        """Run the candidate to its end. Blocks; bounded by the trial deadline."""
        ...


class Sampler(Protocol):
    """Proposes legal candidates that were not tried yet, and learns from what they came to."""

    def ask(self, *, among: Collection[str] | None = None) -> Candidate | None:
        """The next candidate, from these keys alone when given; None when none is left."""
        ...

    def tell(self, trial: Trial) -> None:
        """Take the last attempt of the candidate that was asked for."""
        ...

    def restore(self, trials: Sequence[Trial]) -> None:
        """Take what an earlier driver finished, before the first ask."""
        ...


class Ledger(Protocol):
    """Keeps every finished trial; an appended trial survives the end of the process."""

    def append(self, trial: Trial) -> None:
        """Keep a trial durably, or raise `LedgerError`."""
        ...

    def read(self) -> Sequence[Trial]:
        """All kept trials by number and attempt."""
        ...

    @property
    def quarantined(self) -> Sequence[str]:
        """What the last read could not read, as "table/file: why"."""
        ...


class Clock(Protocol):
    """Time, so that tests need not wait for it."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def utc(self) -> str:
        """The wall clock, UTC, ISO 8601."""
        ...


class Observer(Protocol):
    """Told what happens while it happens; decides nothing."""

    def trial_started(self, candidate: Candidate, *, done: int, total: int) -> None:
        """A candidate goes to the launcher; `done` of `total` are finished."""
        ...

    def finalist_started(self, candidate: Candidate, *, turn: int, turns: int) -> None:
        """A candidate goes to the launcher once more, in one of the rounds of the finals."""
        ...

    def trial_finished(self, trial: Trial, *, best: Trial | None) -> None:
        """A trial was kept; `best` is the choice as it would be now."""
        ...

    def note(self, message: str) -> None:
        """Something that a person should know, and no error."""
        ...

    def model_changed(self, message: str) -> None:
        """Predictions are of another version from now on; each trial brings one."""
        ...
