"""What no set of rings can beat, and what these rings reach: rates through the smallest cuts.

A one-way ring leaves every part of the cluster that it crosses at least once, so R rings across a
part get at most its out-capacity / R each. Parts are devices, NVLink islands, nodes and subtrees
of the network; one whose capacity nobody told is passed over.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from topology.graph import NETWORK, Device, DeviceEdge, Graph
from topology.nouns import Link, LinkKind

_Part: TypeAlias = tuple[str, Device | str]  # (sort of part, which)


def limits_bytes_per_s(
    graph: Graph, rings: Sequence[Sequence[DeviceEdge]]
) -> tuple[float | None, float | None]:
    """What rings over these devices can get at most, and what these get, all moving at once.

    Args:
        graph: The cluster.
        rings: The edges of each ring.

    Returns:
        (bound, achieved), each the rate of the slowest ring. The bound is None where no capacity
        is known, the other where the rate of an edge is not.
    """
    spanning = any(edge.a.node != edge.b.node for ring in rings for edge in ring)
    crossing: Counter[_Part] = Counter()  # rings that have devices in the part and outside
    leaving: Counter[_Part] = Counter()  # edges out of the part
    for ring in rings:
        parts = {edge.a: _parts(graph, edge.a) for edge in ring}
        inside = Counter(part for found in parts.values() for part in found)
        crossing.update(part for part, count in inside.items() if count < len(ring))
        for edge in ring:
            there = parts[edge.b]
            leaving.update(part for part in parts[edge.a] if part not in there)
    capacities = {part: _capacity(graph, part, spanning=spanning) for part in crossing}
    known = {part: rate for part, rate in capacities.items() if rate is not None}
    bound = min((rate / crossing[part] for part, rate in known.items()), default=None)
    achieved = _slowest_share(graph, [edge for ring in rings for edge in ring])
    if achieved is not None:
        achieved = min([achieved, *(rate / leaving[part] for part, rate in known.items())])
    return bound, achieved


def _slowest_share(graph: Graph, edges: Sequence[DeviceEdge]) -> float | None:
    """Edges between nodes share the NIC they leave by and the one they come in by."""
    network = [edge for edge in edges if edge.kind == NETWORK]
    out = Counter((edge.a.node, graph.nic(edge.a)) for edge in network)
    into = Counter((edge.b.node, graph.nic(edge.b)) for edge in network)

    def share(edge: DeviceEdge) -> int:
        if edge.kind != NETWORK:
            return 1
        return max(out[edge.a.node, graph.nic(edge.a)], into[edge.b.node, graph.nic(edge.b)])

    shares = [None if e.bytes_per_s is None else e.bytes_per_s / share(e) for e in edges]
    known = [rate for rate in shares if rate is not None]
    return min(known) if known and len(known) == len(edges) else None


def _parts(graph: Graph, device: Device) -> list[_Part]:
    node = device.node
    island = Device(node=node, gpu=graph.island_in_node(device))
    tiers = [tier for tier in graph.tree.paths[node] if tier != graph.tree.domains.get(node)]
    named: list[_Part] = [("tier", tier) for tier in tiers]
    return [("device", device), ("island", island), ("node", node), *named]


def _capacity(graph: Graph, part: _Part, *, spanning: bool) -> float | None:
    match part:
        case "device", Device() as device:
            return _sum([_port(graph, device), *_ways_out(graph, [device], spanning=spanning)])
        case "island", Device() as island:
            return _island_capacity(graph, island, spanning=spanning)
        case "node", str() as node:
            return _node_capacity(graph, node)
        case _, name:
            return _told_capacity(graph, str(name))


def _port(graph: Graph, device: Device) -> float | None:
    """What a device sends inside its node: over NVLink where it has any, else over its PCIe port.

    Behind an NVSwitch, and on PCIe, all peers share one port; a direct mesh has a link for each.
    """
    links = graph.links_of(device)
    if not links:
        return 0.0
    nvlinks = [link.bytes_per_s for link in links if link.kind is LinkKind.NVLINK]
    if nvlinks and not graph.is_switched(device):
        return _sum(nvlinks)
    return _greatest(nvlinks or [link.bytes_per_s for link in links])


def _island_capacity(graph: Graph, island: Device, *, spanning: bool) -> float | None:
    node = graph.nodes[island.node]
    devices = [Device(node=node.name, gpu=gpu.index) for gpu in node.gpus]
    members = [device for device in devices if graph.island_in_node(device) == island.gpu]
    if graph.domain(island) is not None:
        return None  # its NVLinks lead out of the node too
    ports = [_greatest(_leading_out(graph, device)) for device in members]
    return _sum([*ports, *_ways_out(graph, members, spanning=spanning)])


def _leading_out(graph: Graph, device: Device) -> list[float | None]:
    """Rates of the links to other islands of the node: those that are no NVLinks."""
    own = graph.island_in_node(device)

    def peer(link: Link) -> Device:
        return Device(node=device.node, gpu=link.b if link.a == device.gpu else link.a)

    links = graph.links_of(device)
    return [link.bytes_per_s for link in links if graph.island_in_node(peer(link)) != own]


def _ways_out(graph: Graph, devices: Sequence[Device], *, spanning: bool) -> list[float | None]:
    """Rates of the NICs that the devices use, each once; none where rings stay in their nodes."""
    if not spanning:
        return []
    if graph.domain(devices[0]) is not None:
        return [None]  # NVLinks lead out of the node too, at a rate nobody told
    nics = {graph.nic(device) for device in devices}
    return [None if nic is None else graph.nic_bytes_per_s(devices[0].node, nic) for nic in nics]


def _node_capacity(graph: Graph, node: str) -> float | None:
    devices = [Device(node=node, gpu=gpu.index) for gpu in graph.nodes[node].gpus]
    if any(graph.domain(device) is not None for device in devices):
        return None
    near = {nic for device in devices for nic in graph.nearest_nics(device)}
    names = near or {nic.name for nic in graph.nodes[node].nics}
    nics = _sum([graph.nic_bytes_per_s(node, nic) for nic in names]) if names else None
    known = [rate for rate in (nics, _told_capacity(graph, node)) if rate is not None]
    return min(known, default=None)


def _told_capacity(graph: Graph, name: str) -> float | None:
    """The sum of what was told of the edges out of a node, or of a tier with all below it."""
    rates = graph.tree.rates_out.get(name)
    return None if rates is None else _sum(rates)


def _sum(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if len(known) == len(rates) else None


def _greatest(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return max(known) if known and len(known) == len(rates) else None
