"""The nouns of a plan: rings, their edges, what they cross, and the bound nobody can beat."""

from dataclasses import dataclass

from topology.graph import Device, DeviceEdge


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossings:
    """How many edges of a ring join different parts of the cluster."""

    island: int  # NVLink islands
    node: int
    switch: int  # lowest switches or blocks; 0 where the network is not told

    def to_json(self) -> dict[str, object]:
        """The counts as a JSON object."""
        return {"island": self.island, "node": self.node, "switch": self.switch}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Devices in the order in which data moves; the last sends to the first."""

    order: tuple[Device, ...]
    edges: tuple[DeviceEdge, ...]  # two for two devices, none for one
    crossings: Crossings
    leaving: tuple[DeviceEdge, ...]  # the edges that join different islands or nodes

    @property
    def slowest(self) -> DeviceEdge | None:
        """The edge worth least; None for one device alone."""
        return min(self.edges, key=lambda edge: edge.worth, default=None)

    def to_json(self) -> dict[str, object]:
        """The ring as a JSON object."""
        slowest = self.slowest
        return {
            "order": [device.to_json() for device in self.order],
            "edges": [edge.to_json() for edge in self.edges],
            "slowest": None if slowest is None else slowest.to_json(),
            "crossings": self.crossings.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RingPlan:
    """Where the groups of a layout go: all rings that the devices are enough for, the best first.

    The rings of one context-parallel group stand together: ring r of it joins the devices with
    tensor-parallel rank r. With CP of 1 the rings are the tensor-parallel groups themselves.
    """

    tp: int
    cp: int
    rings: tuple[Ring, ...]
    groups: tuple[tuple[tuple[Device, ...], ...], ...]  # group -> CP rank -> TP rank -> device
    bound_bytes_per_s: float | None  # what no set of rings over these devices can beat
    achieved_bytes_per_s: float | None  # of the slowest ring, all moving at once
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The plan as a JSON object."""
        return {
            "rings": [ring.to_json() for ring in self.rings],
            "bound_bytes_per_s": self.bound_bytes_per_s,
            "notes": list(self.notes),
        }
