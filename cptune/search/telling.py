"""What Optuna is told of a finished trial, as plain values."""

from __future__ import annotations

from cptune.domain.outcome import Failure, OutcomeKind
from cptune.domain.trial import Trial

_GIB = 1 << 30


def is_infeasible(trial: Trial) -> bool:
    """Whether the trial says that its candidate cannot run, rather than that it went wrong."""
    return trial.kind in (OutcomeKind.OUT_OF_MEMORY, OutcomeKind.INFEASIBLE)


def constraints_of(trial: Trial) -> dict[str, float]:
    """Optuna's convention: feasible at zero or below. Memory is the bytes short, in GiB."""
    short = trial.shortage.short_bytes if trial.shortage else 0
    return {
        "memory_short_gib": short / _GIB,
        "infeasible": float(trial.kind is OutcomeKind.INFEASIBLE),
    }


def attributes_of(trial: Trial) -> dict[str, object]:
    """What the dashboard shows beside parameters and value."""
    attributes: dict[str, object] = {
        "candidate_key": trial.candidate.key,
        "outcome": trial.kind.value,
        "attempt": trial.attempt,
    }
    if isinstance(trial.outcome, Failure):
        return attributes | {"reason": trial.outcome.message}
    return attributes | {
        "tokens_per_s": trial.outcome.tokens_per_s,
        "peak_allocated_bytes": trial.outcome.peak_allocated_bytes,
        "exposed_share": trial.outcome.exposed_share,
    }
