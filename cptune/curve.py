"""The memory curve: real trials by sequence length and CP degree, on the gang of a sweep.

All degrees train the same model on the same global batch with the same hardware; only the length
grows. Every row is kept as soon as it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from cptune import spec as specs
from cptune.cluster.connection import LOCAL
from cptune.cluster.session import joined_cluster, ready_for_trials
from cptune.domain.asked import CurveAsked
from cptune.domain.candidate import Candidate, ulysses_degrees
from cptune.domain.curve import Curve, CurveRow, peaks_by_length
from cptune.domain.growth import LengthSearch
from cptune.domain.guards import (
    why_not_applied,
    why_other_start,
    why_unlike,
    why_unlike_batch,
)
from cptune.domain.layout import ParallelLayout
from cptune.domain.outcome import Failure, Measurement, OutcomeKind
from cptune.domain.rules import Setting, describe, why_infeasible
from cptune.domain.study import SweepSpec, TraceKind
from cptune.domain.workload import divisors
from cptune.errors import SpecError
from cptune.predict.limits import Hardware, RateGuard, hardware_of
from cptune.seams import Launcher
from cptune.search.devices import settle_devices
from cptune.search.prepare import prepare
from cptune.store.curve import write_curve
from cptune.store.files import write_durably
from cptune.store.run_directory import RunDirectory, free_name
from topology.discover import discover

#: A peak is the same in every step after the first; the time needs a few.
_WARMUP_STEPS, _STEPS = 1, 3
_GRANULES = 8  # in the shortest length asked for
_MOST_GROWTH = 64  # times the longest length asked for

#: Told of every row as it comes.
OnRow = Callable[[CurveRow], None]
#: The launcher of the trials of one length.
LauncherOf = Callable[[SweepSpec], Launcher]


def run_curve(
    spec: SweepSpec, asked: CurveAsked, *, runs: Path, address: str = LOCAL, on_row: OnRow
) -> tuple[Curve, Path]:
    """Measure the curve and keep it in `runs/<name>-curve`.

    Args:
        spec: What is trained, and the layout but for CP: the baseline, else first values.
        asked: Lengths and degrees.
        runs: Where run directories are.
        address: "local", or the address of a Ray cluster.
        on_row: Told of every row as it comes.

    Raises:
        SpecError: when the input is wrong; nothing was started.
        ClusterError: when the cluster cannot do it.
        LedgerError: when the run directory cannot be written.
    """
    with ExitStack() as stack:
        topology = discover() if address == LOCAL else None
        nodes = None
        if topology is None and spec.cluster.world_size is None:
            nodes, topology = stack.enter_context(joined_cluster(address, ranks=0))
        resolved = prepare(spec, topology).spec
        plan = CurvePlan(resolved, asked)
        name = free_name(runs, f"{spec.name}-curve")
        run = stack.enter_context(RunDirectory(runs / name))
        write_durably(run.spec_path, specs.write_toml(resolved).encode())
        if nodes is None or topology is None:
            ranks = resolved.cluster.world_size or 0
            nodes, topology = stack.enter_context(joined_cluster(address, ranks=ranks))
            resolved = settle_devices(resolved, topology)
        ready = stack.enter_context(ready_for_trials(resolved, nodes=nodes, topology=topology))

        def keep(row: CurveRow, rows: Sequence[CurveRow]) -> None:
            write_curve(run.path / "curve.parquet", rows)
            on_row(row)

        study = CurveStudy(
            plan,
            launcher_of=ready.launcher.on,
            capacity_bytes=ready.capacity_bytes,
            hardware=hardware_of(resolved.cluster, topology),
            keep=keep,
        )
        return study.run(), run.path


class CurvePlan:
    """The lengths, the degrees and the candidate of each, from a resolved spec.

    Raises:
        SpecError: when a length or a degree cannot be used.
    """

    def __init__(self, spec: SweepSpec, asked: CurveAsked) -> None:
        self.spec = spec
        own = spec.workload.seq_len
        parts = {max(1, own // 4), max(1, own // 2), own}
        self.seq_lens = _numbers("--seq-lens", asked.seq_lens) or sorted(parts)
        self.cps = _numbers("--cp", asked.cp) or sorted({*spec.axes.cp})
        ranks = divisors(spec.cluster.world_size or 1)
        if odd := [cp for cp in _numbers("--cp", asked.cp) if cp not in ranks]:
            raise SpecError(f"--cp has {odd[0]}; wanted a divisor of {ranks[-1]} ranks: {ranks}")
        self.granule = max(1, self.seq_lens[0] // _GRANULES)

    def at(self, seq_len: int) -> SweepSpec:
        """The spec at another length, with the few steps that a curve needs."""
        spec = self.spec
        return replace(
            spec,
            workload=replace(spec.workload, seq_len=seq_len),
            budget=replace(
                spec.budget,
                warmup_steps=_WARMUP_STEPS,
                steps=_STEPS,
                max_steps=_STEPS,
                trace=TraceKind.OFF,
            ),
        )

    def search(self, capacity_bytes: int) -> LengthSearch:
        """The search for the longest length of one degree."""
        most = self.seq_lens[-1] * _MOST_GROWTH // self.granule * self.granule
        return LengthSearch(capacity_bytes=capacity_bytes, granule=self.granule, most=most)

    def candidate(self, cp: int) -> Candidate:
        """The baseline's layout, or the first values of the axes, at one degree; dp is the rest."""
        axes, given = self.spec.axes, self.spec.baseline
        tp, pp = given.tp or axes.tp[0], given.pp or axes.pp[0]
        strategy = axes.strategy[0]
        ulysses = next(iter(ulysses_degrees(strategy, cp)), 1)
        layout = ParallelLayout(
            tp=tp,
            cp=cp,
            pp=pp,
            vpp=axes.vpp[0],
            dp=max(1, (self.spec.cluster.world_size or 1) // (tp * cp * pp)),
            ulysses=ulysses,
        )
        return Candidate(
            layout=layout,
            sharding=axes.sharding[0],
            strategy=strategy,
            stages=(axes.stages[0] if axes.stages else layout.ring - 1) if layout.ring > 1 else 0,
            micro_batch=given.micro_batch or axes.micro_batch[0],
            recompute=axes.recompute[0],
            loss=axes.loss[0],
            data_parallel=axes.data_parallel[0],
        ).canonical()


class CurveStudy:
    """Tries lengths degree by degree.

    Args:
        plan: What to try.
        launcher_of: The launcher for a spec of another length.
        capacity_bytes: What a device holds.
        hardware: What computes.
        keep: Told of each row and of all so far.
    """

    def __init__(
        self,
        plan: CurvePlan,
        *,
        launcher_of: LauncherOf,
        capacity_bytes: int,
        hardware: Hardware,
        keep: Callable[[CurveRow, Sequence[CurveRow]], None],
    ) -> None:
        self._plan, self._launcher_of, self._hardware = plan, launcher_of, hardware
        self._capacity_bytes, self._keep = capacity_bytes, keep
        self._rows: list[CurveRow] = []

    def run(self) -> Curve:
        """Try the asked lengths of each degree, then bisect to its longest."""
        for cp in self._plan.cps:
            self._run_degree(self._plan.candidate(cp))
        return Curve(
            capacity_bytes=self._capacity_bytes,
            granule=self._plan.granule,
            rows=tuple(self._rows),
        )

    def _run_degree(self, candidate: Candidate) -> None:
        rows: list[CurveRow] = []
        for seq_len in self._plan.seq_lens:
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
            why_not_applied(outcome, candidate.layout)
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


def _numbers(word: str, text: str) -> list[int]:
    """Whole numbers above 0 of a list like 1024,2048, ascending, each once.

    Raises:
        SpecError: when it holds anything else.
    """
    try:
        found = sorted({int(part) for part in text.split(",")}) if text.strip() else []
    except ValueError:
        raise SpecError(f"{word} is {text!r}; wanted whole numbers, as in 1024,2048") from None
    if found and found[0] < 1:
        raise SpecError(f"{word} has {found[0]}; wanted 1 or more")
    return found
