"""From what the driver answered to links between GPUs: pure decisions, no calls.

NVLink comes first, the common PCIe ancestor only for the rest: the ancestor is PCIe-only and says
NODE or SYS even between GPUs that share an NVSwitch.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from importlib.resources import files

from topology.gpu import C2c, Fabric, FabricState, Nvlinks, Pcie
from topology.nouns import Link, LinkKind

_ANCESTORS: Mapping[int, LinkKind] = {  # nvmlGpuTopologyLevel_t of nvml.h
    0: LinkKind.PIX,  # both on one board, behind its own PCIe switch
    10: LinkKind.PIX,
    20: LinkKind.PXB,
    30: LinkKind.PHB,
    40: LinkKind.NODE,
    50: LinkKind.SYS,
}


class FarEnd(Enum):
    """What the driver says an NVLink leads to."""

    GPU = auto()
    SWITCH = auto()
    OTHER = auto()  # a CPU
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkEnd:
    """One active NVLink of a GPU."""

    far_end: FarEnd
    bus_id: str | None  # of what it leads to
    version: str | None = None  # as 4.0
    bytes_per_s: float | None = None  # one direction, as the driver tells


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """What the driver told of one GPU; None is not told."""

    index: int
    name: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    memory_bytes: int | None = None
    cpu_affinity: str | None = None
    mig: bool | None = None
    compute_capability: str | None = None  # as 9.0
    nvlinks: tuple[NvlinkEnd, ...] | None = None  # active ones that can carry peer traffic
    nvlink_count: int | None = None  # that the board has
    pcie: Pcie | None = None
    fabric: Fabric | None = None
    c2c: C2c | None = None
    mig_uuids: tuple[str, ...] | None = None

    @property
    def ports(self) -> Nvlinks | None:
        """Its NVLinks in numbers; None where nothing is told of them."""
        if self.nvlinks is None:
            return None if self.nvlink_count is None else Nvlinks(count=self.nvlink_count)
        versions = [end.version for end in self.nvlinks if end.version is not None]
        return Nvlinks(
            count=self.nvlink_count,
            active=len(self.nvlinks),
            version=min(versions, key=float, default=None),
            bytes_per_s=self.lane_bytes_per_s,
        )

    @property
    def oddities(self) -> list[str]:
        """What is less than the GPU could have."""
        odd: list[str] = []
        ports, pcie, fabric = self.ports, self.pcie or Pcie(), self.fabric or Fabric()
        if ports is not None and 0 < (ports.active or 0) < (ports.count or 0):
            odd.append(f"{ports.active} of {ports.count} NVLinks are active")
        if pcie.width is not None and pcie.now_width is not None and pcie.now_width < pcie.width:
            odd.append(f"PCIe has {pcie.now_width} of {pcie.width} lanes now")
        if fabric.state not in (None, FabricState.COMPLETED, FabricState.NOT_SUPPORTED):
            odd.append(f"NVLink fabric is {fabric.state}: in no domain across hosts")
        return odd

    @property
    def lane_bytes_per_s(self) -> float | None:
        """Rate of its slowest active NVLink, as the driver tells; None if any is not told."""
        rates = [end.bytes_per_s for end in self.nvlinks or ()]
        known = [rate for rate in rates if rate is not None]
        return min(known) if known and len(known) == len(rates) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReading:
    """What the driver told of GPUs a < b."""

    a: int
    b: int
    ancestor: int | None = None  # nvmlGpuTopologyLevel_t
    nvlink_p2p: bool | None = None  # peer access over NVLink, both ways
    p2p: bool | None = None  # peer reads and writes, both ways


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReading:
    """What the driver told of one machine."""

    driver_version: str | None = None
    gpus: tuple[GpuReading, ...] = ()
    pairs: tuple[PairReading, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nvlinks:
    """The NVLinks of one GPU, seen from one possible peer."""

    known: bool
    to_peer: int = 0
    to_switch: int = 0
    unidentified: int = 0

    @property
    def may_reach_anyone(self) -> bool:
        return not self.known or self.to_peer + self.to_switch + self.unidentified > 0


def build_links(
    machine: MachineReading, *, switch_bus_ids: frozenset[str] = frozenset()
) -> tuple[list[Link], list[str]]:
    """Decide how every pair of GPUs is joined.

    Args:
        machine: The driver's answers.
        switch_bus_ids: PCI addresses known to be NVSwitches, for drivers that do not tell.

    Returns:
        (links, notes): every pair once, and what was odd about them.
    """
    gpus = {gpu.index: gpu for gpu in machine.gpus}
    links: list[Link] = []
    oddities: list[tuple[str, str]] = []
    for pair in machine.pairs:
        a, b = gpus[pair.a], gpus[pair.b]
        ends_a = _seen_from(b, gpu=a, switch_bus_ids=switch_bus_ids)
        ends_b = _seen_from(a, gpu=b, switch_bus_ids=switch_bus_ids)
        kind, lanes, odd = _join(ends_a, ends_b, pair=pair)
        oddities += [(f"{pair.a}-{pair.b}", text) for text in odd]
        rate = _rate(a, b, lanes=lanes)
        links.append(
            Link(a=pair.a, b=pair.b, kind=kind, lanes=lanes, bytes_per_s=rate, p2p=pair.p2p)
        )
    return links, fold_notes("GPUs", oddities)


def _rate(a: GpuReading, b: GpuReading, *, lanes: int | None) -> float | None:
    """What the driver tells of both GPUs, else what links of their generation do."""
    told = [rate for rate in (a.lane_bytes_per_s, b.lane_bytes_per_s) if rate is not None]
    if lanes is not None and len(told) > 1:
        return lanes * min(told)
    return nvlink_bytes_per_s(a.compute_capability, b.compute_capability, lanes=lanes)


def nvlink_bytes_per_s(
    capability_a: str | None, capability_b: str | None, *, lanes: int | None
) -> float | None:
    """Rate of `lanes` NVLinks, one direction; the slower GPU decides; None if any is unknown."""
    rates = [_rates().get(capability or "") for capability in (capability_a, capability_b)]
    known = [rate for rate in rates if rate is not None]
    return None if lanes is None or len(known) < len(rates) else lanes * min(known)


def fold_notes(what: str, remarks: Iterable[tuple[str, str]]) -> list[str]:
    """One note for each text, naming all it is about: `GPUs 0-3, 1-3: ...`."""
    subjects: dict[str, list[str]] = {}
    for subject, text in remarks:
        subjects.setdefault(text, []).append(subject)
    return [f"{what} {', '.join(names)}: {text}" for text, names in subjects.items()]


def _seen_from(peer: GpuReading, *, gpu: GpuReading, switch_bus_ids: frozenset[str]) -> _Nvlinks:
    if gpu.nvlinks is None:
        return _Nvlinks(known=False)
    to_peer = to_switch = unidentified = 0
    for end in gpu.nvlinks:
        if end.bus_id is not None and end.bus_id == peer.pci_bus_id:
            to_peer += 1
        elif end.far_end is FarEnd.SWITCH or end.bus_id in switch_bus_ids:
            to_switch += 1
        elif end.far_end is FarEnd.UNKNOWN or (
            end.far_end is FarEnd.GPU and None in (end.bus_id, peer.pci_bus_id)
        ):
            unidentified += 1
    return _Nvlinks(known=True, to_peer=to_peer, to_switch=to_switch, unidentified=unidentified)


def _join(
    a: _Nvlinks, b: _Nvlinks, *, pair: PairReading
) -> tuple[LinkKind | None, int | None, list[str]]:
    if a.to_peer and b.to_peer:
        odd = [] if a.to_peer == b.to_peer else ["the two see different numbers of NVLinks"]
        return LinkKind.NVLINK, min(a.to_peer, b.to_peer), odd
    one_sided = a.known and b.known and (a.to_peer or b.to_peer)
    odd = ["NVLink is seen from one side only"] if one_sided else []
    if a.may_reach_anyone and b.may_reach_anyone:
        return _join_by_p2p(a, b, pair=pair, odd=odd)
    return _pcie(pair), None, odd


def _join_by_p2p(
    a: _Nvlinks, b: _Nvlinks, *, pair: PairReading, odd: list[str]
) -> tuple[LinkKind | None, int | None, list[str]]:
    """Both have links that could meet in a switch: only the driver knows if they do."""
    switched = bool(a.to_switch and b.to_switch)
    if pair.nvlink_p2p:
        if switched and not a.unidentified and not b.unidentified:
            return LinkKind.NVLINK, min(a.to_switch, b.to_switch), odd
        unclear = "peer access over NVLink works, but far ends are not told: lanes unknown"
        return LinkKind.NVLINK, None, [*odd, unclear]
    if pair.nvlink_p2p is None:
        return None, None, [*odd, "NVLinks or peer access over NVLink not told: kind unknown"]
    if switched:
        down = "active links to an NVSwitch but no peer access over NVLink (fabric manager down?)"
        return _pcie(pair), None, [*odd, down]
    return _pcie(pair), None, odd


def _pcie(pair: PairReading) -> LinkKind | None:
    return None if pair.ancestor is None else _ANCESTORS.get(pair.ancestor)


@cache
def _rates() -> Mapping[str, float]:
    table = tomllib.loads(files("topology").joinpath("links.toml").read_text(encoding="utf-8"))
    return {capability: row["bytes_per_s"] for capability, row in table["nvlink"].items()}
