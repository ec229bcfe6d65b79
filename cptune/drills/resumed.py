"""Memory: a run whose target did not fit is gone on with, on half the batch and with recompute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from cptune.domain.candidate import Recompute
from cptune.domain.study import SweepSpec
from cptune.drills.finding import Finding
from cptune.drills.ranks import SPEC
from cptune.errors import SpecError
from cptune.opening import open_run
from cptune.search.prepare import resolve

_CHANGED = replace(
    SPEC,
    workload=replace(SPEC.workload, global_batch_seqs=SPEC.workload.global_batch_seqs // 2),
    axes=replace(SPEC.axes, recompute=(Recompute.FULL,)),
)
_FIELDS = ("workload.global_batch_seqs", "axes.recompute")


def judge(_: object) -> Finding:
    """Resuming must be refused, and both fields named with what they were and are."""
    with TemporaryDirectory(prefix="cptune-drill-") as folder:
        path = Path(folder) / SPEC.name
        open_run(resolve(SPEC, None), path, resume=False).close()
        same, changed = (_why_refused(spec, path) for spec in (SPEC, _CHANGED))
    named = [field for field in _FIELDS if field in changed]
    return Finding(
        refused=len(named) == len(_FIELDS),
        said=changed or "the run is gone on with",
        controls={"with the same spec the run is gone on with": not same},
        figures={"fields_changed": len(_FIELDS), "fields_named": len(named)},
    )


def _why_refused(spec: SweepSpec, path: Path) -> str:
    """Empty where the run goes on."""
    try:
        open_run(resolve(spec, None), path, resume=True).close()
    except SpecError as exc:
        return str(exc)
    return ""
