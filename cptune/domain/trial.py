"""One candidate tried once, and everything that is kept about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf

from cptune.domain.candidate import Candidate
from cptune.domain.checks import LONGEST_STEP_S, SHORTEST_STEP_S, require_range
from cptune.domain.depth import Depth
from cptune.domain.launcher import LauncherName
from cptune.domain.outcome import Failure, Measurement, MemoryShortage, OutcomeKind
from cptune.domain.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What was expected of a candidate before it ran, kept so that the error is visible."""

    step_s: float
    peak_lo_bytes: int
    peak_bytes: int
    peak_hi_bytes: int
    model_version: str

    def __post_init__(self) -> None:
        require_range(self, SHORTEST_STEP_S, LONGEST_STEP_S, "step_s")
        require_range(self, 1, inf, "peak_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The run that a trial was kept in, and the SHA-256 of its trace file there.

    `trace_sha256` None: none of its steps was traced.
    """

    run_id: str
    trace_sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A finished trial. Times are UTC, ISO 8601. `predicted` None: nobody predicted it.

    `round` 0 is the search; from 1 on a finalist was measured again, in turn with the others.
    `attempt` counts on through both. `proof_id` is that of the proof made before it ran, if any.
    `origin` is where it was read from, which is no part of what it is; None before it was kept, and
    in runs from before runs had an id. `launcher` says who answered: only Ray measures.
    """

    number: int
    attempt: int
    candidate: Candidate
    placement: Placement
    outcome: Measurement | Failure
    convergence_fingerprint: str
    execution_fingerprint: str
    started_at: str
    finished_at: str
    predicted: Predicted | None = None
    round: int = 0
    proof_id: str | None = None
    launcher: LauncherName = LauncherName.RAY
    origin: Origin | None = field(default=None, compare=False)

    @property
    def kind(self) -> OutcomeKind:
        """The outcome in one word."""
        return self.outcome.kind if isinstance(self.outcome, Failure) else self.launcher.success

    @property
    def measurement(self) -> Measurement | None:
        """The figures, where there are any; of a simulated trial nobody measured them."""
        return self.outcome if isinstance(self.outcome, Measurement) else None

    @property
    def depth(self) -> Depth | None:
        """From which layer counts its figures were drawn; None where they were measured."""
        return None if self.measurement is None else self.measurement.depth

    @property
    def again_s(self) -> float:
        """About how long it would take again at full depth, by what it took on the wall clock."""
        took = datetime.fromisoformat(self.finished_at) - datetime.fromisoformat(self.started_at)
        depth, whole = self.depth, 1.0
        if depth is not None and depth.layers is not None:
            whole = depth.layers / sum(depth.layers_measured)
        return max(0.0, took.total_seconds()) * whole

    def without_spans(self) -> Trial:
        """The same without the intervals of its traces, which are by far its largest part."""
        seen = self.measurement
        if seen is None or not any(one.trace and one.trace.spans for one in seen.ranks):
            return self
        ranks = (
            replace(one, trace=replace(one.trace, spans=())) if one.trace else one
            for one in seen.ranks
        )
        return replace(self, outcome=replace(seen, ranks=tuple(ranks)))

    @property
    def source(self) -> str:
        """The candidate in words, with the layers that were measured where that is not all."""
        seen, words = self.measurement, self.candidate.describe()
        if seen is None or seen.depth is None:
            return words
        shallow, deep = seen.depth.layers_measured
        return f"{words} (from {shallow} and {deep} layers)"

    @property
    def reason(self) -> str:
        """What went wrong; empty for a measurement."""
        return self.outcome.message if isinstance(self.outcome, Failure) else ""

    @property
    def shortage(self) -> MemoryShortage | None:
        """The allocation that failed, for a trial that ran out of memory."""
        return self.outcome.shortage if isinstance(self.outcome, Failure) else None


def searched(trials: Iterable[Trial]) -> list[Trial]:
    """The trials of the search, without those of the finals."""
    return [trial for trial in trials if trial.round == 0]
