"""The cluster as a graph of GPUs: what joins any two of them, and which of two edges is better.

A rate that nobody told stays None; such an edge is ordered by the planning weight of its class.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from topology.network_tree import NetworkTree
from topology.nouns import Link, LinkKind, Node, Topology

NETWORK = "NET"  # the kind of an edge between nodes, beside the words of LinkKind
_KINDS = (*(kind.value for kind in LinkKind), NETWORK)  # nearest first
_DISTANCES: Mapping[str, int] = {kind: place for place, kind in enumerate(_KINDS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU of one node."""

    node: str
    gpu: int  # its index in the node

    def __str__(self) -> str:
        return f"{self.node}:{self.gpu}"

    def to_json(self) -> dict[str, object]:
        """The device as a JSON object."""
        return {"node": self.node, "gpu": self.gpu}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEdge:
    """What joins device a to device b, in this direction."""

    a: Device
    b: Device
    kind: str | None = None  # a word of LinkKind, NET between nodes, None where nobody told
    lanes: int | None = None
    bytes_per_s: float | None = None  # one direction; None where nobody told

    @property
    def planned(self) -> bool:
        """Is the order of this edge a planning weight, because its rate is not known?"""
        return self.bytes_per_s is None

    @property
    def worth(self) -> tuple[float, int]:
        """The larger the better, totally ordered: rate or planning weight, then nearness."""
        return worth(self.kind, self.lanes, self.bytes_per_s)

    @property
    def label(self) -> str:
        """The kind for people: NV18, PIX, NET."""
        if self.kind == LinkKind.NVLINK and self.lanes is not None:
            return f"NV{self.lanes}"
        return self.kind or "?"

    def to_json(self) -> dict[str, object]:
        """The edge as a JSON object."""
        ends = {"a": self.a.to_json(), "b": self.b.to_json()}
        return {**ends, "kind": self.kind, "bytes_per_s": self.bytes_per_s}


def worth(kind: str | None, lanes: int | None, bytes_per_s: float | None) -> tuple[float, int]:
    """What an edge counts for when edges are ordered; unknown in every way is worst."""
    nearness = -len(_KINDS) if kind is None else -_DISTANCES[kind]
    if bytes_per_s is not None:
        return bytes_per_s, nearness
    weights, _ = _planning()
    weight = weights[kind] * (lanes or 1) if kind is not None else 0.0
    return weight, nearness


@dataclass(frozen=True, slots=True)
class _Wires:
    """One node, looked up by index and by name."""

    links: Mapping[tuple[int, int], Link]
    links_of: Mapping[int, Sequence[Link]]
    islands: Mapping[int, int]  # GPU -> smallest GPU of its island
    nearest_nics: Mapping[int, tuple[str, ...]]
    nics: Mapping[int, str]  # GPU -> the NIC it uses
    nic_rates: Mapping[str, float | None]
    most_lanes: Mapping[int, int]  # of one pair, for GPUs with NVLinks; 1 where not told


