"""What a trial came to: a measurement, or a failure that is kept as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median, quantiles

from cptune.domain.depth import Depth
from cptune.domain.memory import Kept, MemorySplit


class OutcomeKind(StrEnum):
    """The word in the `outcome` column."""

    MEASURED = "measured"
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
    bytes / seconds is a lower bound of the link.
    """

    peer_rank: int
    axis: str
    sent_bytes: int
    received_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What one rank saw over the timed steps; peaks are over warm-up and timed steps together."""

    rank: int
    node: str
    pid: int
    gpu_uuid: str | None
    step_s: tuple[float, ...]
    tp_exposed_s: tuple[float, ...]
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
    memory: MemorySplit | None = None
    kept: Kept | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a candidate cost on real hardware.

    `step_s` is the median over steps of the slowest rank. Exposed seconds are per step: on each
    rank the median over steps of the time blocked in waits, then the mean over ranks. For pp it is
    the time in which a rank has no micro-batch to compute, the bubble and the transfers in it.
    """

    step_s: float
    step_p10_s: float
    step_p90_s: float
    slowest_rank: int
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int
    tp_exposed_s: float
    cp_exposed_s: float
    dp_exposed_s: float
    pp_exposed_s: float
    exposed_method: str
    imbalance: float
    kernel: str
    first_loss: float
    first_grad_norm: float
    ranks: tuple[RankReport, ...]
    memory: MemorySplit | None = None  # of the rank with the highest peak
    depth: Depth | None = None  # None: measured at full depth

    @property
    def exposed_s(self) -> float:
        """Exposed communication of all axes, seconds per step."""
        return self.tp_exposed_s + self.cp_exposed_s + self.dp_exposed_s + self.pp_exposed_s

    @property
    def exposed_share(self) -> float:
        """Exposed communication as a share of the step."""
        return self.exposed_s / self.step_s


def measurement_from(reports: tuple[RankReport, ...], *, tokens_per_step: int) -> Measurement:
    """Join the reports of all ranks of one trial.

    Raises:
        ValueError: when ranks report different numbers of steps.
    """
    counts = {len(report.step_s) for report in reports}
    if len(counts) != 1 or counts == {0}:
        raise ValueError(f"ranks timed {sorted(counts)} steps; wanted one number above 0")
    slowest = [max(times) for times in zip(*(report.step_s for report in reports), strict=True)]
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
        tp_exposed_s=fmean(median(report.tp_exposed_s) for report in reports),
        cp_exposed_s=fmean(median(report.cp_exposed_s) for report in reports),
        dp_exposed_s=fmean(median(report.dp_exposed_s) for report in reports),
        pp_exposed_s=fmean(median(report.pp_exposed_s) for report in reports),
        exposed_method="blocked-in-wait",
        imbalance=max(pairs) / (sum(pairs) / len(pairs)),
        kernel=reports[0].kernel,
        first_loss=reports[0].first_loss,
        first_grad_norm=reports[0].first_grad_norm,
        ranks=reports,
        memory=max(reports, key=lambda report: report.peak_allocated_bytes).memory,
    )
