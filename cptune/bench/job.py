"""What a rank is told, and the error it ends with when memory runs out; made without torch."""

from __future__ import annotations

from dataclasses import dataclass

from cptune.domain.candidate import Candidate
from cptune.domain.outcome import MemoryShortage
from cptune.domain.study import TraceKind
from cptune.domain.timing import StopRule
from cptune.domain.units import bytes_text
from cptune.domain.workload import ModelShape, Workload

#: After the first rank that failed, seconds for the one that caused it to say so.
GRACE_S = 1.5
#: What a rank's error says, in lower case, when it lost a peer: the peer knows why.
PEER_LOST = ("connection closed", "connection reset", "connection refused", "broken pipe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Where the ranks of one attempt meet: a prefix, never used twice, of one TCP store."""

    host: str
    port: int
    prefix: str
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob:
    """One rank's part of one trial. `capacity_bytes` bounds its live tensors.

    `device` is its kind, "cpu" or "cuda", and `gpu_uuid` the one that it must be.

    `lengths` are what the documents of a sequence are drawn from, under the document mask.
    """

    rank: int
    node: str
    gpu_uuid: str | None
    candidate: Candidate
    model: ModelShape
    workload: Workload
    capacity_bytes: int
    warmup_steps: int
    steps: int
    seed: int
    rendezvous: Rendezvous
    trace: TraceKind = TraceKind.OFF
    max_steps: int = 0
    ci_share: float = 0.0
    timed_s: float = 0.0
    lengths: tuple[int, ...] = ()
    device: str = "cpu"

    @property
    def stop_rule(self) -> StopRule:
        """When its timing ends."""
        return StopRule(
            warmup_steps=self.warmup_steps,
            steps=self.steps,
            max_steps=max(self.steps, self.max_steps),
            ci_share=self.ci_share,
            timed_s=self.timed_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeJob:
    """One rank's part of a probe: all edges of all rings, as (sending rank, receiving rank)."""

    rank: int
    world_size: int
    edges: tuple[tuple[int, int], ...]
    payload_bytes: int
    repeats: int
    rendezvous: Rendezvous


class DeviceError(Exception):
    """The device of a rank is not there, or cannot do what is asked."""


class OtherDeviceError(DeviceError):
    """The rank is on another device than it was placed on."""


class DirtyDeviceError(DeviceError):
    """A process that is none of ours has memory of the device; the message names both."""


class DeviceMemoryError(MemoryError):
    """The allocator of a GPU had no memory left.

    Args:
        message: Of one line.
        shortage: The allocation; None where torch does not tell its sizes.
    """

    def __init__(self, message: str, shortage: MemoryShortage | None) -> None:
        super().__init__(message, shortage)
        self.message, self.shortage = message, shortage

    def __str__(self) -> str:
        return self.message


class MemoryBudgetExceededError(MemoryError):
    """An allocation that the byte budget has no room for; its tensor is freed as this is raised.

    Args:
        asked_bytes: Size of the allocation.
        free_bytes: What the budget had left.
        capacity_bytes: The whole budget.
        phase: Where in the step it happened.
    """

    def __init__(self, asked_bytes: int, free_bytes: int, capacity_bytes: int, phase: str) -> None:
        super().__init__(asked_bytes, free_bytes, capacity_bytes, phase)
        self.asked_bytes = asked_bytes
        self.free_bytes = free_bytes
        self.capacity_bytes = capacity_bytes
        self.phase = phase

    def __str__(self) -> str:
        return (
            f"out of memory in {self.phase}: asked {bytes_text(self.asked_bytes)}, "
            f"{bytes_text(self.free_bytes)} of {bytes_text(self.capacity_bytes)} free"
        )
