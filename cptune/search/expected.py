"""What a step is expected to take over many batches, where documents make its groups uneven.

A trial sees a few batches, whose longest documents are chance. Between two steps of the same
candidate only the attention of the slowest data-parallel group differs:
expected / measured = (1 + share * (expected - 1)) / (1 + share * (measured - 1)), with the slowest
over the mean group of both, and attention's share of a step whose groups are even.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cptune.domain.candidate import Candidate
from cptune.domain.documents import DocumentLoad
from cptune.domain.outcome import Measurement
from cptune.domain.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """The slowest group over the mean one, and how the step changes between the two.

    Args:
        measured: In the batches of the trial.
        expected: Over many batches.
        attention_share: Of a step whose groups are even; predicted, since no trial times it alone.
    """

    measured: float
    expected: float
    attention_share: float

    @property
    def step_ratio(self) -> float:
        """Seconds of the expected step over those of the measured one."""
        expected, measured = (
            1 + self.attention_share * (factor - 1) for factor in (self.expected, self.measured)
        )
        return expected / measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The rate by which the choice compares a trial; without a straggler it is the measured one."""

    tokens_per_s: float
    step_s: float
    straggler: Straggler | None = None
    note: str = ""

    def to_json(self) -> dict[str, object]:
        """Both factors and what follows from them; empty where nothing was corrected."""
        if self.straggler is None:
            return {}
        return {
            "step_s": self.step_s,
            "tokens_per_s": self.tokens_per_s,
            "measured_slowest_over_mean": self.straggler.measured,
            "expected_slowest_over_mean": self.straggler.expected,
            "attention_share": self.straggler.attention_share,
        }


#: What is expected of a measured trial.
Expect = Callable[[Trial], Expected]


def as_measured(trial: Trial) -> Expected:
    """Takes the steps that were measured for those to come."""
    return _unchanged(_measured(trial), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectSteps:
    """Corrects measured steps by the documents that many batches hold.

    Args:
        documents: What the lengths of the workload come to.
        attention_share: Of the step of a candidate whose groups are even.
    """

    documents: DocumentLoad
    attention_share: Callable[[Candidate], float]

    def __call__(self, trial: Trial) -> Expected:
        """The expected rate of a measured trial; as measured, and said so, where it is unknown."""
        seen = _measured(trial)
        groups = trial.candidate.layout.dp
        if groups == 1:
            return _unchanged(seen, "")
        pairs = group_pairs(seen, trial.candidate)
        if pairs is None:
            return _unchanged(seen, "as measured: some groups report no attended pairs")
        straggler = Straggler(
            measured=self.documents.work_ratio(max(pairs) * groups / sum(pairs)),
            expected=self.documents.straggler_factor(groups),
            attention_share=self.attention_share(trial.candidate),
        )
        ratio = straggler.step_ratio
        rate = seen.tokens_per_s / ratio
        return Expected(
            tokens_per_s=rate,
            step_s=seen.step_s * ratio,
            straggler=straggler,
            note=f"{rate:,.0f} tokens/s expected over many batches, {seen.tokens_per_s:,.0f} "
            f"measured: slowest over mean attention {straggler.expected:.2f} expected, "
            f"{straggler.measured:.2f} measured, attention {straggler.attention_share:.0%} of the "
            "step",
        )


def group_pairs(seen: Measurement, candidate: Candidate) -> list[int] | None:
    """Attended pairs of each data-parallel group, all its ranks together; None where not known."""
    layout = candidate.layout
    pairs = [0] * layout.dp
    for report in seen.ranks:
        pairs[layout.coordinates(report.rank).dp] += report.attended_pairs
    return pairs if all(pairs) else None


def _measured(trial: Trial) -> Measurement:
    assert trial.measurement is not None, "only measured trials have a rate"
    return trial.measurement


def _unchanged(seen: Measurement, note: str) -> Expected:
    return Expected(tokens_per_s=seen.tokens_per_s, step_s=seen.step_s, note=note)