class Graph:
    """The devices of a topology and the edges between them, all pairs, made when asked for."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.nodes: Mapping[str, Node] = {node.name: node for node in topology.nodes}
        self._wires: dict[str, _Wires] = {}

    @cached_property
    def tree(self) -> NetworkTree:
        """The network as a tree, in the order of the topology's nodes."""
        return NetworkTree.of(self.topology)

    def edge(self, a: Device, b: Device) -> DeviceEdge:
        """What joins two different devices."""
        if a.node != b.node:
            return self._edge_between_nodes(a, b)
        link = self._of(a.node).links[min(a.gpu, b.gpu), max(a.gpu, b.gpu)]
        kind = None if link.kind is None else link.kind.value
        return DeviceEdge(a=a, b=b, kind=kind, lanes=link.lanes, bytes_per_s=link.bytes_per_s)

    def island(self, device: Device) -> tuple[str, int]:
        """What the devices of one NVLink island share; in an NVLink domain across nodes."""
        if (domain := self.domain(device)) is not None:
            return domain, -1
        return device.node, self.island_in_node(device)

    def island_in_node(self, device: Device) -> int:
        """The first GPU of the device's NVLink island inside its node."""
        return self._of(device.node).islands[device.gpu]

    def domain(self, device: Device) -> str | None:
        """The NVLink domain across nodes that the device can reach, if there is one."""
        domain = self.tree.domains.get(device.node)
        alone = len(self.nodes[device.node].gpus) == 1
        return domain if domain is not None and (alone or self.has_nvlink(device)) else None

    def is_switched(self, device: Device) -> bool:
        """Does the device share one NVLink port among its peers, rather than own a link to each?

        `NV#` hides the switch. More links over all peers than a GPU has can only be a switch; two
        visible GPUs of a switched box stay undecided, which is harmless: one pair, one link.
        """
        _, most_links = _planning()
        lanes = [link.lanes or 0 for link in self.links_of(device) if _is_nvlink(link)]
        return sum(lanes) > most_links

    def links_of(self, device: Device) -> Sequence[Link]:
        """The links of a device inside its node."""
        return self._of(device.node).links_of[device.gpu]

    def has_nvlink(self, device: Device) -> bool:
        """Does any NVLink of the device lead to another GPU of its node?"""
        return device.gpu in self._of(device.node).most_lanes

    def nearest_nics(self, device: Device) -> tuple[str, ...]:
        """The NICs of the device's rail; none where nobody told."""
        return self._of(device.node).nearest_nics[device.gpu]

    def nic(self, device: Device) -> str | None:
        """The NIC the device uses: GPUs with the same nearest ones take them in turn."""
        return self._of(device.node).nics.get(device.gpu)

    def nic_bytes_per_s(self, node: str, nic: str) -> float | None:
        """The rate of a NIC, one direction."""
        return self._of(node).nic_rates[nic]

    def distance(self, node_a: str, node_b: str) -> int:
        """Tiers to climb from node_a until node_b is below: 0 itself, 1 the same leaf switch."""
        return self.tree.distance(node_a, node_b)

    def _edge_between_nodes(self, a: Device, b: Device) -> DeviceEdge:
        told = self.tree.rates.get(frozenset((a.node, b.node)))
        domain = self.domain(a)
        if domain is not None and domain == self.domain(b):
            ends = [self._of(end.node).most_lanes.get(end.gpu) for end in (a, b)]
            known = [lanes for lanes in ends if lanes is not None]
            lanes = min(known) if len(known) == len(ends) else None
            nvlink = LinkKind.NVLINK.value
            return DeviceEdge(a=a, b=b, kind=nvlink, lanes=lanes, bytes_per_s=told)
        ways = self._way_out(a), self._way_out(b)
        known = [rate for rate in (told, *ways) if rate is not None]
        sure = told is not None or None not in ways
        return DeviceEdge(a=a, b=b, kind=NETWORK, bytes_per_s=min(known) if sure else None)

    def _way_out(self, device: Device) -> float | None:
        """The rate to the network: of the nearest NIC, else what was told of the node's uplink."""
        rates = [self.nic_bytes_per_s(device.node, nic) for nic in self.nearest_nics(device)]
        known = [rate for rate in rates if rate is not None]
        leaf = self.tree.leaf(device.node)
        uplink = None if leaf is None else self.tree.rates.get(frozenset((device.node, leaf)))
        if not known:
            return uplink
        return max(known) if uplink is None else min(max(known), uplink)

    def _of(self, node: str) -> _Wires:
        if node not in self._wires:
            self._wires[node] = _wires(self.nodes[node])
        return self._wires[node]


def _wires(node: Node) -> _Wires:
    most_lanes: dict[int, int] = {}
    for link in filter(_is_nvlink, node.gpu_links):
        for gpu in (link.a, link.b):
            most_lanes[gpu] = max(most_lanes.get(gpu, 1), link.lanes or 1)
    links_of: dict[int, list[Link]] = {gpu.index: [] for gpu in node.gpus}
    for link in node.gpu_links:
        links_of[link.a].append(link)
        links_of[link.b].append(link)
    nearest = _nearest_nics(node)
    nics: dict[int, str] = {}
    turn: dict[tuple[str, ...], int] = {}
    for gpu, names in nearest.items():
        if names:
            nics[gpu] = names[turn.setdefault(names, 0) % len(names)]
            turn[names] += 1
    return _Wires(
        links={(link.a, link.b): link for link in node.gpu_links},
        links_of=links_of,
        islands={gpu: island[0] for island in node.islands for gpu in island},
        nearest_nics=nearest,
        nics=nics,
        nic_rates={nic.name: nic.speed_bytes_per_s for nic in node.nics},
        most_lanes=most_lanes,
    )


def _nearest_nics(node: Node) -> dict[int, tuple[str, ...]]:
    """As `node.nearest_nics`, in one pass: clusters have a million pairs of GPU and NIC."""
    nearest: dict[int, tuple[int, tuple[str, ...]]] = {}
    for pair in node.gpu_nics:
        if pair.kind is None:
            continue
        distance = _DISTANCES[pair.kind]
        least, names = nearest.get(pair.gpu, (distance, ()))
        if distance < least:
            nearest[pair.gpu] = distance, (pair.nic,)
        elif distance == least:
            nearest[pair.gpu] = distance, (*names, pair.nic)
    return {gpu.index: nearest.get(gpu.index, (0, ()))[1] for gpu in node.gpus}


def _is_nvlink(link: Link) -> bool:
    return link.kind is LinkKind.NVLINK


@cache
def _planning() -> tuple[Mapping[str, float], int]:
    """(weight by kind, the most NVLinks a GPU has)."""
    table = tomllib.loads(files("topology").joinpath("links.toml").read_text(encoding="utf-8"))
    weights = {kind: row["bytes_per_s"] for kind, row in table["planning"].items()}
    return weights, table["links_per_gpu"]["most"]
