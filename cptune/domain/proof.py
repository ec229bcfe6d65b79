"""The proof that a candidate computes what the unsharded model computes, as data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any

from cptune.domain.outcome import Failure, OutcomeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison with the unsharded model, or one probe.

    `max_error` is the largest over all ranks and elements, absolute unless the name says over what;
    infinite where a number was not finite. `where` names what has it.
    """

    name: str
    max_error: float
    tolerance: float
    where: str = ""

    @property
    def passed(self) -> bool:
        """Whether the error is within the tolerance; a NaN never is."""
        return self.max_error <= self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the checks of one candidate came to.

    `fixture` is a hash of everything that the checks compute with: shapes, seeds, documents.
    Without checks it could not be run, and `why_missing` says why.
    """

    candidate_key: str
    fixture: str
    checks: tuple[Check, ...] = ()
    why_missing: str = ""

    @property
    def passed(self) -> bool:
        """Whether there are checks, and all of them passed."""
        return bool(self.checks) and not self.failed

    @property
    def refuted(self) -> bool:
        """Whether a check did not pass; a proof that could not be run refutes nothing."""
        return bool(self.failed)

    @property
    def failed(self) -> list[Check]:
        """The checks that did not pass."""
        return [check for check in self.checks if not check.passed]

    @property
    def id(self) -> str:
        """Of what was asked: equal for the same candidate, fixture and checks."""
        asked = [self.candidate_key, self.fixture, [one.name for one in self.checks]]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]

    @property
    def worst(self) -> Check | None:
        """The check with the largest error by its tolerance; None where there is none."""
        return max(self.checks, key=_share, default=None)

    def to_json(self) -> dict[str, object]:
        """As `cptune verify` and recipe.json have it."""
        return {
            "candidate": self.candidate_key,
            "id": self.id,
            "fixture": self.fixture,
            "passed": self.passed,
            "why_missing": self.why_missing,
            "checks": [_check_json(check) for check in self.checks],
        }


def proof_from_json(content: Mapping[str, Any]) -> Proof:
    """The proof whose `to_json` this is.

    Raises:
        KeyError: when something is missing.
        ValueError: when it says other than its own checks.
    """
    proof = Proof(
        candidate_key=content["candidate"],
        fixture=content["fixture"],
        checks=tuple(map(_check_from, content["checks"])),
        why_missing=content["why_missing"],
    )
    if (proof.id, proof.passed) != (content["id"], content["passed"]):
        raise ValueError(f"says id {content['id']} and passed {content['passed']}")
    return proof


def join_checks(per_rank: Sequence[Sequence[Check]]) -> tuple[Check, ...]:
    """The checks of all ranks by name: the largest error, in the order of the first rank."""
    found: dict[str, Check] = {}
    for checks in per_rank:
        for check in checks:
            known = found.get(check.name)
            if known is None or _error(check) > _error(known):
                found[check.name] = check
    return tuple(found.values())


def why_wrong(proof: Proof) -> Failure | None:
    """A failure that names the worst check of a proof that refutes; None where none does."""
    worst = proof.worst
    if worst is None or not proof.refuted:
        return None
    at = f" at {worst.where}" if worst.where else ""
    return Failure(
        kind=OutcomeKind.WRONG_RESULT,
        message=f"not the unsharded model: {worst.name} off by {worst.max_error:.3g}{at}, "
        f"tolerance {worst.tolerance:g} ({len(proof.failed)} of {len(proof.checks)} checks fail)",
    )


def _error(check: Check) -> float:
    """What is no number counts as the largest error."""
    return check.max_error if check.max_error < inf else inf


def _check_json(check: Check) -> dict[str, object]:
    error = check.max_error if isfinite(check.max_error) else None  # JSON has no infinity
    return {**asdict(check), "max_error": error, "passed": check.passed}


def _check_from(content: Mapping[str, Any]) -> Check:
    error = inf if content["max_error"] is None else content["max_error"]
    return Check(
        name=content["name"],
        max_error=error,
        tolerance=content["tolerance"],
        where=content["where"],
    )


def _share(check: Check) -> tuple[bool, float]:
    if _error(check) == inf:
        return True, inf
    if check.tolerance == 0:
        return not check.passed, check.max_error
    return not check.passed, check.max_error / check.tolerance
