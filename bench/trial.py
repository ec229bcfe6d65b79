"""What a trial costs beside the steps that it measures, and what many of them cost the driver."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench.record import Claim, Report, Table, at_most, exactly
from cptune.cluster.connection import LOCAL
from cptune.cluster.gang import Gang
from cptune.cluster.inventory import cpu_devices
from cptune.cluster.ray_launcher import RayLauncher
from cptune.cluster.session import joined_cluster
from cptune.domain.candidate import Candidate
from cptune.domain.environment import RankEnvironment
from cptune.domain.outcome import Measurement, RankReport, measurement_from, slowest_steps
from cptune.domain.placement import Device, Placement, place
from cptune.domain.stamp import Stamp
from cptune.domain.study import Budget, SamplerName, SearchSettings, SweepSpec
from cptune.domain.trial import Trial
from cptune.search.choose import Limits
from cptune.search.loop import SearchLoop
from cptune.search.prepare import prepare
from cptune.search.sampler import OptunaSampler
from cptune.search.seams import Seams
from cptune.spec import parse
from cptune.store.ledger import ParquetLedger

MOST_S = 0.6  # beyond the measured steps, median over trials
MOST_BYTES = 50e6  # growth of the driver
TRIALS = 2000
RANKS = 4
REPEATS = 3

_SPEC = """
[model]
layers = 2
hidden = 64
heads = 4
kv_heads = 4
head_dim = 16
ffn = 128
vocab = 64
[workload]
seq_len = 256
global_batch_seqs = 4
precision = "fp32"
[cluster]
gpu = "cpu"
world_size = 4
device_memory_bytes = 64000000
[axes]
strategy = ["ring", "all_gather", "ulysses", "hybrid"]
sharding = ["zigzag", "contiguous", "balanced"]
recompute = ["none", "selective", "full"]
loss = ["full", "chunked"]
data_parallel = ["ddp", "zero1", "fsdp"]
micro_batch = [1, 2, 4]
[budget]
max_steps = 5
trial_s = 60
"""
_FIELDS = {
    "wall": "wall_s",
    "warm-up": "warmup_s",
    "trace": "traced_s",
    "timed": "timed_s",
    "set-up": "set_up_s",
    "kept": "kept_s",
    "beside": "beside_s",
}
_LAYOUTS = (
    "tp1-cp4-pp1-dp1-mb4-zigzag-ring-st3-none-full-ddp-auto",
    "tp2-cp2-pp1-dp1-mb4-zigzag-ring-st1-none-full-ddp-auto",
    "tp1-cp2-pp1-dp2-mb2-zigzag-ring-st1-none-full-fsdp-auto",
    "tp1-cp1-pp2-dp2-mb1-none-full-ddp-auto",
    "tp1-cp1-pp1-dp4-mb1-none-full-zero1-auto",
    "tp4-cp1-pp1-dp1-mb4-none-full-ddp-auto",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds of one warm trial on the driver's clock, and of its steps on the slowest rank.

    `warmup_s` is without its last step, which is the traced one; `kept_s` is the ledger's.
    """

    wall_s: float
    warmup_s: float
    traced_s: float
    timed_s: float
    kept_s: float

    @property
    def beside_s(self) -> float:
        """What is not a measured step: warm-up, the traced step and the ledger are in it."""
        return self.wall_s - self.timed_s

    @property
    def set_up_s(self) -> float:
        """What is no step: process groups, the model, reports, what is told of a trace, and Ray."""
        return self.beside_s - self.warmup_s - self.traced_s - self.kept_s


