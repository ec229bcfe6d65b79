"""NCCL INFO logs: who ran where, what NCCL's graph search saw, which rings it made.

Threads write over each other, so lines are kept apart by process and thread. A line without the
`host:pid:tid [device] NCCL INFO` head is no NCCL line and is passed over.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations

from topology.nouns import Gpu, Link, LinkKind, Nic
from topology.readers.nccl_graph import Graph, add_path_line, add_tree_line
from topology.readers.nccl_rings import Rings
from topology.readers.reading import Draft, Reading, SourceText, affinity_of_mask
from topology.sysfs import normal_bus_id
from topology.wiring import fold_notes

_HEAD = re.compile(r"(?:.*?\s)?(\S+?):(\d+):(\d+) (?:\[(\d{1,4})\] )?NCCL (?:INFO|TRACE) (.*)$")
_LABEL = re.compile(r"^.*[>\]]:?(?=[^:]*$)")  # [1,0]<stdout>: of mpirun
_AFFINITY = re.compile(r"Setting affinity for GPU (\d{1,4}) to ([0-9a-fA-F,]+)\s*$")
_NETS = re.compile(r"NET/(?:IB|OFI|Socket)\s*:\s*Using (.*)$")
_NET = re.compile(r"\[(\d{1,4})\]([^\s;]+)")
_EDGE = re.compile(
    r"Channel (\d+)(?:/\d+)?\s*: (\d+)\[([0-9a-fA-F]+)\] -> (\d+)\[([0-9a-fA-F]+)\]"
    r"(?: \[(send|receive)\])? via (\S+)"
)
_INIT = re.compile(
    r"comm \S+ rank (\d+) .*?cudaDev (\d+)(?: nvmlDev (\d+))?(?: busId ([0-9a-fA-F]+))?"
)
_RING = re.compile(r"Channel (\d+)/\d+\s*:((?:\s+\d+)+)\s*$")
_VERSION = re.compile(r"NCCL version (\S+)")
_PATTERN = re.compile(
    r"Pattern (\d+), .*?nChannels (\d+), (?:bw|speed) ([0-9.]+/[0-9.]+), type (\S+?)(?:,|$)"
)
_RING_PATTERN = "4"
_BUS_DIGITS = 4  # fewer in brackets is a device number, as newer versions print
_MOST_HOSTS = 20_000


@dataclass(slots=True)
class _Host:
    """One host of the job."""

    devices: set[int] = field(default_factory=set)
    buses: dict[int, str] = field(default_factory=dict)  # device -> bus as printed
    ranks: dict[int, int] = field(default_factory=dict)  # rank -> device
    affinity: dict[int, str] = field(default_factory=dict)
    nets: dict[int, str] = field(default_factory=dict)
    peers: set[tuple[int, int]] = field(default_factory=set)  # ranks joined by P2P
    graph: Graph = field(default_factory=Graph)


def read_nccl_log(source: SourceText) -> Reading:
    """Read a log of any number of hosts.

    Raises:
        TopologyError: It has no line of NCCL that tells of a host.
    """
    hosts: dict[str, _Host] = {}
    rings = Rings()
    version = ""
    for line in source.lines:
        if found := _VERSION.search(line):
            version = found.group(1)
        match = _HEAD.match(line)
        if match is None or len(hosts) > _MOST_HOSTS:
            continue
        name, pid, tid, device, text = match.groups()
        name = _LABEL.sub("", name)
        host = hosts.setdefault(name, _Host())
        if device is not None:
            host.devices.add(int(device))
        _add(text, host=host, device=device, thread=f"{pid}:{tid}", rings=rings)
    if not hosts:
        wanted = "lines as `host:1:2 [0] NCCL INFO ...`"
        raise source.refusal("line 1", saw=source.lines[0], wanted=wanted)
    about = (
        [f"NCCL {version}: bandwidths in the log are constants of that version"] if version else []
    )
    drafts = [
        _draft(name, host, about=about, ranks=_ranks(hosts.values()))
        for name, host in hosts.items()
    ]
    drafts[0].notes += rings.told()
    nodes = tuple(draft.build(source) for draft in drafts)
    return Reading(source="nccl-log", kind="NCCL log", nodes=nodes)


def _add(text: str, *, host: _Host, device: str | None, thread: str, rings: Rings) -> None:
    if match := _EDGE.match(text):
        _add_edge(match, host=host, device=device, rings=rings)
    elif match := _RING.match(text):
        rings.add_line(int(match.group(1)), [int(word) for word in match.group(2).split()])
    elif match := _INIT.match(text):
        _add_init(match, host=host)
    elif not _add_device_facts(text, host=host) and not add_path_line(host.graph, text):
        add_tree_line(host.graph, text, thread=thread)


def _add_device_facts(text: str, *, host: _Host) -> bool:
    if match := _AFFINITY.match(text):
        cpus = affinity_of_mask(match.group(2))
        if cpus is not None:
            host.affinity[int(match.group(1))] = cpus
    elif match := _NETS.match(text):
        host.nets.update({int(n): name.rstrip("/") for n, name in _NET.findall(match.group(1))})
    elif match := _PATTERN.match(text):
        number, channels, speed, path = match.groups()
        name = f"{number} (ring)" if number == _RING_PATTERN else number
        told = f"NCCL pattern {name}: {channels} channels, {speed} GB/s, type {path}"
        host.graph.notes += [] if told in host.graph.notes else [told]
    return match is not None


def _add_init(match: re.Match[str], *, host: _Host) -> None:
    rank, device = int(match.group(1)), int(match.group(3) or match.group(2))
    host.devices.add(device)
    host.ranks[rank] = device
    if match.group(4):
        host.buses[device] = match.group(4).lower()


def _add_edge(match: re.Match[str], *, host: _Host, device: str | None, rings: Rings) -> None:
    """The rank that writes the line is the sender, or the receiver where it says so."""
    channel, a, bus_a, b, bus_b, way, via = match.groups()
    rank, bus = (b, bus_b) if way == "receive" else (a, bus_a)
    if device is not None:
        host.ranks[int(rank)] = int(device)
        if len(bus) >= _BUS_DIGITS:
            host.buses[int(device)] = bus.lower()
    if via.startswith("P2P"):
        host.peers.add((int(a), int(b)))
    rings.add_edge(int(channel), int(a), int(b), via=via, way=way or "send")


def _ranks(hosts: Iterable[_Host]) -> dict[int, int]:
    return {rank: device for host in hosts for rank, device in host.ranks.items()}


def _draft(name: str, host: _Host, *, about: list[str], ranks: dict[int, int]) -> Draft:
    draft = Draft(name=name, notes=list(about))
    by_bus = _index_gpus(host, draft=draft)
    for index, device in enumerate(sorted(host.nets)):
        draft.nics[f"NET/{device}"] = Nic(name=f"NET/{device}")
        draft.notes.append(f"NET/{device} is {host.nets[device]}") if index < 64 else None
    for label, speed in host.graph.nets.items():
        draft.nics[label] = Nic(name=label, speed_bytes_per_s=speed)
    _add_graph(draft, host.graph, by_bus=by_bus)
    for a, b in sorted(host.peers):
        pair = sorted((ranks.get(a, -1), ranks.get(b, -1)))
        if a in host.ranks and b in host.ranks and pair[0] >= 0 and pair[0] != pair[1]:
            old = draft.links.get((pair[0], pair[1])) or Link(a=pair[0], b=pair[1])
            draft.links[pair[0], pair[1]] = Link(
                a=old.a, b=old.b, kind=old.kind, bytes_per_s=old.bytes_per_s, p2p=True
            )
    if host.peers:
        draft.notes.append(
            "P2P in the log may be NVLink or PCIe: kinds that only it tells are unknown"
        )
    return draft


def _index_gpus(host: _Host, *, draft: Draft) -> dict[str, int]:
    """Bus -> index: the device number NCCL prints where a line joins the two, else the order."""
    by_bus = {bus: device for device, bus in host.buses.items()}
    listed = [bus for bus in host.graph.gpus if bus not in by_bus]
    devices = set(host.devices)
    if listed:
        draft.notes.append("which device number a GPU of the graph has is not told: document order")
        if not by_bus:
            devices = set()
        free = (number for number in range(len(listed) + len(devices)) if number not in devices)
        by_bus.update({bus: next(free) for bus in listed})
    for index in sorted({*by_bus.values(), *(devices if not listed or host.buses else ())}):
        bus = next((bus for bus, number in by_bus.items() if number == index), None)
        draft.gpus[index] = Gpu(
            index=index,
            pci_bus_id=None if bus is None else bus_address(bus),
            numa_node=host.graph.numa.get(bus or ""),
            cpu_affinity=host.affinity.get(index) if index in devices else None,
        )
    if listed and not host.buses:
        for device, cpus in sorted(host.affinity.items()):
            draft.notes.append(f"device {device} is near CPUs {cpus}; which GPU it is is not told")
    return by_bus


def bus_address(text: str) -> str | None:
    """NCCL prints 0000:1c:00.0 as 1c000; the form of sysfs."""
    number = int(text, 16)
    function, device = number & 0xF, number >> 4 & 0xFF
    bus, domain = number >> 12 & 0xFF, number >> 20
    return normal_bus_id(f"{domain:04x}:{bus:02x}:{device:02x}.{function}")


def _add_graph(draft: Draft, graph: Graph, *, by_bus: dict[str, int]) -> None:
    odd: list[tuple[str, str]] = []
    for bus_a, bus_b in combinations(sorted(graph.gpus, key=lambda bus: by_bus[bus]), 2):
        kind, speed, remark = graph.link(bus_a, bus_b)
        a, b = by_bus[bus_a], by_bus[bus_b]
        draft.links[a, b] = Link(a=a, b=b, kind=kind, bytes_per_s=speed)
        odd += [(f"{a}-{b}", remark)] if remark else []
    for bus in graph.gpus:
        for label in graph.nets:
            kind = graph.near(bus, label)
            draft.near[by_bus[bus], label] = None if kind is LinkKind.NVLINK else kind
    draft.notes += [*fold_notes("GPUs", odd), *graph.notes]
    if any(link.bytes_per_s for link in draft.links.values()):
        draft.notes.append("bytes_per_s as NCCL assumes it in its graph, not measured")
