"""What proofs and their checks came to, as plain text."""

from __future__ import annotations

from cptune.domain.proof import Check, Proof

CHECK_COLUMNS = ("check", "largest error", "tolerance", "where", "verdict")


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
    name, error, tolerance, where, _ = check_cells(check)
    at = f" at {where}" if where else ""
    return f"{name} {error}{at} (tolerance {tolerance})"


def check_cells(check: Check) -> tuple[str, ...]:
    """One row of a table of checks, in the order of `CHECK_COLUMNS`."""
    word = "passed" if check.passed else "FAILED"
    return (check.name, f"{check.max_error:.2g}", f"{check.tolerance:.2g}", check.where, word)


def proof_word(proof: Proof) -> str:
    """Whether it is one."""
    if proof.passed:
        return "proven"
    return "REFUTED" if proof.refuted else "not proven"
