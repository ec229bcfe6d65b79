"""Records: a ledger with a file that was cut short, and one of another run."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from cptune.domain.candidate import Candidate
from cptune.domain.layout import ParallelLayout
from cptune.domain.trial import Trial
from cptune.drills.finding import Finding
from cptune.drills.reports import measured
from cptune.drills.searching import STAMP, placed

_CANDIDATES = tuple(
    Candidate(layout=ParallelLayout(cp=cp, dp=4 // cp), stages=cp - 1).canonical()
    for cp in (1, 2, 4)
)
_AT = "2026-01-01T00:00:00.000+00:00"


def judge(_: object) -> Finding:
    """Reading must set both files aside by name, and keep the other rows."""
    from cptune.store.ledger import ParquetLedger

    with TemporaryDirectory(prefix="cptune-drill-") as folder:
        ledger, other = (
            ParquetLedger(_made(Path(folder) / name), writable=True) for name in ("a", "b")
        )
        trials = [_trial(number, one) for number, one in enumerate(_CANDIDATES)]
        for trial in trials:
            ledger.append(trial)
        foreign = _trial(len(trials), _CANDIDATES[0])
        other.append(foreign)
        before = (ledger.read(), list(ledger.quarantined))
        paths = sorted((Path(folder) / "a" / "trials").iterdir())
        data = paths[0].read_bytes()
        paths[0].write_bytes(data[: len(data) // 2])
        for path in Path(folder, "b").glob("*/*.parquet"):
            shutil.copy(path, Path(folder, "a", path.parent.name, path.name))
        after, aside = ledger.read(), list(ledger.quarantined)
        named = [paths[0].name in aside[0], "is of run" in aside[1]] if len(aside) == 2 else []
    return Finding(
        refused=after == trials[1:] and named == [True, True],
        said="; ".join(f"quarantined {one}" for one in aside) or "nothing is set aside",
        controls={"without the fault every row is read": before == (trials, [])},
        figures={"rows_before": len(before[0]), "rows_after": len(after), "set_aside": len(aside)},
    )


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def _trial(number: int, candidate: Candidate) -> Trial:
    return Trial(
        number=number,
        attempt=0,
        candidate=candidate,
        placement=placed(candidate),
        outcome=measured(candidate, step_s=0.1),
        convergence_fingerprint=STAMP.convergence,
        execution_fingerprint=STAMP.execution,
        started_at=_AT,
        finished_at=_AT,
    )
