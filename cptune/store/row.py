"""What the rows of all tables of a trial share; plain dicts, no pyarrow."""

from __future__ import annotations

from typing import Any

from cptune.domain.launcher import LauncherName
from cptune.domain.outcome import RankReport
from cptune.domain.trial import Origin, Trial

Row = dict[str, Any]


def trial_key(trial: Trial) -> Row:
    """The columns that the tables join on."""
    return {
        "candidate_key": trial.candidate.key,
        "number": trial.number,
        "attempt": trial.attempt,
    }


def launcher_from(row: Row) -> LauncherName:
    """Who answered a trial; in rows of before that was kept it was Ray."""
    return LauncherName(row["launcher"] or LauncherName.RAY)


def reports_of(trial: Trial) -> tuple[RankReport, ...]:
    """What its ranks reported; none for a trial that failed."""
    return trial.measurement.ranks if trial.measurement else ()


def origin_from(row: Row) -> Origin | None:
    """The run that a row of the trials table was written in; None in a row of an older run."""
    if row["run_id"] is None:
        return None
    return Origin(run_id=row["run_id"], trace_sha256=row["trace_sha256"])
