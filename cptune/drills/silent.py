"""Memory: a target that fits only because its batch or its recomputation changed silently."""

from __future__ import annotations

from dataclasses import dataclass

from cptune.domain.candidate import Candidate
from cptune.domain.layout import ParallelLayout
from cptune.domain.outcome import Failure, Measurement, OutcomeKind
from cptune.drills.faults import half_batch, recomputed
from cptune.drills.finding import Figure, Finding
from cptune.drills.ranks import Ranks
from cptune.drills.searching import Searched, search

Outcome = Measurement | Failure

#: What is to fit, and a layout that does.
_TARGET = Candidate(layout=ParallelLayout(cp=2, dp=2), stages=1, micro_batch=2)
_OTHER = Candidate(layout=ParallelLayout(cp=4), stages=3)
_AMPLE_BYTES = 64_000_000
#: Between what the target holds and what it would hold with either fault, far from both.
_TIGHT_BYTES = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """The target with ample memory, then on the tight budget: with each fault, and as it is."""

    other: Outcome
    ample: Outcome
    recomputed: Outcome
    halved: Outcome
    tight: Outcome


def provoke(ranks: Ranks) -> Trials:
    """Run all trials; the last one runs out of memory, and ends the ranks."""
    other = ranks.launch(_OTHER, capacity_bytes=_TIGHT_BYTES)
    ample = ranks.launch(_TARGET, capacity_bytes=_AMPLE_BYTES)
    with ranks.planted(recomputed):
        again = ranks.launch(_TARGET, capacity_bytes=_TIGHT_BYTES)
    with ranks.planted(half_batch):
        halved = ranks.launch(_TARGET, capacity_bytes=_TIGHT_BYTES)
    tight = ranks.launch(_TARGET, capacity_bytes=_TIGHT_BYTES)
    return Trials(other=other, ample=ample, recomputed=again, halved=halved, tight=tight)


def judge_recompute(seen: Trials) -> Finding:
    """The loop must find that nobody asked for recomputation."""
    return _judge(seen, seen.recomputed, kind=OutcomeKind.NOT_APPLIED, field="recompute")


def judge_batch(seen: Trials) -> Finding:
    """The loop must find that it is another batch."""
    return _judge(seen, seen.halved, kind=OutcomeKind.WRONG_RESULT, field="global batch (samples")


def judge_shortage(seen: Trials) -> Finding:
    """A trial that runs out of memory is a row with what was short, and the search goes on."""
    found, ample = _search(seen, seen.tight), _search(seen, seen.ample)
    last = found.trials[-1]
    short = last.shortage
    return Finding(
        refused=last.kind is OutcomeKind.OUT_OF_MEMORY
        and short is not None
        and short.short_bytes > 0
        and found.chosen == _OTHER,
        said=found.reason(_TARGET),
        controls={"with ample memory the target is measured": _is_measured(ample)},
        figures=_peaks(target=seen.ample, other=seen.other)
        | ({} if short is None else {"short_bytes": short.short_bytes}),
    )


def _judge(seen: Trials, fault: Outcome, *, kind: OutcomeKind, field: str) -> Finding:
    found, ample = _search(seen, fault), _search(seen, seen.ample)
    last = found.trials[-1]
    is_short = isinstance(seen.tight, Failure) and seen.tight.kind is OutcomeKind.OUT_OF_MEMORY
    return Finding(
        refused=last.kind is kind and field in last.reason,
        said=found.reason(_TARGET),
        controls={
            "with the fault the target fits": isinstance(fault, Measurement),
            "without it the target runs out of memory": is_short,
            "with ample memory the target passes": _is_measured(ample),
        },
        figures=_peaks(target=seen.ample, with_fault=fault),
    )


def _search(seen: Trials, outcome: Outcome) -> Searched:
    """The loop over the other layout and the target, which came to this."""
    return search([(_OTHER, seen.other), (_TARGET, outcome)], capacity_bytes=_AMPLE_BYTES)


def _is_measured(found: Searched) -> bool:
    return found.trials[-1].kind is OutcomeKind.MEASURED


def _peaks(**outcomes: Outcome) -> dict[str, Figure]:
    peaks: dict[str, Figure] = {
        f"{name}_peak_bytes": outcome.peak_allocated_bytes
        for name, outcome in outcomes.items()
        if isinstance(outcome, Measurement)
    }
    return {"budget_bytes": _TIGHT_BYTES, **peaks}
