"""The memory curve: real trials by sequence length and CP degree, on the gang of a sweep.

All degrees train the same model on the same global batch with the same hardware; only the length
grows. Every row is kept as soon as it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cptune.cluster.connection import LOCAL
from cptune.cluster.session import joined_cluster, ready_for_trials
from cptune.domain.asked import CurveAsked
from cptune.domain.candidate import Candidate
from cptune.domain.curve import Curve, CurveRow, peaks_by_length
from cptune.domain.guards import (
    why_not_applied,
    why_other_recompute,
    why_other_start,
    why_unlike,
    why_unlike_batch,
)
from cptune.domain.outcome import RETRIED, Failure, Measurement, OutcomeKind
from cptune.domain.rules import Setting, describe, why_infeasible
from cptune.domain.study import SweepSpec
from cptune.errors import SpecError
from cptune.opening import RunKind, open_run
from cptune.predict.limits import Hardware, RateGuard, hardware_of
from cptune.recipe.caveats import caveats_of
from cptune.seams import Launcher
from cptune.search.curve_plan import CurvePlan, why_not_of
from cptune.search.devices import settle_devices
from cptune.search.prepare import prepare
from cptune.store.curve import (
    ASKED,
    MEND,
    ROWS,
    read_asked,
    read_curve,
    write_asked,
    write_curve,
)
from topology.discover import discover

#: The launcher of the trials of one length.
LauncherOf = Callable[[SweepSpec], Launcher]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Hears what happens: every row as it comes, and what a person should know."""

    row: Callable[[CurveRow], None]
    note: Callable[[str], None]


def run_curve(
    spec: SweepSpec,
    asked: CurveAsked,
    *,
    directory: Path,
    address: str = LOCAL,
    resume: bool = False,
    told: Told,
) -> Curve:
    """Measure the curve and keep it in a run directory.

    Args:
        spec: What is trained, and the layout but for CP: the baseline, else first values.
        asked: Lengths and degrees; of a curve that is resumed, those that it was begun with.
        directory: The run directory.
        address: "local", or the address of a Ray cluster.
        resume: Go on from the rows that are there instead of refusing them.
        told: Hears what happens.

    Raises:
        SpecError: when the input is wrong; nothing was started.
        ClusterError: when the cluster cannot do it.
        LedgerError: when the run directory cannot be read or written.
    """
    with ExitStack() as stack:
        topology = discover() if address == LOCAL else None
        nodes = None
        if topology is None and spec.cluster.world_size is None:
            nodes, topology = stack.enter_context(joined_cluster(address, ranks=0))
        resolved = prepare(spec, topology).spec
        plan = CurvePlan(resolved, asked)
        run = stack.enter_context(open_run(resolved, directory, resume=resume, kind=RunKind.CURVE))
        known = read_curve(run.path)
        _keep_grid(plan, asked, run.path, known=known)
        known = [row for row in known if row.kind not in RETRIED]
        if nodes is None or topology is None:
            ranks = resolved.cluster.world_size or 0
            nodes, topology = stack.enter_context(joined_cluster(address, ranks=ranks))
            resolved = settle_devices(resolved, topology)
        ready = stack.enter_context(ready_for_trials(resolved, nodes=nodes, topology=topology))
        for caveat in caveats_of(ready.gang.environment(), versions=ready.gang.versions()):
            told.note(caveat)

        def keep(row: CurveRow, rows: Sequence[CurveRow]) -> None:
            write_curve(run.path / ROWS, rows)
            told.row(row)

        study = CurveStudy(
            plan,
            launcher_of=ready.launcher.on,
            capacity_bytes=ready.capacity_bytes,
            hardware=hardware_of(resolved.cluster, topology),
            keep=keep,
            known=known,
        )
        return study.run()


