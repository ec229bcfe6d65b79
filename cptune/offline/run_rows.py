"""Our own ledger as a landscape: what every candidate of a run came to, on the run's machine."""

from __future__ import annotations

from pathlib import Path

from cptune import spec as specs
from cptune.domain.outcome import Failure
from cptune.domain.trial import Trial, searched
from cptune.errors import SpecError
from cptune.offline.landscape import Foresight, Result, foresee, landscape_of
from cptune.offline.table import Sifted
from cptune.planning.machine import read_documents, read_topology
from cptune.predict.case import Case
from cptune.predict.found import trial_machine
from cptune.predict.trial_memory import TrialMemoryModel
from cptune.store.ledger import ParquetLedger

_SPEC, _TOPOLOGY = "spec.toml", "topology.json"


def read_run(directory: Path) -> Sifted:
    """The trials of a run's search; the last attempt of a candidate speaks for it.

    Raises:
        SpecError: when it is no run directory, or no trial in it has a step time.
        LedgerError: when its ledger cannot be read.
    """
    if not (directory / _SPEC).exists():
        raise SpecError(
            f"{directory} is no run directory: it has no {_SPEC}",
            hint="wanted runs/NAME, or a Parquet or CSV file",
        )
    spec = specs.load(directory / _SPEC)
    ledger = ParquetLedger(directory, writable=False)
    kept = searched(ledger.read())
    latest = {one.candidate.key: one for one in kept}
    if not any(one.measurement for one in latest.values()):
        raise SpecError(
            f"{directory} has no trial with a step time: {len(latest)} candidates were tried",
            hint="go on with the run first: cptune sweep --resume",
        )
    results = {one.candidate: _result(one) for one in latest.values()}
    landscape = landscape_of(spec.name, results, _foresight(directory, kept))
    notes = [f"the landscape is the {len(results)} candidates that the run tried, of its legal set"]
    launchers = sorted({one.launcher.value for one in kept if one.launcher.is_simulated})
    notes += [f"nothing of it was measured: its trials are {one}'s" for one in launchers]
    return Sifted(
        rows=len(kept), landscapes=[landscape], unreadable=list(ledger.quarantined), notes=notes
    )


def _foresight(directory: Path, kept: list[Trial]) -> Foresight:
    """What the run itself predicted with, before it learnt; as planned where nothing ran."""
    spec = specs.load(directory / _SPEC)
    if any(one.launcher.is_simulated for one in kept):
        return foresee(spec)
    sizes = [one.device.memory_bytes or 0 for trial in kept for one in trial.placement.ranks]
    capacity = spec.cluster.device_memory_bytes or min(sizes, default=0)
    found = read_topology(directory / _TOPOLOGY)
    machine = trial_machine(spec.cluster, found, capacity_bytes=capacity)
    case = Case(
        model=spec.model,
        workload=spec.workload,
        machine=machine,
        stack=spec.stack.kind,
        pipeline=spec.stack.pipeline,
        documents=read_documents(spec.workload, world_size=machine.world_size),
    )
    return Foresight(case, TrialMemoryModel(case))


def _result(trial: Trial) -> Result:
    seen = trial.measurement
    if isinstance(trial.outcome, Failure) or seen is None:
        short = trial.shortage
        return Result(
            kind=trial.kind,
            step_s=None,
            peak_bytes=None if short is None else short.asked_bytes,
            reason=trial.reason,
        )
    return Result(
        kind=trial.kind,
        step_s=seen.step_s,
        peak_bytes=seen.peak_allocated_bytes,
        exposed_s={axis: getattr(seen, f"{axis}_exposed_s") for axis in ("tp", "cp", "dp", "pp")},
    )
