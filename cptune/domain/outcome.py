"""What a trial came to: a measurement, or a failure that is kept as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median, quantiles
from typing import Any

from cptune.domain import timing
from cptune.domain.checks import LONGEST_STEP_S, MOST_BYTES, SHORTEST_STEP_S, require_range
from cptune.domain.depth import Depth
from cptune.domain.layout import Axis
from cptune.domain.memory import Kept, MemorySplit
from cptune.domain.timeline import (
    ABLATION,
    BLOCKED_IN_WAIT,
    INTERVAL_UNION,
    Exposed,
    RankTrace,
    of_whole_axes,
)


class OutcomeKind(StrEnum):
    """The word in the `outcome` column."""

    MEASURED = "measured"
    PREDICTED = "predicted"  # nothing ran: a launcher without hardware answered
    REPLAYED = "replayed"  # nothing ran: a stored table answered
    INFEASIBLE = "infeasible"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    COMMUNICATION = "communication"
    NODE_LOST = "node_lost"
    WRONG_RESULT = "wrong_result"
    NOT_APPLIED = "not_applied"
    DIRTY_DEVICE = "dirty_device"
    CRASHED = "crashed"
    STOPPED = "stopped"


#: Failures that say nothing about the candidate: tried once more.
RETRIED = frozenset({OutcomeKind.NODE_LOST, OutcomeKind.COMMUNICATION})


class OomKind(StrEnum):
    """Why memory ran out: one tensor too many, no hole large enough, or no device large enough."""

    TENSOR = "tensor"
    FRAGMENTATION = "fragmentation"
    CAPACITY = "capacity"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShortage:
    """The allocation that failed."""

    kind: OomKind
    asked_bytes: int
    free_bytes: int

    @property
    def short_bytes(self) -> int:
        """What was missing."""
        return self.asked_bytes - self.free_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A trial that gave no measurement, and why."""

    kind: OutcomeKind
    message: str
    rank: int | None = None
    node: str | None = None
    shortage: MemoryShortage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeReport:
    """What one rank sent to a peer over one axis, per step.

    `seconds` runs from the post of the exchanges to the return of their waits, so that
    bytes / seconds is a lower bound of the link. `idle_s` and `busy_s` are the same seconds of one
    pass of attention with nothing computed, alone on the links and with all other groups at the
    same time; None: not tried. `seconds` is None where the host's clock does not see a transfer.
    """

    peer_rank: int
    axis: str
    sent_bytes: int
    received_bytes: int
    seconds: float | None
    idle_s: float | None = None
    busy_s: float | None = None

    @property
    def contention(self) -> float | None:
        """How many times longer its transfers take beside the neighbours'; None: unknown."""
        return self.busy_s / self.idle_s if self.busy_s and self.idle_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What one rank saw over the timed steps; peaks are over warm-up and timed steps together.

    `*_exposed_s` are the seconds blocked in waits of each timed step; `trace` is of another step.
    `warmup_s` are the steps before, which count for nothing else. None among `tp_exposed_s`: it
    could not be seen in that step. `used_bytes` is what the driver of a GPU says that the process
    holds after the timed steps, with its context and the buffers of NCCL.
    """

    rank: int
    node: str
    pid: int
    gpu_uuid: str | None
    step_s: tuple[float, ...]
    tp_exposed_s: tuple[float | None, ...]
    cp_exposed_s: tuple[float, ...]
    dp_exposed_s: tuple[float, ...]
    pp_exposed_s: tuple[float, ...]
    forward_peak_bytes: int
    backward_peak_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    attended_pairs: int
    planned_sent_bytes: int
    sent_bytes: int
    kernel: str
    first_loss: float
    first_grad_norm: float
    sample_hash: str
    edges: tuple[EdgeReport, ...] = ()
    trace: RankTrace | None = None
    warmup_s: tuple[float, ...] = ()
    memory: MemorySplit | None = None
    kept: Kept | None = None
    used_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a candidate cost on real hardware.

    Of a simulated trial it is what was predicted or stored; `ranks` and what they see are missing.

    `step_s` is the median over steps of the slowest rank, `step_ci_share` half its 95% interval
    over itself (None: too few steps), and `noisy` says that this is more than was wanted.

    Exposed seconds are per step and the mean over ranks. By `interval-union`, and on a GPU by
    `device-intervals`, they are what no compute hid of the transfers of the one traced step, which
    took `traced_step_s`; by `blocked-in-wait`, where none was, they equal the blocked seconds.

    Blocked seconds are on each rank the median over the timed steps of the time in waits, late
    peers included. For pp it is the time in which a rank has no micro-batch to compute: the bubble,
    and the transfers in it.
    """

    step_s: float
    step_p10_s: float
    step_p90_s: float
    slowest_rank: int | None
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    forward_peak_bytes: int | None
    backward_peak_bytes: int | None
    tp_exposed_s: float
    cp_exposed_s: float
    dp_exposed_s: float
    pp_exposed_s: float
    exposed_method: str
    imbalance: float | None
    kernel: str | None
    first_loss: float | None
    first_grad_norm: float | None
    ranks: tuple[RankReport, ...]
    cp_comm_s: float | None = None
    traced_step_s: float | None = None
    tp_blocked_s: float | None = None
    cp_blocked_s: float | None = None
    dp_blocked_s: float | None = None
    pp_blocked_s: float | None = None
    step_ci_share: float | None = None
    noisy: bool = False
    memory: MemorySplit | None = None  # of the rank with the highest peak
    depth: Depth | None = None  # None: measured at full depth

    def __post_init__(self) -> None:
        require_range(self, SHORTEST_STEP_S, LONGEST_STEP_S, "step_s")
        require_range(self, 0, MOST_BYTES, "peak_allocated_bytes")

    @property
    def exposed_s(self) -> float:
        """Exposed communication of all axes, seconds per step."""
        return self.tp_exposed_s + self.cp_exposed_s + self.dp_exposed_s + self.pp_exposed_s

    @property
    def exposures(self) -> list[Exposed]:
        """Exposed communication of each axis that moved anything, by both methods.

        Empty where no step was traced.
        """
        traces = [report.trace for report in self.ranks if report.trace is not None]
        return of_whole_axes(traces) if len(traces) == len(self.ranks) else []

    @property
    def lacks_ablation(self) -> bool:
        """Whether its exposed communication is known by the intervals of a step alone."""
        rows = [row for one in self.ranks if one.trace is not None for row in one.trace.exposed]
        return bool(self.exposures) and all(row.method != ABLATION for row in rows)

    @property
    def exposed_share(self) -> float:
        """Exposed communication as a share of the step that it was seen in."""
        return self.exposed_s / (self.traced_step_s or self.step_s)


