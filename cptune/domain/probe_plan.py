"""From a topology to the ranks of a probe: the planned rings, or the same over CPU processes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from cptune.domain.layout import Axis
from cptune.domain.placement import Device
from cptune.domain.probe import PlannedEdge, ProbePlan
from topology import graph
from topology.gpu import Gpu
from topology.nouns import Link, Node, Topology
from topology.rings import plan_rings

_ON_CPUS = "no node has a GPU: CPU processes are measured in their place"


def plan_probe(topology: Topology, *, tp: int, cp: int) -> ProbePlan:
    """Put a rank on every device of the planned rings, in Megatron's order, tp fastest.

    Where no node has a GPU, the tp x cp ranks are CPU processes: groups of `tp` spread evenly over
    the nodes, in the order that the ring planner gives the nodes.

    Raises:
        TopologyError: when there are too few devices for one set of rings.
    """
    on_cpus = not any(node.gpus for node in topology.nodes)
    plan = plan_rings(_with_slots(topology, tp=tp, cp=cp) if on_cpus else topology, tp=tp, cp=cp)
    uuids = {(node.name, gpu.index): gpu.uuid for node in topology.nodes for gpu in node.gpus}
    places = [device for group in plan.groups for station in group for device in station]
    ranks = {device: rank for rank, device in enumerate(places)}
    return ProbePlan(
        devices=tuple(
            Device(
                node=device.node,
                kind="cpu" if on_cpus else "cuda",
                index=device.gpu,
                uuid=uuids.get((device.node, device.gpu)),
            )
            for device in places
        ),
        edges=tuple(
            _edge(edge, ranks=ranks, ring=number, axis=Axis.CP if cp > 1 else Axis.TP)
            for number, ring in enumerate(plan.rings)
            for edge in ring.edges
        ),
        topology_hash=topology.content_hash,
        notes=(_ON_CPUS,) if on_cpus else plan.notes,
    )


def _edge(
    edge: graph.DeviceEdge, *, ranks: dict[graph.Device, int], ring: int, axis: Axis
) -> PlannedEdge:
    return PlannedEdge(
        ring=ring,
        axis=axis.value,
        a_rank=ranks[edge.a],
        b_rank=ranks[edge.b],
        kind=edge.kind,
        promised_bytes_per_s=edge.bytes_per_s,
    )


def _with_slots(topology: Topology, *, tp: int, cp: int) -> Topology:
    """The same nodes with a slot for each CPU rank where the planner looks for a device.

    Nobody told how the processes of a node reach each other, so these links stay unknown.
    """
    count = len(topology.nodes)
    return replace(
        topology,
        nodes=tuple(
            _slotted(node, slots=tp * (cp // count + (place < cp % count)))
            for place, node in enumerate(topology.nodes)
        ),
    )


def _slotted(node: Node, *, slots: int) -> Node:
    return replace(
        node,
        gpus=tuple(Gpu(index=index) for index in range(slots)),
        gpu_links=tuple(Link(a=a, b=b) for a, b in combinations(range(slots), 2)),
    )
