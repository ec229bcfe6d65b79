"""A recipe beside another run of it: what must be equal, and what may differ by how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from cptune.domain.guards import GRAD_NORM_TOLERANCE, LOSS_TOLERANCE
from cptune.domain.outcome import Measurement
from cptune.domain.proof import Proof
from cptune.domain.recipe import Recipe
from cptune.domain.reported import Reported
from cptune.domain.standing import Likeness, Row
from cptune.domain.timing import median_interval

#: Of the peak: live bytes are counted, and a buffer that a peer fills early or late is one of them.
#: Two runs of one layout of 5 MiB on CPU processes were 32 KiB apart, 0.6%.
PEAK_TOLERANCE = 0.02
_CHOSEN = "chosen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What another run of a recipe's candidate came to.

    Args:
        convergence: Its convergence fingerprint.
        ruling: The verdict on it in one word, under the recipe's own limits.
        reason: Why, where it is another than `chosen`.
        measurement: None where it failed.
        reported: None likewise.
        proof: None where nothing was proven.
    """

    convergence: str
    ruling: str
    reason: str
    measurement: Measurement | None
    reported: Reported | None
    proof: Proof | None


def compare(recipe: Recipe, again: Again, *, same_execution: bool) -> list[Row]:
    """Every figure of a recipe beside that of another run.

    Args:
        recipe: With what its ranks reported.
        again: The other run.
        same_execution: Whether it ran under the conditions of the recipe; else what takes time or
            memory is shown and not judged.
    """
    rows = [
        _equal("convergence_fingerprint", recipe.fingerprints["convergence"], again.convergence),
        _ruling(again),
        *_proven(recipe.proof, again.proof),
    ]
    seen, reported = again.measurement, again.reported
    if seen is None or reported is None:
        return rows
    rows += _mathematics(recipe, seen, reported)
    costs = [_peak(recipe, seen), _step(recipe, reported), _exposed(recipe, seen)]
    return rows + (costs if same_execution else [_unjudged(row) for row in costs])


def is_reproduced(rows: Sequence[Row]) -> bool:
    """Whether nothing differs."""
    return all(row.verdict is not Likeness.DIFFERS for row in rows)


def _equal(what: str, then: object, now: object, *, rule: str = "equal") -> Row:
    if then is None or now is None:
        verdict = Likeness.UNKNOWN
    else:
        verdict = Likeness.SAME if then == now else Likeness.DIFFERS
    return Row(what=what, then=then, now=now, verdict=verdict, rule=rule)


def _ruling(again: Again) -> Row:
    rule = "passes the limits of the recipe" + (f": {again.reason}" if again.reason else "")
    return _equal("ruling", _CHOSEN, again.ruling, rule=rule)


def _proven(then: Proof | None, now: Proof | None) -> Iterator[Row]:
    """The fixture of both proofs, and that both pass."""

    def fixture(proof: Proof | None) -> str | None:
        return None if proof is None or proof.why_missing else proof.fixture

    def outcome(proof: Proof | None) -> bool | None:
        return None if proof is None or proof.why_missing else proof.passed

    yield _equal("equivalence_fixture", fixture(then), fixture(now))
    yield _equal("equivalence_passed", outcome(then), outcome(now))


def _mathematics(recipe: Recipe, seen: Measurement, reported: Reported) -> list[Row]:
    """What the first step computed, and with which kernel."""
    known = recipe.measurement
    return [
        _equal("batch_hash", recipe.reported.batch_hash, reported.batch_hash),
        _near("first_loss", known.first_loss, seen.first_loss, tolerance=LOSS_TOLERANCE),
        _near(
            "first_grad_norm",
            known.first_grad_norm,
            seen.first_grad_norm,
            tolerance=GRAD_NORM_TOLERANCE,
        ),
        _equal("kernel", known.kernel, seen.kernel),
    ]


def _near(what: str, then: float | None, now: float | None, *, tolerance: float) -> Row:
    if then is None or now is None:
        verdict = Likeness.UNKNOWN
    elif then == now:
        verdict = Likeness.SAME
    else:  # a NaN is near nothing
        near = abs(now - then) <= tolerance * abs(then)
        verdict = Likeness.WITHIN if near else Likeness.DIFFERS
    return Row(what=what, then=then, now=now, verdict=verdict, rule=f"within {tolerance:g} of it")


def _peak(recipe: Recipe, seen: Measurement) -> Row:
    then, now = recipe.measurement.peak_allocated_bytes, seen.peak_allocated_bytes
    return _near("peak_allocated_bytes", then, now, tolerance=PEAK_TOLERANCE)


def _step(recipe: Recipe, reported: Reported) -> Row:
    """Both medians, by the intervals that both timings state.

    A trial is timed until its interval is as narrow as `budget.ci_share` asks and no longer, so
    none counts as narrower than that.
    """
    share = recipe.spec.budget.ci_share
    both = recipe.reported.steps_s, reported.steps_s
    medians = [median(steps) if steps else None for steps in both]
    first, second = (_interval(steps, share=share) for steps in both)
    if first is None or second is None:
        verdict, rule = Likeness.UNKNOWN, "a timing has too few steps for an interval"
    else:
        meet = first[0] <= second[1] and second[0] <= first[1]
        verdict = Likeness.WITHIN if meet else Likeness.DIFFERS
        spans = [f"{low * 1e3:,.1f}-{high * 1e3:,.1f}" for low, high in (first, second)]
        rule = f"intervals meet: {spans[0]} and {spans[1]} ms"
    return Row(what="step_s", then=medians[0], now=medians[1], verdict=verdict, rule=rule)


def _interval(steps: Sequence[float], *, share: float) -> tuple[float, float] | None:
    found = median_interval(steps)
    if found is None:
        return None
    middle = median(steps)
    return min(found[0], middle * (1 - share)), max(found[1], middle * (1 + share))


def _exposed(recipe: Recipe, seen: Measurement) -> Row:
    budget = recipe.spec.objective.exposed_comm_share
    return Row(
        what="exposed_share",
        then=recipe.measurement.exposed_share,
        now=seen.exposed_share,
        verdict=Likeness.WITHIN if seen.exposed_share <= budget else Likeness.DIFFERS,
        rule=f"inside the budget of {budget:.0%} of the step",
    )


def _unjudged(row: Row) -> Row:
    rule = f"of another execution; else: {row.rule}"
    return replace(row, verdict=Likeness.NOT_JUDGED, rule=rule)
