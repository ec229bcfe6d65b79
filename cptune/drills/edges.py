"""Topology: a ring goes over a hop that is far slower than the topology promises."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from cptune.domain.probe import EdgeReading, Probe, ProbeAsk, ProbePlan, join_readings
from cptune.domain.probe_plan import plan_probe
from cptune.drills.faults import slow_edge
from cptune.drills.finding import Finding
from cptune.drills.ranks import RANKS, Ranks
from cptune.report.probe import below_lines
from topology.network import Edge, Network
from topology.nouns import Node, Topology

#: Between two nodes: 400 Mbit/s, which memory of one machine exceeds many times, and a tenth of it.
_PROMISED_BYTES_PER_S = 50e6
_SLOW_BYTES_PER_S = 5e6
_ASK = ProbeAsk(cp=RANKS, payload_mib=1, repeats=2)
_TRANSPORT = "gloo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Every edge of the ring, as it is and with one of them slow."""

    honest: tuple[EdgeReading, ...]
    slow: tuple[EdgeReading, ...]


def provoke(ranks: Ranks) -> Readings:
    """Measure the ring, then once more with its first hop between the nodes slow."""
    plan, hop = _plan(), _hop()
    honest = ranks.probe(plan, _ASK)
    fault = partial(slow_edge, a_rank=hop[0], b_rank=hop[1], bytes_per_s=_SLOW_BYTES_PER_S)
    with ranks.planted(fault):
        slow = ranks.probe(plan, _ASK)
    return Readings(honest=honest, slow=slow)


def judge(seen: Readings) -> Finding:
    """The probe must name that hop, and no other."""
    slow, honest = _probe(seen.slow), _probe(seen.honest)
    below = [(edge.planned.a_rank, edge.planned.b_rank) for edge in slow.below]
    rates = {
        name: edge.reading.idle_bytes_per_s
        for name, probe in (("slow", slow), ("honest", honest))
        for edge in probe.edges
        if (edge.planned.a_rank, edge.planned.b_rank) == _hop()
    }
    return Finding(
        refused=below == [_hop()],
        said="; ".join(below_lines(slow)) or "every edge keeps its promise",
        controls={"without the fault every edge keeps its promise": not honest.below},
        figures={
            "promised_bytes_per_s": _PROMISED_BYTES_PER_S,
            "slow_bytes_per_s": rates["slow"],
            "honest_bytes_per_s": rates["honest"],
        },
    )


def _plan() -> ProbePlan:
    """A ring over two nodes of CPU processes and one link, whose rate is promised."""
    link = Edge(a="east", b="west", bytes_per_s=_PROMISED_BYTES_PER_S)
    nodes = (Node(name="east"), Node(name="west"))
    topology = Topology(source="drill", nodes=nodes, network=Network(edges=(link,)))
    return plan_probe(topology, tp=_ASK.tp, cp=_ASK.cp)


def _hop() -> tuple[int, int]:
    """The first edge of the ring that leaves a node, by its ranks."""
    edge = next(one for one in _plan().edges if one.promised_bytes_per_s is not None)
    return edge.a_rank, edge.b_rank


def _probe(readings: tuple[EdgeReading, ...]) -> Probe:
    return join_readings(_plan(), readings, ask=_ASK, transport=_TRANSPORT)
