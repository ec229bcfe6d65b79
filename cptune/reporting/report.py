"""The page of a run, written: report.html."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cptune.clock import SystemClock
from cptune.domain.study import Storage, SweepSpec
from cptune.domain.timeline import Span
from cptune.domain.trial import Trial
from cptune.errors import CptuneError, LedgerError
from cptune.report.doubts import doubts_of
from cptune.report.run import ReportedRun, RunState
from cptune.report.summary import without_password
from cptune.report.trace import trace_answer
from cptune.reporting.disk import Disk, notes_of, read_disk, state_of
from cptune.reporting.judge import capacity_bytes, judge, judged, kept_recipe, so_far_recipe
from cptune.seams import Observer
from cptune.spec import write_toml
from cptune.store.files import write_durably
from cptune.store.traces import read_spans, trace_path
from topology.errors import TopologyError

REPORT = "report.html"

#: What a page that cannot be made may end with, a fault of ours among it.
_FAULTS = (CptuneError, TopologyError, OSError, ArithmeticError, AssertionError, AttributeError)
_FAULTS += (LookupError, TypeError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A page that was written."""

    run: ReportedRun
    path: Path
    size_bytes: int

    def to_json(self) -> dict[str, object]:
        """What `cptune report --format json` prints."""
        recipe = self.run.recipe
        proof = None if recipe is None else recipe.proof
        return {
            "run": str(self.run.directory),
            "page": str(self.path),
            "page_bytes": self.size_bytes,
            "state": self.run.state.value,
            "recipe": None if recipe is None else recipe.candidate.key,
            "certified": None if recipe is None else recipe.is_certified,
            "proven": None if proof is None else proof.passed,
            "doubts": doubts_of(self.run),
        }


def write_report(directory: Path, *, out: Path | None = None) -> Report:
    """Write the page of a run, into its directory where no other file is named.

    Raises:
        SpecError: when the run has no spec that can be read.
        LedgerError: when the run cannot be read, or the page not written.
    """
    from cptune.report.figures import plotly_script  # brings plotly
    from cptune.report.page import run_page  # brings jinja2

    run = read_run(directory)
    path = out or directory / REPORT
    page = run_page(run, script=plotly_script(), at=SystemClock().utc())
    data = page.encode(errors="replace")  # a path may be no text
    write_durably(path, data)
    return Report(run=run, path=path, size_bytes=len(data))


def keep_report(directory: Path, observer: Observer) -> None:
    """Write the page of a sweep that is done; where that fails, say so: its answer stands."""
    try:
        write_report(directory)
    except _FAULTS as exc:
        observer.note(
            f"{directory / REPORT} was not written: {exc or type(exc).__name__}; "
            f"`cptune report {directory}` tries again"
        )


def read_run(directory: Path) -> ReportedRun:
    """Read a run whole and judge its trials as its sweep does.

    Raises:
        SpecError: when it has no spec that can be read.
        LedgerError: when the id of the run cannot be read.
    """
    disk = read_disk(directory)
    state, note = state_of(disk)
    capacity = capacity_bytes(disk)
    choice = None if capacity is None else judge(disk, capacity)
    kept = kept_recipe(disk, choice, capacity) if state is RunState.FINISHED else None
    recipe = kept or so_far_recipe(disk, choice, capacity, state=state)
    verdicts = judged(disk, choice, kept=kept)
    chosen = [one for one in verdicts if recipe and one.trial.candidate.key == recipe.candidate.key]
    return ReportedRun(
        directory=directory,
        spec=disk.spec,
        state=state,
        state_note=note,
        trials=tuple(disk.trials),
        judged=verdicts,
        capacity_bytes=capacity,
        recipe=recipe,
        recipe_text=disk.recipe_text if kept else "",
        topology=disk.topology,
        trace=_trace(disk, chosen[0].trial) if chosen else None,
        doubts=tuple(disk.doubts),  # of all that was read above
        quarantined=tuple(disk.quarantined),
        notes=notes_of(disk.events),
        spec_text=_spec_text(disk.spec),
    )


def _spec_text(spec: SweepSpec) -> str:
    """The spec as it may be shown."""
    shown = Storage(study=without_password(spec.storage.study))
    return write_toml(replace(spec, storage=shown))


def _trace(disk: Disk, trial: Trial) -> dict[str, Any] | None:
    """The answer of `cptune trace`; without its links where the file of the trace is lost."""
    seen = trial.measurement
    if seen is None or not seen.ranks or any(one.trace is None for one in seen.ranks):
        return None
    path = trace_path(disk.directory, trial)
    spans: dict[int, list[Span]] = {}
    try:
        if path.exists() or (trial.origin and trial.origin.trace_sha256):
            spans = read_spans(path, trial=trial)
    except LedgerError as exc:
        disk.doubts.append(str(exc))
    where = str(path) if spans else None
    return trace_answer(trial, run=disk.directory.name, trace_file=where, spans=spans)
