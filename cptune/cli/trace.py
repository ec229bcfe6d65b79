"""`cptune trace`: what the communication of one trial cost, and where its timeline is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cptune.cli.app import Format, app
from cptune.cli.runs import find_run
from cptune.errors import LedgerError, SpecError
from cptune.printing import print_answer

if TYPE_CHECKING:
    from cptune.domain.trial import Trial


@app.command
def trace(
    run: str,
    trial: int,
    /,
    *,
    attempt: int | None = None,
    runs: Path = Path("runs"),
    format: Format = Format.TABLE,
) -> int:
    """Show what a trial's communication cost by axis and layer, and how busy its links were.

    Args:
        run: Name of a run, or the path of its directory.
        trial: Number of the trial.
        attempt: Which attempt; the last if omitted.
        runs: Where run directories are.
        format: How to print the result.
    """
    from cptune.report.trace import trace_answer, trace_view
    from cptune.store.ledger import ParquetLedger
    from cptune.store.traces import read_spans, trace_path

    directory = find_run(run, runs)
    ledger = ParquetLedger(directory, writable=False)
    trials = ledger.read()
    _refuse_lost(ledger.quarantined, trial, attempt=attempt)
    found = _find_trial(trials, trial, attempt=attempt)
    _check_traced(found)
    path = trace_path(directory, found)
    spans = read_spans(path, trial=found) if path.exists() else {}
    answer = trace_answer(
        found, run=str(directory), trace_file=str(path) if spans else None, spans=spans
    )
    print_answer(answer, as_json=format is Format.JSON, view=trace_view)
    return 0


def _refuse_lost(quarantined: Sequence[str], number: int, *, attempt: int | None) -> None:
    """A trial of which a file cannot be read is not shown as if that had been empty."""
    of_attempt = "" if attempt is None else f"-a{attempt}."
    lost = [one for one in quarantined if f"/{number:06d}-" in one and of_attempt in one]
    if lost:
        raise LedgerError(f"trial {number} cannot be read whole: {'; '.join(lost)}")


def _find_trial(trials: list[Trial], number: int, *, attempt: int | None) -> Trial:
    numbers = {one.number for one in trials}
    if number not in numbers:
        near = min(numbers, key=lambda one: (abs(one - number), one), default=None)
        raise SpecError(
            f"no trial {number} in this run"
            + ("; it has none" if near is None else f"; nearest: {near}")
        )
    attempts = {one.attempt: one for one in trials if one.number == number}
    wanted = max(attempts) if attempt is None else attempt
    if wanted not in attempts:
        near = min(attempts, key=lambda one: abs(one - wanted))
        raise SpecError(f"trial {number} has no attempt {wanted}; nearest: {near}")
    return attempts[wanted]


def _check_traced(trial: Trial) -> None:
    if trial.measurement is None:
        raise LedgerError(f"trial {trial.number} ended {trial.kind}: no step of it was traced")
    if trial.launcher.is_simulated:
        raise LedgerError(
            f"trial {trial.number} is {trial.kind}, of --launcher {trial.launcher}: nothing ran, "
            "and no step was traced"
        )
    if any(one.trace is None for one in trial.measurement.ranks):
        raise LedgerError(
            f"no step of trial {trial.number} was traced",
            hint='set budget.trace = "step" in the spec',
        )
