"""Seconds on the links that a group of ranks spans: NVLink inside an island, the network beyond."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import log, log2

from cptune.domain.layout import Axis, ParallelLayout
from cptune.predict.case import Case, Hops


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where one process group lies.

    Ranks are numbered tp-cp-dp-pp and placed in that order, so a group is its size and stride.
    `bus_bytes_per_s` is what each rank of a collective sees; `edge_bytes_per_s` is the slowest
    edge between two ranks of it.
    """

    size: int
    islands: int
    bus_bytes_per_s: float
    edge_bytes_per_s: float

    @property
    def crosses(self) -> bool:
        """Does it leave its NVLink island?"""
        return self.islands > 1


def span_of(case: Case, *, size: int, stride: int) -> Span:
    """The span of a group of `size` ranks, `stride` apart."""
    machine, fixed = case.machine, case.constants
    local = machine.island_bytes_per_s * fixed.nvlink_share
    together = max(1, min(size, machine.island_size // stride))
    if together >= size:
        return Span(size=size, islands=1, bus_bytes_per_s=local, edge_bytes_per_s=local)
    islands = -(-size // together)
    wire = machine.network_bytes_per_s * fixed.network_share
    bus = together * wire
    return Span(
        size=size,
        islands=islands,
        bus_bytes_per_s=min(local, bus) if together > 1 else bus,
        edge_bytes_per_s=min(local, wire) if together > 1 else wire,
    )


def axis_span(case: Case, layout: ParallelLayout, axis: Axis) -> Span:
    """The span of one mesh axis; that of dp is the group that shards states, dp x cp."""
    if axis is Axis.TP:
        return span_of(case, size=layout.tp, stride=1)
    if axis is Axis.CP:
        return span_of(case, size=layout.cp, stride=layout.tp)
    if axis is Axis.DP:
        return span_of(case, size=layout.cp * layout.dp, stride=layout.tp)
    return span_of(case, size=layout.pp, stride=layout.tp * layout.cp * layout.dp)


def gather_seconds(case: Case, span: Span, whole_bytes: float, *, pieces: float = 1) -> float:
    """An all-gather or a reduce-scatter of a buffer of that size, cut into pieces."""
    if span.size == 1:
        return 0.0
    start = latency_seconds(case, span, case.machine.gather_hops)
    return pieces * start + _volume_seconds(span, whole_bytes)


def reduce_seconds(case: Case, span: Span, whole_bytes: float, *, pieces: float = 1) -> float:
    """An all-reduce: the volume of a scatter and a gather, started once a piece."""
    if span.size == 1:
        return 0.0
    start = latency_seconds(case, span, case.machine.reduce_hops)
    return pieces * start + 2 * _volume_seconds(span, whole_bytes)


def latency_seconds(case: Case, span: Span, measured: Hops) -> float:
    """What a collective takes before volume counts."""
    fixed = case.constants
    if not span.crosses:
        return fixed.collective_latency_s
    hops = log2(span.islands) * fixed.hop_latency_s
    return fixed.collective_latency_s + hops + (span.size - 1) * hop_seconds(measured, span.size)


def hop_seconds(measured: Hops, ranks: int) -> float:
    """What each rank adds: between two measured sizes by their logarithm, beyond them the last."""
    if not measured:
        return 0.0
    for (small, near), (large, far) in pairwise(measured):
        if small <= ranks <= large:
            return near + (far - near) * log(ranks / small) / log(large / small)
    return measured[0][1] if ranks < measured[0][0] else measured[-1][1]


def _volume_seconds(span: Span, whole_bytes: float) -> float:
    return (span.size - 1) / span.size * whole_bytes / span.bus_bytes_per_s


def send_seconds(case: Case, span: Span, sent_bytes: float) -> float:
    """One exchange with a peer over the slowest edge of the span."""
    if span.size == 1:
        return 0.0
    return case.constants.p2p_latency_s + sent_bytes / span.edge_bytes_per_s