def run() -> Report:
    """Measure both."""
    costs = _warm_trials()
    every = [one for cost in costs.values() for one in cost]
    columns = ("layout", "trials", *(f"{name}, ms" for name in _FIELDS))
    rows = [_row(name, cost) for name, cost in [*costs.items(), ("all", every)]]
    growth, tried = _driver_growth()
    notes = [
        f"{RANKS} ranks, a decoder of 2 layers, 4 sequences of 256 tokens in one pass where the "
        "layout allows it, and the budget of a spec that says nothing: warm-up of 2 steps or more "
        "by rule, the last of them traced, then 5 timed. The actors are warm: each layout ran once "
        "before.",
        "wall: from launch to the row in the ledger, on the driver. Of the slowest rank: warm-up, "
        "the step that is traced, timed. kept: the ledger's five tables and the trace file. "
        "set-up: what is left. beside: all but the timed steps. Medians over trials.",
        f"driver: {TRIALS} candidates of a legal set, answered at once by a launcher that runs "
        "nothing; asked of Optuna (random: TPE looks at all trials for each one), kept in Parquet "
        "and told.",
    ]
    table = Table(title="A warm trial", columns=columns, rows=rows)
    driver = Table(
        title="The driver",
        columns=("trials", "growth, MB", "growth of the second half, MB"),
        rows=[[str(tried), f"{growth[-1] / 1e6:.1f}", f"{(growth[-1] - growth[0]) / 1e6:.1f}"]],
    )
    return Report(notes=notes, tables=[table, driver], claims=_claims(every, growth, tried))


def _claims(costs: Sequence[Cost], growth: Sequence[int], tried: int) -> list[Claim]:
    return [
        at_most(
            "seconds of a warm trial beside its measured steps, p50",
            median(one.beside_s for one in costs),
            MOST_S,
        ),
        at_most(
            "seconds of a warm trial beside all of its steps, p50",
            median(one.set_up_s + one.kept_s for one in costs),
            MOST_S / 2,
        ),
        exactly("candidates tried by the driver", tried, TRIALS),
        at_most(f"bytes that {TRIALS} trials grow the driver by", growth[-1], MOST_BYTES),
    ]


def _row(name: str, costs: Sequence[Cost]) -> list[str]:
    times = (median(getattr(one, field) for one in costs) for field in _FIELDS.values())
    return [name.split("-none")[0], str(len(costs)), *(f"{1e3 * one:.0f}" for one in times)]


def _spec() -> SweepSpec:
    return prepare(parse(_SPEC, source="bench", default_name="bench"), None).spec


def _warm_trials() -> dict[str, list[Cost]]:
    spec = _spec()
    legal = {one.key: one for one in prepare(spec, None).space.candidates}
    with ExitStack() as stack:
        nodes, topology = stack.enter_context(joined_cluster(LOCAL, ranks=RANKS))
        devices = cpu_devices(topology, world_size=RANKS)
        gang = Gang(devices, nodes=nodes, threads=1)
        stack.callback(gang.close)
        gang.start()
        launcher = RayLauncher(gang, devices=devices, spec=spec, capacity_bytes=64_000_000)
        ledger = ParquetLedger(
            Path(stack.enter_context(tempfile.TemporaryDirectory())), writable=True
        )
        found: dict[str, list[Cost]] = {key: [] for key in _LAYOUTS}
        for repeat in range(1 + REPEATS):
            for number, key in enumerate(_LAYOUTS):
                cost = _cost(launcher, legal[key], ledger=ledger, at=(number, repeat))
                if repeat:
                    found[key].append(cost)
    return found


def _cost(
    launcher: RayLauncher, candidate: Candidate, *, ledger: ParquetLedger, at: tuple[int, int]
) -> Cost:
    placement = launcher.place(candidate)
    start_s = time.monotonic()
    seen = launcher.launch(candidate, placement)
    done_s = time.monotonic()
    assert isinstance(seen, Measurement), seen
    ledger.append(
        Trial(
            number=at[0],
            attempt=at[1],
            candidate=candidate,
            placement=placement,
            outcome=seen,
            convergence_fingerprint="c",
            execution_fingerprint="e",
            started_at=_Clock().utc(),
            finished_at=_Clock().utc(),
        )
    )
    stop_s = time.monotonic()
    warmup = [max(times) for times in zip(*(one.warmup_s for one in seen.ranks), strict=True)]
    assert seen.traced_step_s is not None, "a default trial traces a step"
    return Cost(
        wall_s=stop_s - start_s,
        warmup_s=sum(warmup[:-1]),
        traced_s=warmup[-1],
        timed_s=sum(slowest_steps(seen.ranks)),
        kept_s=stop_s - done_s,
    )


