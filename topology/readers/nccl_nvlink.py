"""NVLinks in an NCCL topology XML: which GPUs they join, and when none means none."""

import re
from collections import Counter
from dataclasses import dataclass
from itertools import combinations

from topology.nouns import Link, LinkKind
from topology.readers.pci_tree import Place, tree_distance
from topology.readers.reading import SourceText
from topology.readers.xml_tree import Element
from topology.sysfs import normal_bus_id
from topology.wiring import fold_notes

_SWITCH_CLASS = "0x0680"
_MOST_LANES = 256
_NO_NVLINK = "no NVLink in the file, which may mean that it was not written down: kinds unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkGpu:
    """A GPU of the file."""

    element: Element
    place: Place
    bus_id: str
    cpus: str | None
    part: int | None  # which of several GPUs of one PCI device
    dump: bool  # written by NCCL, which had looked for NVLinks
    dev: int | None


@dataclass(slots=True)
class _Ends:
    """Where the NVLinks of one GPU lead."""

    gpus: Counter[str]
    switches: Counter[str]
    odd: list[str]

    @property
    def total(self) -> int:
        return self.gpus.total() + self.switches.total()


def join_gpus(
    gpus: dict[int, NvlinkGpu], *, source: SourceText
) -> tuple[dict[tuple[int, int], Link], list[str]]:
    """How every pair is joined, and what was odd.

    A pair that no NVLink names is joined by PCIe only if NCCL had looked (a dump) and both GPUs
    name as many NVLinks as any GPU of the file; else it is unknown.
    """
    ends = {i: _ends(gpu, known=gpus, source=source) for i, gpu in gpus.items()}
    most = max((found.total for found in ends.values()), default=0)
    whole = {i: gpu.dump and ends[i].total == most and not ends[i].odd for i, gpu in gpus.items()}
    remarks: list[tuple[str, str]] = []
    links: dict[tuple[int, int], Link] = {}
    for a, b in combinations(sorted(gpus), 2):
        links[a, b], odd = _join(a, b, gpus=gpus, ends=ends, whole=whole[a] and whole[b])
        remarks += [(f"{a}-{b}", odd)] if odd else []
    for i, found in ends.items():
        remarks += [(str(i), text) for text in _told(gpus[i], found, most=most)]
    notes: list[str] = []
    if most == 0 and gpus and not all(whole.values()):
        notes.append(_NO_NVLINK)
    elif most == 0 and len(gpus) > 1:
        notes.append("the dump lists no NVLink: GPUs are joined by PCIe")
    return links, notes + fold_notes("GPUs", remarks)


def _told(gpu: NvlinkGpu, found: _Ends, *, most: int) -> list[str]:
    texts = list(found.odd)
    if 0 < found.total < most:
        texts.append(f"names {found.total} NVLinks where others name {most}")
    if gpu.part is not None:
        shared = f"which share {found.total} NVLinks"
        texts.append(f"one of several partitions of GPU {gpu.bus_id}, {shared}")
    if found.switches:
        shown = ", ".join(f"{bus} x{count}" for bus, count in sorted(found.switches.items()))
        texts.append(f"NVLinks to NVSwitches: {shown}")
    return texts


def _ends(gpu: NvlinkGpu, *, known: dict[int, NvlinkGpu], source: SourceText) -> _Ends:
    buses = {other.bus_id for other in known.values()}
    found = _Ends(Counter(), Counter(), [])
    for link in gpu.element.children:
        if link.tag != "nvlink":
            continue
        target = link.facts.get("target", "").strip().lower()
        target = normal_bus_id(target) or target
        count = _count(link, source=source)
        if target == gpu.bus_id:
            found.odd.append(f"NVLink to itself ({target}, count {count}), not used")
        elif link.facts.get("tclass", "").startswith(_SWITCH_CLASS):
            found.switches[target] += count
        elif target in buses:
            found.gpus[target] += count
        else:
            found.odd.append(f"NVLink to {target}, which is not in the file, not used")
    return found


def _count(link: Element, *, source: SourceText) -> int:
    text = link.facts.get("count", "")
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 0 < int(text) <= _MOST_LANES:
        place = f"line {link.line}, <nvlink> count"
        raise source.refusal(place, saw=text, wanted=f"1 to {_MOST_LANES}")
    return int(text)


def _join(
    a: int, b: int, *, gpus: dict[int, NvlinkGpu], ends: dict[int, _Ends], whole: bool
) -> tuple[Link, str]:
    one, other = gpus[a], gpus[b]
    if one.bus_id == other.bus_id:
        return Link(a=a, b=b), "share one PCI device: how they reach each other is not told"
    there, back = ends[a].gpus[other.bus_id], ends[b].gpus[one.bus_id]
    if there and back:
        lanes = min(there, back)
        odd = "" if there == back else f"see {there} and {back} NVLinks, the lower is taken"
        return Link(a=a, b=b, kind=LinkKind.NVLINK, lanes=lanes), odd
    if there or back:
        return Link(a=a, b=b), "NVLink is named from one side only: unknown"
    shared = (ends[a].switches & ends[b].switches).total()
    if shared:
        return Link(a=a, b=b, kind=LinkKind.NVLINK, lanes=shared), ""
    if not whole:
        return Link(a=a, b=b), ""
    return Link(a=a, b=b, kind=tree_distance(one.place, other.place)), ""
