"""What a probe asks of the ranks, and every measured edge beside what the topology promises."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cptune.domain.checks import MOST_RANKS, MOST_REPEATS, require_range
from cptune.domain.placement import Device


class Verdict(StrEnum):
    """What the measured rate says about the promised one."""

    KEPT = "kept"
    BELOW = "below"
    NOTHING_PROMISED = "nothing promised"


_MOST_MIB = 4096  # a process for each device holds two of a payload


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAsk:
    """The rings to measure, and how.

    Args:
        cp: Context-parallel degree.
        tp: Tensor-parallel degree.
        share: Of a promised rate, what an edge must reach when it is alone.
        payload_mib: What is sent over an edge at once.
        repeats: Payloads of an edge; the median counts.
    """

    cp: int
    tp: int = 1
    share: float = 0.5
    payload_mib: int = 16
    repeats: int = 5

    def check(self) -> None:
        """Refuse what cannot be measured; apart from creation, which the command line does.

        Raises:
            ValueError: naming the field, its value and what was wanted.
        """
        require_range(self, 1, MOST_RANKS, "tp", "cp")
        require_range(self, 1, MOST_REPEATS, "repeats")
        require_range(self, 1, _MOST_MIB, "payload_mib")
        if self.tp * self.cp < 2:
            raise ValueError("tp is 1, cp is 1; wanted 2 ranks or more: one alone has no edge")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}; wanted above 0, at most 1")

    @property
    def payload_bytes(self) -> int:
        """The payload in bytes."""
        return self.payload_mib << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEdge:
    """One step of a ring, from rank a to rank b, and what the topology says of it."""

    ring: int  # its number in the plan
    axis: str
    a_rank: int
    b_rank: int
    kind: str | None  # NVLINK, PIX ... NET between nodes; None where nobody told
    promised_bytes_per_s: float | None  # one direction; None: nothing is promised


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """Which device each rank holds, and the edges of all rings over them."""

    devices: tuple[Device, ...]  # by rank
    edges: tuple[PlannedEdge, ...]
    topology_hash: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeReading:
    """One edge as its receiving rank saw it: medians over the repeats, seconds of one payload.

    `idle_s` is with no other edge in use, `busy_s` with all edges of all rings in use at once.
    """

    a_rank: int
    b_rank: int
    payload_bytes: int
    idle_s: float
    busy_s: float

    @property
    def idle_bytes_per_s(self) -> float:
        """Rate with no other edge in use."""
        return self.payload_bytes / self.idle_s

    @property
    def busy_bytes_per_s(self) -> float:
        """Rate with all edges in use."""
        return self.payload_bytes / self.busy_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedEdge:
    """A planned edge, its two devices, and what was measured."""

    planned: PlannedEdge
    a: Device
    b: Device
    reading: EdgeReading

    @property
    def promised_share(self) -> float | None:
        """Measured rate, alone, over the promised one; None where nothing is promised."""
        promised = self.planned.promised_bytes_per_s
        return None if promised is None else self.reading.idle_bytes_per_s / promised

    def verdict(self, *, share: float) -> Verdict:
        """Whether the edge, alone, reaches this share of what is promised."""
        if self.promised_share is None:
            return Verdict.NOTHING_PROMISED
        return Verdict.KEPT if self.promised_share >= share else Verdict.BELOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """All edges of the planned rings, measured over one transport."""

    ask: ProbeAsk
    transport: str
    edges: tuple[ProbedEdge, ...]
    topology_hash: str
    notes: tuple[str, ...] = ()

    @property
    def below(self) -> tuple[ProbedEdge, ...]:
        """The edges that contradict the topology."""
        share = self.ask.share
        return tuple(edge for edge in self.edges if edge.verdict(share=share) is Verdict.BELOW)

    def rows(self) -> list[dict[str, object]]:
        """One row an edge; the columns of the stored table."""
        return [
            {
                "ring": edge.planned.ring,
                "axis": edge.planned.axis,
                "a_rank": edge.planned.a_rank,
                "b_rank": edge.planned.b_rank,
                "a_device": edge.a.name,
                "b_device": edge.b.name,
                "kind": edge.planned.kind,
                "bytes": edge.reading.payload_bytes,
                "seconds": edge.reading.idle_s,
                "bytes_per_s": edge.reading.idle_bytes_per_s,
                "busy_seconds": edge.reading.busy_s,
                "busy_bytes_per_s": edge.reading.busy_bytes_per_s,
                "promised_bytes_per_s": edge.planned.promised_bytes_per_s,
                "promised_share": edge.promised_share,
                "verdict": edge.verdict(share=self.ask.share).value,
            }
            for edge in self.edges
        ]

    def to_json(self) -> dict[str, object]:
        """The whole answer."""
        return {
            "transport": self.transport,
            "tp": self.ask.tp,
            "cp": self.ask.cp,
            "payload_bytes": self.ask.payload_bytes,
            "repeats": self.ask.repeats,
            "share": self.ask.share,
            "topology_hash": self.topology_hash,
            "edges": self.rows(),
            "notes": list(self.notes),
        }


def join_readings(
    plan: ProbePlan, readings: tuple[EdgeReading, ...], *, ask: ProbeAsk, transport: str
) -> Probe:
    """Put every reading beside the edge that it measures.

    Raises:
        KeyError: when an edge of the plan was not measured.
    """
    by_ends = {(reading.a_rank, reading.b_rank): reading for reading in readings}
    return Probe(
        ask=ask,
        transport=transport,
        topology_hash=plan.topology_hash,
        notes=plan.notes,
        edges=tuple(
            ProbedEdge(
                planned=edge,
                a=plan.devices[edge.a_rank],
                b=plan.devices[edge.b_rank],
                reading=by_ends[edge.a_rank, edge.b_rank],
            )
            for edge in plan.edges
        ),
    )
