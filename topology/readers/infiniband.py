"""InfiniBand as its tools print it: ibnetdiscover, host GUID lists, a table of /sys."""

import re
from collections import Counter
from dataclasses import dataclass, field

from topology.network import Edge, Network, Tier, TierKind
from topology.nouns import Nic
from topology.readers.reading import Draft, Reading, SourceText

_SWITCH = re.compile(r"Switch\s+\d+\s+\"(S-[0-9a-fA-F]+)\"\s*#\s*\"([^\"]*)\"")
_HOST_BLOCK = re.compile(r"(?:Ca|Rt)\s+\d+\s+\"")
_PORT = re.compile(r"\[(\d+)\](?:\([0-9a-fA-F]+\))?\s+\"([SH]-[0-9a-fA-F]+)\"\[\d+\]")
_QUOTED = re.compile(r"#\s*\"([^\"]*)\"")
_SPEED = re.compile(r"(\d+)x([A-Z]+\d*)\s*$")
_HOST = re.compile(r"(\S+) (mlx\d+_\d+|HCA-\d+|\w+_\d+)$")
_LANE_BYTES_PER_S = {  # one lane, one direction, data rate as the standard names it (IBTA)
    "SDR": 2.5e9 / 8,
    "DDR": 5e9 / 8,
    "QDR": 10e9 / 8,
    "FDR10": 10e9 / 8,
    "FDR": 14e9 / 8,
    "EDR": 25e9 / 8,
    "HDR": 50e9 / 8,
    "NDR": 100e9 / 8,
    "XDR": 200e9 / 8,
}
_SYS = re.compile(r"/sys/class/infiniband/([^/\s]+)/(\S+)\s+(.*?)\s*$")
_RATE = re.compile(r"([0-9.]+) Gb/sec")


@dataclass(slots=True)
class _Fabric:
    names: dict[str, str] = field(default_factory=dict)  # S-... -> shown name
    hosts: dict[str, list[str]] = field(default_factory=dict)  # switch -> nodes
    ports: dict[tuple[str, str], float] = field(default_factory=dict)
    unnamed: set[str] = field(default_factory=set)
    unrated: int = 0


def read_ibnetdiscover(source: SourceText) -> Reading:
    """Read the fabric as ibnetdiscover prints it: switches with their hosts and each other.

    Raises:
        TopologyError: A port line before any switch.
    """
    fabric = _Fabric()
    switch: str | None = None
    skip = False
    for number, line in enumerate(source.lines, start=1):
        if match := _SWITCH.match(line):
            switch, skip = match.group(1), False
            fabric.names[switch] = _shown(match.group(2))
            fabric.hosts.setdefault(switch, [])
        elif _HOST_BLOCK.match(line):
            skip = True  # a host lists the same cables from its end
        elif (port := _PORT.match(line)) and not skip:
            if switch is None:
                raise source.refusal(f"line {number}", saw=line, wanted="a Switch line first")
            _add_port(fabric, switch=switch, far=port.group(2), line=line)
    return Reading(
        source="ibnetdiscover", kind="ibnetdiscover", network=_fabric_network(fabric, source=source)
    )


def _shown(text: str) -> str:
    match = re.match(r"MF0;([^:]+):", text)
    return match.group(1) if match else ""


def _add_port(fabric: _Fabric, *, switch: str, far: str, line: str) -> None:
    quoted = _QUOTED.search(line)
    text = quoted.group(1) if quoted else ""
    end = far
    if far.startswith("S-"):
        fabric.names.setdefault(far, _shown(text))
    elif "Aggregation Node" in text:
        return
    else:
        host = _HOST.match(text)
        end = host.group(1) if host else far
        fabric.unnamed |= set() if host else {far}
        if end not in fabric.hosts[switch]:
            fabric.hosts[switch].append(end)
    speed = _SPEED.search(line)
    lane = _LANE_BYTES_PER_S.get(speed.group(2)) if speed else None
    if speed is None or lane is None:
        fabric.unrated += 1
    else:
        pair = (switch, end)
        fabric.ports[pair] = fabric.ports.get(pair, 0.0) + int(speed.group(1)) * lane
    fabric.ports.setdefault((switch, end), 0.0)


