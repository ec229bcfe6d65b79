"""NCCL topology XML: what NCCL_TOPO_DUMP_FILE writes and clouds ship as NCCL_TOPO_FILE.

A dump (GPUs with rank and sm) lists every NVLink; a shipped file often lists none, which says
nothing about NVLink.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from topology.nouns import Gpu, Nic
from topology.readers.nccl_nvlink import NvlinkGpu, join_gpus
from topology.readers.pci_tree import Place, tree_distance
from topology.readers.reading import Draft, Reading, SourceText, affinity_of_mask
from topology.readers.xml_tree import Element, read_xml
from topology.sysfs import normal_bus_id
from topology.wiring import fold_notes

_GPU_CLASSES = ("0x0300", "0x0302")
_NIC_CLASSES = ("0x0200", "0x0207")
_BRIDGE = "0x0604"
_AMD = ("xgmi",)
_VIRTUAL = re.compile(r"(veth|cali|lxc|docker|br-|flannel|cilium|tunl|cni|virbr|lo$)")
_SPEED = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*GT/s")
_MEGABIT = 1e6 / 8


@dataclass(slots=True)
class _Found:
    """The devices of one host while the tree is walked."""

    draft: Draft = field(default_factory=Draft)
    places: dict[str, Place] = field(default_factory=dict)  # NIC -> where
    gpus: list[NvlinkGpu] = field(default_factory=list)
    untyped: list[str] = field(default_factory=list)
    virtual: list[str] = field(default_factory=list)
    remarks: list[tuple[str, str]] = field(default_factory=list)


def read_nccl_xml(source: SourceText) -> Reading:
    """Read the tree, one node for each host it tells apart.

    Raises:
        TopologyError: Not well formed, entities, an AMD file, or no device at all.
    """
    root = read_xml(source)
    _check_amd(root, source=source)
    hosts: dict[str, _Found] = {}
    cpus = [child for child in root.children if child.tag == "cpu"]
    if not cpus:
        place = f"line {root.line}, element system"
        raise source.refusal(place, saw="no <cpu>", wanted="<cpu> elements with devices below")
    for number, cpu in enumerate(cpus):
        found = hosts.setdefault(cpu.facts.get("host_hash", ""), _Found())
        _read_cpu(cpu, number=number, found=found, source=source)
    nodes = []
    for number, found in enumerate(hosts.values()):
        found.draft.name = f"node{number}"
        _finish(found, source=source)
        nodes.append(found.draft.build(source))
    return Reading(source="nccl-xml", kind="NCCL XML", nodes=tuple(nodes), named=len(nodes) > 1)


def _check_amd(root: Element, *, source: SourceText) -> None:
    for tag in (*_AMD, "gpu"):
        for element in root.every(tag):
            if tag in _AMD or "gcn" in element.facts:
                wanted = "an NVIDIA topology; this is one of AMD (RCCL), not NVIDIA"
                raise source.refusal(f"line {element.line}", saw=f"<{element.tag}>", wanted=wanted)


def _read_cpu(cpu: Element, *, number: int, found: _Found, source: SourceText) -> None:
    numa = _number(cpu, "numaid", source=source)
    numa_node = None if numa is None or numa < 0 else numa
    if numa_node is None:
        found.draft.notes.append(f"line {cpu.line}: NUMA node of a CPU is not told")
    cpus = affinity_of_mask(cpu.facts.get("affinity", ""))
    for element, switches, above in _walk(cpu):
        place = Place(cpu=number, numa_node=numa_node, switches=switches)
        if element.tag == "net":
            _add_net(element, place=place, bus_id=above, found=found, source=source)
        elif element.tag == "pci":
            _add_pci(element, place=place, cpus=cpus, found=found, source=source)


def _walk(cpu: Element) -> Iterator[tuple[Element, tuple[int, ...], str]]:
    """Every element below, with the switches above it and the address of the device it is in."""
    waiting: list[tuple[Element, tuple[int, ...], str]] = [(cpu, (), "")]
    while waiting:
        element, switches, above = waiting.pop()
        yield element, switches, above
        below, bus = switches, above
        if element.tag == "pci":
            is_switch = any(child.tag == "pci" for child in element.children)
            below = (*switches, id(element)) if is_switch else switches
            bus = element.facts.get("busid", "")
        waiting += [(child, below, bus) for child in reversed(element.children)]


def _add_pci(
    pci: Element, *, place: Place, cpus: str | None, found: _Found, source: SourceText
) -> None:
    bus = pci.facts.get("busid", "")
    bus_id = normal_bus_id(bus)
    kind = pci.facts.get("class", "")
    gpus = [child for child in pci.children if child.tag == "gpu"]
    if gpus or kind.startswith(_GPU_CLASSES):
        for number, gpu in enumerate(gpus or [pci]):
            found.gpus.append(
                NvlinkGpu(
                    element=gpu,
                    place=place,
                    bus_id=bus_id or bus.lower(),
                    cpus=cpus,
                    part=number if len(gpus) > 1 else None,
                    dump={"rank", "sm"} <= set(gpu.facts),
                    dev=_number(gpu, "dev", source=source) if gpus else None,
                )
            )
    elif kind.startswith(_NIC_CLASSES) and not pci.children:
        found.draft.nics[bus] = Nic(name=bus, pci_bus_id=bus_id, numa_node=place.numa_node)
        found.places[bus] = place
        found.remarks.append((bus, "no device name, called by its PCI address"))
    elif not kind and not pci.children:
        found.untyped.append(f"{bus} (NUMA {place.numa_node})")
    elif kind.startswith(_BRIDGE):
        _check_bridge(pci, found=found)


def _check_bridge(pci: Element, *, found: _Found) -> None:
    own = _gigatransfers(pci)
    below = [speed for child in pci.children if (speed := _gigatransfers(child)) is not None]
    if own is not None and below and own < min(below):
        text = f"bridge shows {own:g} GT/s above devices of {min(below):g} GT/s: implausible"
        found.remarks.append((pci.facts.get("busid", ""), text))


def _gigatransfers(pci: Element) -> float | None:
    match = _SPEED.match(pci.facts.get("link_speed", ""))
    return float(match.group(1)) if match else None


def _add_net(net: Element, *, place: Place, bus_id: str, found: _Found, source: SourceText) -> None:
    name = net.facts.get("name", "")
    if not name:
        raise source.refusal(f"line {net.line}, <net> name", saw=name, wanted="a device name")
    if _VIRTUAL.match(name):
        found.virtual.append(name)
        return
    if name in found.draft.nics:
        found.remarks.append((name, "stands twice, read once"))
        return
    speed = _number(net, "speed", source=source)
    rate = speed * _MEGABIT if speed and speed > 0 else None
    found.draft.nics[name] = Nic(
        name=name,
        pci_bus_id=normal_bus_id(bus_id),
        speed_bytes_per_s=rate,
        numa_node=place.numa_node,
    )
    found.places[name] = place


def _finish(found: _Found, *, source: SourceText) -> None:
    draft = found.draft
    indices = _indices(found.gpus, notes=draft.notes)
    for index, gpu in zip(indices, found.gpus, strict=True):
        draft.gpus[index] = Gpu(
            index=index,
            pci_bus_id=normal_bus_id(gpu.bus_id),
            numa_node=gpu.place.numa_node,
            cpu_affinity=gpu.cpus,
        )
        for nic, place in found.places.items():
            draft.near[index, nic] = tree_distance(gpu.place, place)
    links, notes = join_gpus(dict(zip(indices, found.gpus, strict=True)), source=source)
    draft.links.update(links)
    draft.notes += [*notes, *fold_notes("PCI", found.remarks)]
    if found.untyped:
        shown = ", ".join(found.untyped)
        draft.notes.append(f"type of PCI devices not told, so neither GPUs nor NICs: {shown}")
    if found.virtual:
        count = len(found.virtual)
        draft.notes.append(f"{count} virtual network interfaces left out: {found.virtual[0]}, ...")


def _indices(gpus: list[NvlinkGpu], *, notes: list[str]) -> list[int]:
    """The file's own numbers where it has one for each GPU, else their order."""
    devs = [gpu.dev for gpu in gpus if gpu.dev is not None and gpu.dev >= 0]
    if len(set(devs)) == len(gpus):
        return devs
    if devs:
        notes.append("dev is not there or not unique: GPUs are numbered in document order")
    elif gpus:
        notes.append("the file does not number the GPUs: document order")
    return list(range(len(gpus)))


def _number(element: Element, name: str, *, source: SourceText) -> int | None:
    text = element.facts.get(name)
    if text is None or not text.strip():
        return None
    if not re.fullmatch(r"-?[0-9]{1,12}", text.strip()):
        place = f"line {element.line}, <{element.tag}> {name}"
        raise source.refusal(place, saw=text, wanted="a whole number")
    return int(text)
