"""The words of a cluster's wiring: GPUs, NICs, links, nodes and the network between them.

Every source (driver, sysfs, pasted text) ends in these nouns. A fact nobody told is None.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations
from typing import ClassVar, Self

from topology.errors import TopologyError
from topology.gpu import Gpu, lasting_facts
from topology.network import Edge, Network, Tier, TierKind
from topology.record import (
    Record,
    at_least,
    build_noun,
    canonical_json,
    once,
    read_object,
    read_value,
    refusal,
)

__all__ = [
    "SCHEMA",
    "Edge",
    "Gpu",
    "GpuNic",
    "Link",
    "LinkKind",
    "Network",
    "Nic",
    "Node",
    "Tier",
    "TierKind",
    "Topology",
]

SCHEMA = 1
_HOST_MEMORY: dict[str, object] = {"memory_bytes": None}  # as the hash takes it
_NOT_HASHED = ("notes", "driver_version")  # remarks, and software that has a fingerprint of its own


class LinkKind(StrEnum):
    """How two devices reach each other, nearest first; the words of `nvidia-smi topo -m`."""

    NVLINK = "NVLINK"  # NVLink or NVSwitch, no PCIe
    PIX = "PIX"  # at most one PCIe bridge
    PXB = "PXB"  # several PCIe bridges, no host bridge
    PHB = "PHB"  # one PCIe host bridge
    NODE = "NODE"  # several host bridges of one NUMA node
    SYS = "SYS"  # between NUMA nodes

    @property
    def distance(self) -> int:
        """0 for the nearest kind; larger is farther."""
        return list(LinkKind).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic(Record):
    """One network device that can do RDMA."""

    optional: ClassVar[tuple[str, ...]] = ("link_layer", "state")

    name: str
    pci_bus_id: str | None = None
    speed_bytes_per_s: float | None = None  # one direction
    numa_node: int | None = None
    link_layer: str | None = None  # InfiniBand, Ethernet, or what else its driver says
    state: str | None = None  # of the fastest port: ACTIVE, DOWN

    def __post_init__(self) -> None:
        at_least(speed_bytes_per_s=(self.speed_bytes_per_s, 1), numa_node=(self.numa_node, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(Record):
    """How GPU a reaches GPU b, a < b."""

    a: int
    b: int
    kind: LinkKind | None = None
    lanes: int | None = None  # NVLinks between the two; only for NVLINK
    bytes_per_s: float | None = None  # one direction
    p2p: bool | None = None  # may each read and write the other's memory?

    def __post_init__(self) -> None:
        if not self.a < self.b:
            raise ValueError(f"a, b: saw {self.a}, {self.b}, wanted a < b")
        if self.lanes is not None and self.kind is not LinkKind.NVLINK:
            raise ValueError(f"lanes: saw {self.lanes} on {self.kind}, wanted null unless NVLINK")
        at_least(lanes=(self.lanes, 1), bytes_per_s=(self.bytes_per_s, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNic(Record):
    """How far a NIC is from a GPU."""

    gpu: int
    nic: str
    kind: LinkKind | None = None

    def __post_init__(self) -> None:
        if self.kind is LinkKind.NVLINK:
            raise ValueError("kind: saw NVLINK, wanted a PCIe kind: a NIC is not on NVLink")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Record):
    """One machine: its GPUs, its NICs and how they are wired."""

    optional: ClassVar[tuple[str, ...]] = ("cpus", "memory_bytes", "driver_version")
    derived: ClassVar[tuple[str, ...]] = ("islands", "nearest_nics")

    name: str
    gpus: tuple[Gpu, ...] = ()  # kept by index
    nics: tuple[Nic, ...] = ()
    gpu_links: tuple[Link, ...] = ()  # every pair of GPUs once, kept by (a, b)
    gpu_nics: tuple[GpuNic, ...] = ()
    cpus: int | None = None  # usable by the process that looked
    memory_bytes: int | None = None  # of the host, or what its control group allows
    driver_version: str | None = None
    notes: tuple[str, ...] = ()  # what was missing, odd or repaired

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpus", tuple(sorted(self.gpus, key=lambda gpu: gpu.index)))
        links = tuple(sorted(self.gpu_links, key=lambda link: (link.a, link.b)))
        object.__setattr__(self, "gpu_links", links)
        at_least(cpus=(self.cpus, 1), memory_bytes=(self.memory_bytes, 1))
        once("GPU index", (gpu.index for gpu in self.gpus))
        once("NIC name", (nic.name for nic in self.nics))
        once("link of GPUs", ((link.a, link.b) for link in links))
        once("pair of GPU and NIC", ((pair.gpu, pair.nic) for pair in self.gpu_nics))
        self._check_references()

    def _check_references(self) -> None:
        indices = [gpu.index for gpu in self.gpus]
        odd = set(combinations(indices, 2)) ^ {(link.a, link.b) for link in self.gpu_links}
        if odd:
            raise ValueError(
                f"gpu_links: GPUs {min(odd)} are missing or unknown, wanted every pair of {indices}"
            )
        names = {nic.name for nic in self.nics}
        for pair in self.gpu_nics:
            if pair.gpu not in indices or pair.nic not in names:
                raise ValueError(
                    f"gpu_nics: saw GPU {pair.gpu} and NIC {pair.nic!r}, "
                    f"wanted a GPU of {indices} and a NIC of {sorted(names)}"
                )

    @property
    def islands(self) -> tuple[tuple[int, ...], ...]:
        """GPUs that reach each other without PCIe: connected parts of the NVLINK links."""
        island_of = {gpu.index: {gpu.index} for gpu in self.gpus}
        for link in self.gpu_links:
            if link.kind is LinkKind.NVLINK and island_of[link.a] is not island_of[link.b]:
                joined = island_of[link.a] | island_of[link.b]
                island_of.update(dict.fromkeys(joined, joined))
        return tuple(sorted({tuple(sorted(island)) for island in island_of.values()}))

    @property
    def nearest_nics(self) -> dict[int, tuple[str, ...]]:
        """NICs at the smallest known distance from each GPU; ties all listed."""
        nearest: dict[int, tuple[str, ...]] = {}
        for gpu in self.gpus:
            known = [
                (pair.kind.distance, pair.nic)
                for pair in self.gpu_nics
                if pair.gpu == gpu.index and pair.kind is not None
            ]
            least = min((distance for distance, _ in known), default=None)
            nearest[gpu.index] = tuple(nic for distance, nic in known if distance == least)
        return nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The nodes and the network, and where the facts come from."""

    source: str
    nodes: tuple[Node, ...]
    network: Network = field(default_factory=Network)

    def __post_init__(self) -> None:
        once("node name", (node.name for node in self.nodes))

    @property
    def content_hash(self) -> str:
        """SHA-256 of the devices and the wiring, by which ranks are placed.

        No notes, driver version or source, and nothing that passes; nor the memory of a host, which
        a new kernel changes by a few megabytes. A fact that documents did not have at first counts
        only where it is told, so that old documents keep their hash.
        """
        return self._hash([_facts(node) | _HOST_MEMORY for node in self.nodes])

    def _hash(self, facts: Sequence[Mapping[str, object]]) -> str:
        network = {k: v for k, v in self.network.to_json().items() if k not in _NOT_HASHED}
        text = canonical_json({"nodes": list(facts), "network": network})
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, object]:
        """The whole document as plain dicts, lists, text, numbers and null."""
        return {
            "schema": SCHEMA,
            "content_hash": self.content_hash,
            "source": self.source,
            "nodes": [node.to_json() for node in self.nodes],
            "network": self.network.to_json(),
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Read a document that `to_json` wrote, or one edited by hand.

        Args:
            value: What `json.loads` gave.

        Raises:
            TopologyError: Another schema; a field that is unknown, missing or wrong; or a
                `content_hash` that is neither null nor the hash of the facts, today's or the one
                that held the memory of hosts too.
        """
        if isinstance(value, dict) and "schema" in value:
            seen = value["schema"]
            if type(seen) is not int or seen != SCHEMA:
                raise refusal("schema", seen, str(SCHEMA))
        hints = {"source": str, "nodes": tuple[Node, ...], "network": Network}
        fields = read_object(value, path="", names=["schema", "content_hash", *hints])
        facts = {name: read_value(fields[name], path=name, hint=hints[name]) for name in hints}
        build: Callable[..., Self] = cls
        topology = build_noun(build, path="", facts=facts)
        seen, wanted = fields["content_hash"], topology.content_hash
        if seen not in (None, wanted) and seen != topology._hash(list(map(_facts, topology.nodes))):
            raise TopologyError(
                f"content_hash: saw {seen!r}, wanted {wanted!r}, the hash of the facts",
                hint="after an edit by hand set content_hash to null",
            )
        return topology


def _facts(node: Node) -> dict[str, object]:
    told = {name: value for name, value in node.to_json().items() if name not in _NOT_HASHED}
    devices = {"gpus": node.gpus, "nics": node.nics}
    return told | {word: [lasting_facts(noun) for noun in nouns] for word, nouns in devices.items()}