def _fabric_network(fabric: _Fabric, *, source: SourceText) -> Network:
    if not fabric.names:
        raise source.refusal("document", saw="no Switch line", wanted="the switches of a fabric")
    counts = Counter(name for name in fabric.names.values() if name)
    called = {
        guid: name if name and counts[name] == 1 else guid for guid, name in fabric.names.items()
    }
    above = {
        guid: {far for a, far in fabric.ports if a == guid and far.startswith("S-")}
        | {a for a, far in fabric.ports if far == guid}
        for guid in fabric.names
    }
    tiers = []
    for guid in fabric.names:
        hosts = tuple(fabric.hosts.get(guid, ()))
        parents = sorted(far for far in above[guid] if hosts and not fabric.hosts.get(far))
        parent = called[parents[0]] if len(parents) == 1 else None
        tiers.append(Tier(name=called[guid], kind=TierKind.SWITCH, parent=parent, nodes=hosts))
    edges = []
    for (a, far), rate in fabric.ports.items():
        back = fabric.ports.get((far, a))
        if back is None or a < far:
            edges.append(Edge(a=called[a], b=called.get(far, far), bytes_per_s=rate or None))
    notes = ["bytes_per_s of an edge: all cables between the two, as printed (4xNDR is 400 Gb/s)"]
    if fabric.unnamed:
        notes.append(f"{len(fabric.unnamed)} host ports without a host name, called by their GUID")
    if fabric.unrated:
        notes.append(f"{fabric.unrated} ports without a speed")
    return Network(tiers=tuple(tiers), edges=tuple(edges), notes=tuple(notes))


def read_host_guids(source: SourceText) -> Reading:
    """Read `VM_hostname <host>` lines, each followed by the GUIDs of its ports.

    Raises:
        TopologyError: A line that is neither, or a GUID before any host.
    """
    drafts: dict[str, Draft] = {}
    draft: Draft | None = None
    for number, line in enumerate(source.lines, start=1):
        words = line.split()
        if len(words) == 2 and words[0] == "VM_hostname":
            draft = drafts.setdefault(words[1], Draft(name=words[1]))
        elif (
            draft is not None and len(words) == 1 and re.fullmatch(r"[0-9a-fA-Fx]{8,20}", words[0])
        ):
            draft.nics[words[0]] = Nic(name=words[0])
        elif words:
            wanted = "`VM_hostname <host>`, then port GUIDs"
            raise source.refusal(f"line {number}", saw=line.strip(), wanted=wanted)
    for made in drafts.values():
        made.notes.append("NICs are called by their port GUID")
    nodes = tuple(made.build(source) for made in drafts.values())
    return Reading(source="ibstat", kind="host GUIDs", nodes=nodes)


def read_sysfs_table(source: SourceText) -> Reading:
    """Read `path<tab>content` lines of /sys/class/infiniband.

    Raises:
        TopologyError: No device in the table.
    """
    facts: dict[str, dict[str, str]] = {}
    for line in source.lines:
        if match := _SYS.match(line):
            facts.setdefault(match.group(1), {})[match.group(2)] = match.group(3)
    if not facts:
        wanted = "/sys/class/infiniband/<device>/... lines"
        raise source.refusal("line 1", saw=source.lines[0], wanted=wanted)
    draft = Draft(notes=["no device link in the table: PCI address and NUMA node unknown"])
    kinds: dict[str, list[str]] = {}
    for name, told in facts.items():
        speed, text = _port_speed(told)
        numa = told.get("device/numa_node", "")
        draft.nics[name] = Nic(
            name=name,
            speed_bytes_per_s=speed,
            numa_node=int(numa) if numa.isdecimal() else None,
        )
        kinds.setdefault(text, []).append(name)
    draft.notes += [f"NICs {', '.join(names)}: {text}" for text, names in kinds.items()]
    return Reading(source="sysfs", kind="sysfs table", nodes=(draft.build(source),), named=False)


def _port_speed(told: dict[str, str]) -> tuple[float | None, str]:
    """The rate of the fastest active port, and what the ports say."""
    ports = sorted({match.group(1) for key in told if (match := re.match(r"ports/(\d+)/", key))})
    best: float | None = None
    texts: list[str] = []
    for port in ports:
        layer, rate, state = (
            told.get(f"ports/{port}/{key}", "?") for key in ("link_layer", "rate", "state")
        )
        texts.append(f"{layer} {rate} {state}")
        match = _RATE.match(rate)
        if match and state.endswith("ACTIVE") and float(match.group(1)) > 0:
            best = max(best or 0.0, float(match.group(1)) * 1e9 / 8)
    return best, "; ".join(texts) or "no port"