def _keep_grid(
    plan: CurvePlan, asked: CurveAsked, path: Path, *, known: Sequence[CurveRow]
) -> None:
    """Keep what a new curve is asked; take it from there where one goes on.

    Raises:
        SpecError: when a curve that goes on was begun with other lengths or degrees, or its file
            does not tell them.
    """
    kept = read_asked(path)
    if kept is None and known:
        raise SpecError(
            f"run {path.name!r} has {len(known)} rows and no {ASKED}: with which lengths and "
            "degrees it was begun is not known",
            hint=MEND,
        )
    if kept is None:
        write_asked(path, plan.grid)
        return
    changes = [
        f"{flag}: {list(getattr(kept, name))} -> {list(getattr(plan.grid, name))}"
        for flag, name in (("--seq-lens", "seq_lens"), ("--cp", "cp"))
        if getattr(asked, name).strip() and getattr(kept, name) != getattr(plan.grid, name)
    ]
    if changes:
        raise SpecError(
            f"run {path.name!r} was started with others: " + "; ".join(changes),
            hint="resume without them, or start another curve without --resume",
        )
    if wrong := [*plan.why_not(kept), *why_not_of(kept, known)]:
        raise SpecError("\n".join(f"{path / ASKED} | {one}" for one in wrong), hint=MEND)
    plan.grid = kept


class CurveStudy:
    """Tries lengths degree by degree.

    Args:
        plan: What to try.
        launcher_of: The launcher for a spec of another length.
        capacity_bytes: What a device holds.
        hardware: What computes.
        keep: Told of each row that is new, and of all so far.
        known: Rows of an earlier start, taken as they are.
    """

    def __init__(
        self,
        plan: CurvePlan,
        *,
        launcher_of: LauncherOf,
        capacity_bytes: int,
        hardware: Hardware,
        keep: Callable[[CurveRow, Sequence[CurveRow]], None],
        known: Sequence[CurveRow] = (),
    ) -> None:
        self._plan, self._launcher_of, self._hardware = plan, launcher_of, hardware
        self._capacity_bytes, self._keep = capacity_bytes, keep
        self._rows = list(known)

    def run(self) -> Curve:
        """Try the asked lengths of each degree, then bisect to its longest."""
        for cp in self._plan.grid.cp:
            self._run_degree(self._plan.candidate(cp))
        return Curve(
            capacity_bytes=self._capacity_bytes,
            granule=self._plan.granule,
            rows=tuple(self._rows),
        )

    def _run_degree(self, candidate: Candidate) -> None:
        rows: list[CurveRow] = []
        for seq_len in self._plan.grid.seq_lens:
            rows.append(self._try(candidate, seq_len))
            if rows[-1].measurement is None:  # no longer one fits
                break
        search = self._plan.search(self._capacity_bytes)
        # A trial that failed otherwise says nothing about memory, so nothing is bisected on it.
        while len(known := peaks_by_length(rows)) == len(rows):
            seq_len = search.next_length(known)
            if seq_len is None:
                return
            rows.append(self._try(candidate, seq_len))

    def _try(self, candidate: Candidate, seq_len: int) -> CurveRow:
        for row in self._rows:  # what is tried next follows from what came before, every time
            if (row.candidate, row.seq_len) == (candidate, seq_len):
                return row
        spec = self._plan.at(seq_len)
        row = CurveRow(seq_len=seq_len, candidate=candidate, outcome=self._outcome(candidate, spec))
        self._rows.append(row)
        self._keep(row, self._rows)
        return row

    def _outcome(self, candidate: Candidate, spec: SweepSpec) -> Measurement | Failure:
        setting = Setting(
            model=spec.model,
            workload=spec.workload,
            world_size=spec.cluster.world_size or 1,
        )
        if broken := why_infeasible(candidate, setting):
            return Failure(kind=OutcomeKind.INFEASIBLE, message=describe(candidate, broken))
        launcher = self._launcher_of(spec)
        outcome = launcher.launch(candidate, launcher.place(candidate))
        if isinstance(outcome, Failure):
            return outcome
        return (
            why_other_recompute(outcome, candidate)
            or why_not_applied(outcome, candidate.layout)
            or why_unlike_batch(outcome, candidate.layout)
            or RateGuard(spec, hardware=self._hardware)(outcome, candidate)
            or self._why_unlike(outcome, seq_len=spec.workload.seq_len)
            or outcome
        )

    def _why_unlike(self, seen: Measurement, *, seq_len: int) -> Failure | None:
        """A failure when it did not start like the others of its length: same maths and batch."""
        for row in self._rows:
            if row.seq_len == seq_len and row.measurement is not None:
                return why_other_start(seen, row.measurement, name=row.candidate.describe())
        return why_unlike(seen, None)
