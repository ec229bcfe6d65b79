"""A fake for every seam, and builders of the nouns that the tests need whole."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from cptune.domain.candidate import (
    Candidate,
    ShardingKind,
    Strategy,
)
from cptune.domain.environment import RankEnvironment
from cptune.domain.layout import ParallelLayout
from cptune.domain.outcome import (
    EdgeReport,
    Failure,
    Measurement,
    MemoryShortage,
    OomKind,
    OutcomeKind,
    RankReport,
    measurement_from,
)
from cptune.domain.placement import Device, Placement, place
from cptune.domain.rules import Setting
from cptune.domain.stamp import Stamp
from cptune.domain.study import SweepSpec
from cptune.domain.timeline import INTERVAL_UNION, Exposed, RankTrace
from cptune.domain.trial import Predicted, Trial
from cptune.domain.workload import ModelShape, Precision, Workload, preset_fields
from cptune.search.space import SearchSpace
from cptune.spec import parse

Outcome = Measurement | Failure

STAMP = Stamp(
    convergence="c" * 64,
    execution="e" * 64,
    topology="t" * 64,
    versions=RankEnvironment(shared={"cptune": "0"}),
)
NOW = "2026-01-02T03:04:05.678+00:00"


def model(name: str = "tiny", **changes: object) -> ModelShape:
    """A preset with some fields changed."""
    return ModelShape(**{**preset_fields(name), **changes})


def workload(**changes: object) -> Workload:
    """A batch of four short fp32 sequences with some fields changed."""
    fields = {"seq_len": 64, "global_batch_seqs": 4, "precision": Precision.FP32}
    return Workload(**{**fields, **changes})


def setting(world_size: int = 4, **changes: object) -> Setting:
    """A tiny model on a few ranks with some fields changed."""
    fields = {"model": model(), "workload": workload(), "world_size": world_size}
    return Setting(**{**fields, **changes})


def candidate(tp: int = 1, cp: int = 1, dp: int = 1, **changes: object) -> Candidate:
    """A plain ring over CP with some axes changed; pp, vpp, ulysses and ep go to the layout."""
    sizes = {name: changes.pop(name) for name in ("pp", "vpp", "ulysses", "ep") if name in changes}
    made = Candidate(
        layout=ParallelLayout(tp=tp, cp=cp, dp=dp, **sizes),
        sharding=ShardingKind.ZIGZAG if cp > 1 else ShardingKind.CONTIGUOUS,
        strategy=Strategy.RING,
        stages=max(0, cp - 1),
    )
    return replace(made, **changes)


def space_of(*candidates: Candidate, **changes: object) -> SearchSpace:
    """A legal set of exactly these candidates."""
    fields = {
        "world_size": candidates[0].layout.world_size,
        "candidates": candidates,
        "excluded": {},
        "reasons": (),
        "illegal_cps": {},
        "untriable": {},
    }
    return SearchSpace(**{**fields, **changes})


def sweep_spec(text: str = "", *, name: str = "fake") -> SweepSpec:
    """A valid spec of the tiny model on four ranks; `text` adds tables."""
    plain = (
        '[model]\npreset = "tiny"\n'
        '[workload]\nseq_len = 64\nglobal_batch_seqs = 4\nprecision = "fp32"\n'
    )
    cluster = "" if "[cluster]" in text else "[cluster]\nworld_size = 4\n"
    return parse(plain + cluster + text, source="fake.toml", default_name=name)


def devices(count: int, *, kind: str = "cpu") -> list[Device]:
    """Devices of one node; a GPU has a UUID."""
    return [
        Device(
            node="node0",
            kind=kind,
            index=index,
            uuid=None if kind == "cpu" else f"GPU-{index}",
            memory_bytes=1 << 30,
        )
        for index in range(count)
    ]


def rank_report(rank: int = 0, **changes: object) -> RankReport:
    """What one rank saw in two steps of 0.1 s, with some fields changed."""
    steps = len(changes.get("step_s", (0.1, 0.1)))
    fields = {
        "rank": rank,
        "node": "node0",
        "pid": 1000 + rank,
        "gpu_uuid": None,
        "step_s": (0.1, 0.1),
        "tp_exposed_s": (0.0,) * steps,
        "cp_exposed_s": (0.0,) * steps,
        "dp_exposed_s": (0.0,) * steps,
        "pp_exposed_s": (0.0,) * steps,
        "forward_peak_bytes": 600,
        "backward_peak_bytes": 700,
        "peak_allocated_bytes": 700,
        "peak_reserved_bytes": 800,
        "attended_pairs": 10,
        "planned_sent_bytes": 0,
        "sent_bytes": 0,
        "kernel": "eager",
        "first_loss": 5.5,
        "first_grad_norm": 1.25,
        "sample_hash": "0",
    }
    return RankReport(**{**fields, **changes})


def edge_report(peer_rank: int, **changes: object) -> EdgeReport:
    """Bytes sent over CP to a peer, with some fields changed."""
    fields = {
        "peer_rank": peer_rank,
        "axis": "cp",
        "sent_bytes": 512,
        "received_bytes": 256,
        "seconds": 0.001,
    }
    return EdgeReport(**{**fields, **changes})


def rank_trace(**changes: object) -> RankTrace:
    """A traced step of 0.1 s with 30 ms over CP, of which 20 ms are exposed, in two layers."""

    def row(axis: str, layer: int | None, comm_s: float, exposed_s: float) -> Exposed:
        whole = layer is None
        return Exposed(
            axis=axis,
            layer=layer,
            whole=whole,
            method=INTERVAL_UNION,
            communication_s=comm_s,
            exposed_s=exposed_s,
            blocked_s=exposed_s if whole else None,
            bytes=int(comm_s * 1e6),
        )

    fields = {
        "step_s": 0.1,
        "clock_offset_s": 0.0,
        "clock_error_s": 0.0,
        "exposed": (
            row("tp", None, 0.0, 0.0),
            row("cp", None, 0.03, 0.02),
            row("cp", 0, 0.02, 0.015),
            row("cp", 1, 0.01, 0.005),
            row("dp", None, 0.004, 0.004),
            row("pp", None, 0.0, 0.0),
        ),
    }
    return RankTrace(**{**fields, **changes})


def measured(
    *,
    ranks: int = 4,
    step_s: float = 0.1,
    peak_bytes: int = 700,
    exposed_share: float = 0.0,
    tokens_per_step: int = 256,
    **changes: object,
) -> Measurement:
    """A measurement of equal ranks: its step, its peak, and its exposed share all over CP."""
    exposed = step_s * exposed_share
    reports = tuple(
        rank_report(
            rank,
            step_s=(step_s, step_s),
            cp_exposed_s=(exposed, exposed),
            peak_allocated_bytes=peak_bytes,
            **changes,
        )
        for rank in range(ranks)
    )
    return measurement_from(reports, tokens_per_step=tokens_per_step)


def predicted(step_s: float = 0.1, *, peak_bytes: int = 700) -> Predicted:
    """An expectation whose band of memory is 12% either way."""
    return Predicted(
        step_s=step_s,
        peak_lo_bytes=int(peak_bytes * 0.88),
        peak_bytes=peak_bytes,
        peak_hi_bytes=int(peak_bytes * 1.12),
        model_version="fake",
    )


def failed(kind: OutcomeKind = OutcomeKind.CRASHED, message: str = "it broke") -> Failure:
    """A failure of one rank."""
    return Failure(kind=kind, message=message, rank=1, node="node0")


def out_of_memory(short_bytes: int = 300, *, free_bytes: int = 100) -> Failure:
    """A failure that asked for more than was free."""
    asked = free_bytes + short_bytes
    return Failure(
        kind=OutcomeKind.OUT_OF_MEMORY,
        message=f"out of memory in forward: asked {asked} bytes, {free_bytes} free",
        rank=0,
        node="node0",
        shortage=MemoryShortage(kind=OomKind.CAPACITY, asked_bytes=asked, free_bytes=free_bytes),
    )


def trial_of(
    tried: Candidate,
    outcome: Outcome | None = None,
    *,
    number: int = 0,
    attempt: int = 0,
    turn: int = 0,
) -> Trial:
    """A finished trial; measured on all of its ranks unless an outcome is given."""
    world = tried.layout.world_size
    return Trial(
        number=number,
        attempt=attempt,
        round=turn,
        candidate=tried,
        placement=place(tried.layout, devices(world)),
        outcome=measured(ranks=world) if outcome is None else outcome,
        convergence_fingerprint=STAMP.convergence,
        execution_fingerprint=STAMP.execution,
        started_at=NOW,
        finished_at=NOW,
    )


class ScriptedLauncher:
    """Answers each candidate from a table of its key: one outcome, or one an attempt.

    A key that the table lacks is measured by the default. `launched` holds the keys in order.
    """

    def __init__(
        self,
        script: Mapping[str, Outcome | Sequence[Outcome]] | None = None,
        *,
        default: Callable[[Candidate], Outcome] | None = None,
        on_launch: Callable[[Candidate], None] = lambda tried: None,
    ) -> None:
        self._script = dict(script or {})
        self._default = default or (lambda tried: measured(ranks=tried.layout.world_size))
        self._on_launch = on_launch
        self.launched: list[str] = []

    def place(self, candidate: Candidate) -> Placement:
        return place(candidate.layout, devices(candidate.layout.world_size))

    def launch(self, candidate: Candidate, placement: Placement) -> Outcome:
        assert len(placement.ranks) == candidate.layout.world_size
        attempt = self.launched.count(candidate.key)
        self.launched.append(candidate.key)
        self._on_launch(candidate)
        answer = self._script.get(candidate.key)
        if answer is None:
            return self._default(candidate)
        return answer if isinstance(answer, Measurement | Failure) else answer[attempt]


class MemoryLedger:
    """Keeps trials in a list that outlives the loop."""

    def __init__(self, trials: Sequence[Trial] = ()) -> None:
        self.kept = list(trials)

    def append(self, trial: Trial) -> None:
        self.kept.append(trial)

    def read(self) -> list[Trial]:
        return sorted(self.kept, key=lambda trial: (trial.number, trial.attempt))

    @property
    def quarantined(self) -> list[str]:
        return []


class ListSampler:
    """Walks a legal set in its own order; `told` and `restored` hold what it learned."""

    def __init__(self, space: SearchSpace) -> None:
        self._left = list(space.candidates)
        self.told: list[Trial] = []
        self.restored: list[Trial] = []
        self.among: list[set[str] | None] = []

    def ask(self, *, among: Collection[str] | None = None) -> Candidate | None:
        self.among.append(None if among is None else set(among))
        asked = next((one for one in self._left if among is None or one.key in among), None)
        if asked is not None:
            self._left.remove(asked)
        return asked

    def tell(self, trial: Trial) -> None:
        self.told.append(trial)

    def restore(self, trials: Sequence[Trial]) -> None:
        self.restored = list(trials)
        done = {trial.candidate.key for trial in trials}
        self._left = [one for one in self._left if one.key not in done]


class FakeClock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def advance(self, seconds: float) -> None:
        self.now_s += seconds

    def monotonic_s(self) -> float:
        return self.now_s

    def utc(self) -> str:
        return NOW


class RecordingObserver:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int, int]] = []
        self.finished: list[tuple[Trial, Trial | None]] = []
        self.finals: list[tuple[str, int, int]] = []
        self.notes: list[str] = []
        self.models: list[str] = []

    def trial_started(self, candidate: Candidate, *, done: int, total: int) -> None:
        self.started.append((candidate.key, done, total))

    def finalist_started(self, candidate: Candidate, *, turn: int, turns: int) -> None:
        self.finals.append((candidate.key, turn, turns))

    def trial_finished(self, trial: Trial, *, best: Trial | None) -> None:
        self.finished.append((trial, best))

    def note(self, message: str) -> None:
        self.notes.append(message)

    def model_changed(self, message: str) -> None:
        self.models.append(message)