def slowest_steps(reports: Iterable[RankReport]) -> list[float]:
    """Each timed step, as long as its slowest rank took."""
    return [max(times) for times in zip(*(report.step_s for report in reports), strict=True)]


def measurement_from(
    reports: tuple[RankReport, ...], *, tokens_per_step: int, ci_share: float = timing.CI_SHARE
) -> Measurement:
    """Join the reports of all ranks of one trial; above `ci_share` its timing is noisy.

    Raises:
        ValueError: when ranks report different numbers of steps.
    """
    counts = {len(report.step_s) for report in reports}
    if len(counts) != 1 or counts == {0}:
        raise ValueError(f"ranks timed {sorted(counts)} steps; wanted one number above 0")
    slowest = slowest_steps(reports)
    step_s = median(slowest)
    deciles = quantiles(slowest, n=10, method="inclusive") if len(slowest) > 1 else [step_s] * 9
    pairs = [report.attended_pairs for report in reports]
    return Measurement(
        step_s=step_s,
        step_p10_s=deciles[0],
        step_p90_s=deciles[8],
        slowest_rank=max(reports, key=lambda report: median(report.step_s)).rank,
        tokens_per_s=tokens_per_step / step_s,
        tokens_per_s_per_gpu=tokens_per_step / step_s / len(reports),
        peak_allocated_bytes=max(report.peak_allocated_bytes for report in reports),
        peak_reserved_bytes=max(report.peak_reserved_bytes for report in reports),
        forward_peak_bytes=max(report.forward_peak_bytes for report in reports),
        backward_peak_bytes=max(report.backward_peak_bytes for report in reports),
        **_exposed(reports),
        imbalance=max(pairs) / (sum(pairs) / len(pairs)),
        kernel=reports[0].kernel,
        first_loss=reports[0].first_loss,
        first_grad_norm=reports[0].first_grad_norm,
        ranks=reports,
        step_ci_share=timing.ci_share(slowest),
        noisy=timing.is_noisy(slowest, wanted=ci_share),
        memory=max(reports, key=lambda report: report.peak_allocated_bytes).memory,
    )


def _exposed(reports: tuple[RankReport, ...]) -> dict[str, Any]:
    """The exposed and blocked seconds of a measurement."""
    blocked = {axis: _blocked(reports, axis) for axis in (one.value for one in Axis)}
    found: dict[str, Any] = {f"{axis}_blocked_s": value for axis, value in blocked.items()}
    traces = [report.trace for report in reports if report.trace is not None]
    if len(traces) < len(reports):
        if None in blocked.values():
            raise ValueError("no step was traced, and waits could not be seen; wanted a trace")
        return found | {
            "exposed_method": BLOCKED_IN_WAIT,
            **{f"{axis}_exposed_s": value for axis, value in blocked.items()},
        }
    return found | {
        **{f"{axis}_exposed_s": _mean(traces, axis, "exposed_s") for axis in blocked},
        "exposed_method": _method(traces),
        "cp_comm_s": _mean(traces, Axis.CP.value, "communication_s"),
        "traced_step_s": max(trace.step_s for trace in traces),
    }


def _blocked(reports: tuple[RankReport, ...], axis: str) -> float | None:
    """Seconds in waits per step, the mean over ranks; None where one of them could not see it."""
    seen = [getattr(report, f"{axis}_exposed_s") for report in reports]
    if any(value is None for steps in seen for value in steps):
        return None
    return fmean(median(steps) for steps in seen)


def _method(traces: list[RankTrace]) -> str:
    rows = (trace.whole(Axis.CP.value) for trace in traces)
    return next((row.method for row in rows if row is not None), INTERVAL_UNION)


def _mean(traces: list[RankTrace], axis: str, name: str) -> float:
    rows = (trace.whole(axis) for trace in traces)
    return fmean(getattr(row, name) if row else 0.0 for row in rows)
