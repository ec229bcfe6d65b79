"""hwloc XML exports: GPUs, NICs, NUMA nodes, and its matrix of NVLink bandwidths."""

import re
from collections import Counter
from itertools import combinations

from topology.nouns import Gpu, Link, LinkKind, Nic
from topology.readers.reading import Draft, Reading, SourceText
from topology.readers.xml_tree import Element, read_xml
from topology.sysfs import normal_bus_id

_NVML = re.compile(r"nvml([0-9]{1,4})")
_OPENFABRICS = "3"  # osdev_type of hwloc
_MEGA = 1e6
_MOST_OBJECTS = 2048


def read_hwloc(source: SourceText) -> Reading:
    """Read one machine.

    Raises:
        TopologyError: Not well formed, entities, or a matrix that is not square.
    """
    root = read_xml(source, allow_doctype=True)
    draft = Draft()
    gpus: dict[str, int] = {}  # object number -> GPU
    waiting: list[tuple[Element, int | None, str]] = [(root, None, "")]
    while waiting:
        element, numa, bus = waiting.pop()
        if element.tag == "object":
            numa = _numa_node(element, above=numa)
            bus = element.facts.get("pci_busid", bus)
            if element.facts.get("type") == "OSDev":
                _add_device(element, numa=numa, bus=bus, draft=draft, gpus=gpus)
        waiting += [(child, numa, bus) for child in reversed(element.children)]
    for matrix in [*root.every("distances2hetero"), *root.every("distances2")]:
        if matrix.facts.get("name") == "NVLinkBandwidth":
            _add_links(matrix, draft=draft, gpus=gpus, source=source)
    return Reading(source="hwloc", kind="hwloc XML", nodes=(draft.build(source),), named=False)


def _numa_node(element: Element, *, above: int | None) -> int | None:
    """The NUMA node right below an object is that of all that hangs there."""
    found = [c for c in element.children if c.facts.get("type") == "NUMANode"]
    if len(found) != 1:
        return None if found else above
    index = found[0].facts.get("os_index", "")
    return int(index) if index.isdecimal() else None


def _add_device(
    element: Element, *, numa: int | None, bus: str, draft: Draft, gpus: dict[str, int]
) -> None:
    name = element.facts.get("name", "")
    if match := _NVML.fullmatch(name):
        told = {info.facts.get("name"): info.facts.get("value") for info in element.children}
        index = int(match.group(1))
        draft.gpus[index] = Gpu(
            index=index,
            name=told.get("GPUModel"),
            uuid=told.get("NVIDIAUUID"),
            pci_bus_id=normal_bus_id(bus),
            numa_node=numa,
        )
        gpus[element.facts.get("gp_index", "")] = index
    elif element.facts.get("osdev_type") == _OPENFABRICS and name:
        draft.nics[name] = Nic(name=name, pci_bus_id=normal_bus_id(bus), numa_node=numa)


def _add_links(matrix: Element, *, draft: Draft, gpus: dict[str, int], source: SourceText) -> None:
    words = [
        word for child in matrix.children if child.tag == "indexes" for word in child.text.split()
    ]
    values = [
        int(word)
        for child in matrix.children
        if child.tag == "u64values"
        for word in child.text.split()
        if word.isdecimal()
    ]
    size = len(words)
    if size > _MOST_OBJECTS or len(values) != size * size:
        place = f"line {matrix.line}, NVLinkBandwidth"
        raise source.refusal(place, saw=f"{len(values)} values", wanted=f"{size} x {size}")
    who = [gpus.get(word.removeprefix("OSDev:")) for word in words]
    ends = {
        index: Counter({far: values[row * size + far] for far in range(size) if who[far] is None})
        for row, index in enumerate(who)
        if index is not None
    }
    direct = {
        (index, other): values[row * size + column]
        for row, index in enumerate(who)
        for column, other in enumerate(who)
        if index is not None and other is not None
    }
    for a, b in combinations(sorted(ends), 2):
        speed = min(direct[a, b], direct[b, a]) or (ends[a] & ends[b]).total()
        if speed > 0:
            draft.links[a, b] = Link(a=a, b=b, kind=LinkKind.NVLINK, bytes_per_s=speed * _MEGA)
    for index, found in sorted(ends.items()):
        used = [speed for speed in found.values() if speed]
        if used:
            shown = ", ".join(f"{n} x {speed} MB/s" for speed, n in Counter(used).items())
            draft.notes.append(f"GPU {index}: {shown} to NVSwitches")
    draft.notes.append(
        "bytes_per_s is the NVLinkBandwidth matrix of hwloc (through a switch: summed)"
    )