def _driver_growth() -> tuple[list[int], int]:
    """Resident bytes above the start at half of the trials and at the end, in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(drive).result()


def drive() -> tuple[list[int], int]:
    """Search with a launcher that runs nothing; returns the growth and how many were tried."""
    spec = _spec()
    more = replace(spec, workload=replace(spec.workload, global_batch_seqs=32))
    space = prepare(replace(more, axes=replace(more.axes, micro_batch=())), None).space
    space = replace(space, candidates=space.candidates[:TRIALS])
    budget = replace(spec.budget, trials=TRIALS, finalist_rounds=0)
    with tempfile.TemporaryDirectory() as folder:
        sampler = OptunaSampler(
            space,
            settings=SearchSettings(sampler=SamplerName.RANDOM),
            study_name="bench",
            storage=Path(folder) / "study.db",
            baseline=space.candidates[0],
        )
        watch = _Watch()
        with sampler:
            loop = SearchLoop(
                space,
                limits=Limits(
                    capacity_bytes=64_000_000, memory_margin=0.1, objective=spec.objective
                ),
                budget=budget,
                stamp=Stamp(
                    convergence="c", execution="e", topology="t", versions=RankEnvironment()
                ),
                seams=Seams(
                    sampler=sampler,
                    launcher=_Instant(spec),
                    ledger=ParquetLedger(Path(folder), writable=True),
                    clock=_Clock(),
                    observer=watch,
                ),
            )
            watch.start()
            loop.run()
        return [one - watch.before for one in (watch.half, _resident_bytes())], len(loop.trials)


class _Instant:
    """Answers at once, with as many samples as a short trial has."""

    def __init__(self, spec: SweepSpec) -> None:
        self._tokens = spec.workload.tokens_per_step
        self._budget: Budget = spec.budget

    def place(self, candidate: Candidate) -> Placement:
        """All on one node."""
        devices = [Device(node="here", kind="cpu", index=index) for index in range(RANKS)]
        return place(candidate.layout, devices)

    def launch(self, candidate: Candidate, placement: Placement) -> Measurement:
        """A step of a tenth of a second, on every rank."""
        del candidate
        reports = [self._report(one.rank) for one in placement.ranks]
        return measurement_from(tuple(reports), tokens_per_step=self._tokens)

    def _report(self, rank: int) -> RankReport:
        steps = tuple(0.1 + 0.001 * index for index in range(self._budget.steps))
        waits = tuple(0.01 for _ in steps)
        sizes = dict.fromkeys(
            ("attended_pairs", "planned_sent_bytes", "sent_bytes", "peak_reserved_bytes"), 1000
        )
        return RankReport(
            rank=rank,
            node="here",
            pid=1000 + rank,
            gpu_uuid=None,
            step_s=steps,
            tp_exposed_s=waits,
            cp_exposed_s=waits,
            dp_exposed_s=waits,
            pp_exposed_s=waits,
            forward_peak_bytes=1000,
            backward_peak_bytes=1000,
            peak_allocated_bytes=1000,
            kernel="none",
            first_loss=1.0,
            first_grad_norm=1.0,
            sample_hash="0",
            **sizes,
        )


class _Clock:
    def monotonic_s(self) -> float:
        return 0.0

    def utc(self) -> str:
        return "2026-01-02T03:04:05.678+00:00"


class _Watch:
    """Looks at the memory of this process at the start and after half of the trials."""

    def __init__(self) -> None:
        self.before = self.half = self._done = 0

    def start(self) -> None:
        self.before = _resident_bytes()

    def trial_started(self, candidate: Candidate, *, done: int, total: int) -> None:
        del candidate
        if done == total // 2:
            self.half = _resident_bytes()

    def finalist_started(self, candidate: Candidate, *, turn: int, turns: int) -> None:
        raise AssertionError(f"no finals here: {candidate.key}, {turn} of {turns}")

    def trial_finished(self, trial: Trial, *, best: Trial | None) -> None:
        pass

    def note(self, message: str) -> None:
        pass

    def model_changed(self, message: str) -> None:
        pass


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096
