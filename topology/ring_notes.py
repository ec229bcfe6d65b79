"""What people should know about the devices of a plan: left out, missing, idle."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from topology.graph import NETWORK, Device, Graph
from topology.nouns import Node
from topology.ring_plan import Ring


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The devices that rings may use."""

    usable: Mapping[str, tuple[Device, ...]]  # by node, in order
    without_nvlink: tuple[Device, ...]  # of those: alone without NVLink among peers that have it
    notes: tuple[str, ...]

    @property
    def healthy(self) -> dict[str, tuple[Device, ...]]:
        """The usable devices but those that lost their NVLinks."""
        lost = set(self.without_nvlink)
        return {
            node: tuple(device for device in found if device not in lost)
            for node, found in self.usable.items()
        }


def read_devices(graph: Graph) -> Devices:
    """The devices of a cluster, without MIG ones, and what is odd about them."""
    usable: dict[str, tuple[Device, ...]] = {}
    mig: list[Device] = []
    lost: list[Device] = []
    for node in graph.nodes.values():
        devices = [Device(node=node.name, gpu=gpu.index) for gpu in node.gpus]
        sliced = {gpu.index for gpu in node.gpus if gpu.mig}
        mig += [device for device in devices if device.gpu in sliced]
        whole = tuple(device for device in devices if device.gpu not in sliced)
        usable[node.name] = whole
        lost += _without_nvlink(graph, whole)
    notes = [f"MIG is on, so no peer reaches it: {named(mig)} left out"] if mig else []
    notes += _missing(graph.nodes.values())
    return Devices(usable=usable, without_nvlink=tuple(lost), notes=tuple(notes))


def note_lost_nvlinks(devices: Devices, *, used: bool) -> list[str]:
    """What became of the devices that lost their NVLinks."""
    if not devices.without_nvlink:
        return []
    what = f"no NVLink, though the other GPUs of the node have: {named(devices.without_nvlink)}"
    return [f"{what}; used, as there is no ring without" if used else f"{what}; left out"]


def note_rest(devices: Iterable[Device], *, used: Iterable[Device]) -> list[str]:
    """The devices that are in no ring because there are too few for one more."""
    left = sorted(set(devices) - set(used), key=lambda device: (device.node, device.gpu))
    return [f"too few for one more ring, left over: {named(left)}"] if left else []


def note_slow_groups(graph: Graph, groups: Iterable[Sequence[Device]]) -> list[str]:
    """Tensor-parallel groups that leave their NVLink island although there is NVLink."""
    slow = [
        group
        for group in groups
        if len({graph.island(device) for device in group}) > 1
        and any(graph.has_nvlink(device) for device in group)
    ]
    if not slow:
        return []
    many = "1 group" if len(slow) == 1 else f"{len(slow)} groups, the first"
    return [f"tensor parallelism leaves its NVLink island in {many}: {named(slow[0])}"]


def note_idle_nics(graph: Graph, rings: Sequence[Ring], *, cp: int) -> list[str]:
    """NICs that no ring uses on nodes where rings leave, and the split that would use them."""
    edges = [edge for ring in rings for edge in ring.edges if edge.kind == NETWORK]
    used: dict[str, set[str | None]] = {}
    for edge in edges:
        for device in (edge.a, edge.b):
            used.setdefault(device.node, set()).add(graph.nic(device))
    idle: list[tuple[str, int, int]] = []
    for node, nics in used.items():
        gpus = graph.nodes[node].gpus
        near = {graph.nic(Device(node=node, gpu=gpu.index)) for gpu in gpus} - {None}
        if near - nics and None not in nics:
            idle.append((node, len(near), len(near - nics)))
    if not idle:
        return []
    node, all_nics, unused = idle[0]
    more = f" and on {len(idle) - 1} more nodes" if len(idle) > 1 else ""
    return [f"{unused} of {all_nics} NICs stay idle on {node}{more}{_split(rings, node, cp=cp)}"]


def named(devices: Sequence[Device], *, most: int = 8) -> str:
    """The devices for people, the first few by name."""
    shown = ", ".join(map(str, devices[:most]))
    return shown if len(devices) <= most else f"{shown} and {len(devices) - most} more"


def _split(rings: Sequence[Ring], node: str, *, cp: int) -> str:
    inner = max(sum(device.node == node for device in ring.order) for ring in rings)
    if inner == 1 or cp % inner:
        return ": a ring leaves a node by one NIC only"
    return (
        f": a ring leaves a node by one NIC only; an inner ring of {inner} in each node x an outer "
        f"ring of {cp // inner} between nodes, one on each rail, would use a NIC for each GPU"
    )


def _without_nvlink(graph: Graph, devices: Sequence[Device]) -> list[Device]:
    """Devices without NVLink where all others, at least three, form one island."""
    lost = [device for device in devices if not graph.has_nvlink(device)]
    others = [device for device in devices if graph.has_nvlink(device)]
    one_island = len({graph.island_in_node(device) for device in others}) == 1
    return lost if one_island and len(others) >= max(3, len(lost) + 1) else []


def _missing(nodes: Iterable[Node]) -> list[str]:
    notes: list[str] = []
    sizes = Counter(len(node.gpus) for node in nodes)
    usual = max(sizes, key=lambda size: (sizes[size], size), default=0)
    fewer: list[str] = []
    for node in nodes:
        found = {gpu.index for gpu in node.gpus}
        gaps = sorted(set(range(max(found, default=-1) + 1)) - found)
        if gaps:
            notes.append(f"{node.name}: no GPU {', '.join(map(str, gaps))} among 0-{max(found)}")
        if len(found) < usual:
            fewer.append(node.name)
    if fewer:
        some = ", ".join(fewer[:8]) + (f" and {len(fewer) - 8} more" if len(fewer) > 8 else "")
        notes.append(f"fewer GPUs than the {usual} of most nodes: {some}")
    return notes
