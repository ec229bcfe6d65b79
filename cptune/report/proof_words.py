"""What proofs and their checks came to, as plain text."""

from __future__ import annotations

from cptune.domain.proof import Check, Proof


def proof_words(proof: Proof) -> str:
    """What a proof came to, without whose it is."""
    worst = proof.worst
    if worst is None:
        return proof.why_missing
    count = len(proof.checks)
    if proof.refuted:
        return f"{len(proof.failed)} of {count} checks fail, worst {check_words(worst)}"
    return f"{count} checks, nearest its tolerance {check_words(worst)}"


def check_words(check: Check) -> str:
    """A check with its error, tolerance and place."""
    at = f" at {check.where}" if check.where else ""
    return f"{check.name} {check.max_error:.2g}{at} (tolerance {check.tolerance:.2g})"
