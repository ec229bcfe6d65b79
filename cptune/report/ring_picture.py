"""Where a recipe's ranks stand in the topology: its context groups drawn, its edges promised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

from cptune.domain.devices import DeviceKind
from cptune.domain.layout import Axis, ParallelLayout
from cptune.domain.placement import Placement
from topology.gpu import Gpu
from topology.graph import Device, Graph
from topology.nouns import Link, Node, Topology
from topology.picture import COLOURS, render_svg
from topology.picture_rings import draw_rings
from topology.ring_layout import build_ring
from topology.ring_plan import RingPlan
from topology.svg import page

_NOT_TOLD = "?"


class Wires:
    """What joins the devices of a placement.

    A CPU process stands where the graph looks for a GPU; how the processes of one host reach each
    other nobody told.

    Args:
        topology: What ranks were placed on; None: lost, and nothing is promised.
        placement: Of the recipe.
    """

    def __init__(self, topology: Topology | None, placement: Placement) -> None:
        self.devices = {
            place.rank: Device(node=place.device.node, gpu=place.device.index)
            for place in placement.ranks
        }
        self.on_gpus = all(place.device.kind == DeviceKind.CUDA for place in placement.ranks)
        self.topology = topology
        if topology is not None and not self.on_gpus:
            self.topology = _with_slots(topology, self.devices)
        self.graph = None if self.topology is None else Graph(self.topology)

    def knows(self, rank: int) -> bool:
        """Whether the topology has the device of a rank."""
        device = self.devices[rank]
        node = None if self.graph is None else self.graph.nodes.get(device.node)
        return node is not None and any(gpu.index == device.gpu for gpu in node.gpus)

    def promise(self, a_rank: int, b_rank: int) -> tuple[str, float | None]:
        """Kind and bytes per second of the edge between two ranks; ? and None where nobody told."""
        if self.graph is None or not (self.knows(a_rank) and self.knows(b_rank)):
            return _NOT_TOLD, None
        edge = self.graph.edge(self.devices[a_rank], self.devices[b_rank])
        return edge.label, edge.bytes_per_s


def ring_svg(layout: ParallelLayout, wires: Wires) -> str:
    """The context groups as they were placed, as SVG; empty where there is nothing to draw."""
    known = all(map(wires.knows, wires.devices))
    if layout.cp == 1 or wires.topology is None or wires.graph is None or not known:
        return ""
    graph = wires.graph
    groups = [[wires.devices[rank] for rank in ranks] for ranks in layout.groups(Axis.CP)]
    plan = RingPlan(
        tp=layout.tp,
        cp=layout.cp,
        rings=tuple(build_ring(graph, group) for group in groups),
        groups=(),
        bound_bytes_per_s=None,
        achieved_bytes_per_s=None,
    )
    if wires.on_gpus:
        return render_svg(wires.topology, plan)
    colours = {kind: fill for kind, (fill, _) in COLOURS.items()}
    short = len(wires.topology.nodes) == 1
    blocks = draw_rings(plan, colours=colours, short=short, noun="CPU processes")
    return page(blocks, title="Context groups", description=f"Context groups, cp {layout.cp}.")


def _with_slots(topology: Topology, devices: Mapping[int, Device]) -> Topology:
    """The nodes with a slot for each CPU process, whose links nobody told."""
    slots = {
        node.name: sorted({one.gpu for one in devices.values() if one.node == node.name})
        for node in topology.nodes
    }
    nodes = tuple(_slotted(node, slots[node.name]) for node in topology.nodes)
    return replace(topology, nodes=nodes)


def _slotted(node: Node, indices: list[int]) -> Node:
    return replace(
        node,
        gpus=tuple(Gpu(index=index) for index in indices),
        gpu_links=tuple(Link(a=a, b=b) for a, b in combinations(indices, 2)),
        gpu_nics=(),
    )
