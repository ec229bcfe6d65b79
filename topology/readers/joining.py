"""What several texts tell about one node, put together; a contradiction is refused."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from typing import TypeVar

from topology.errors import TopologyError
from topology.nouns import Gpu, GpuNic, Link, LinkKind, Nic, Node
from topology.readers import p2p_test
from topology.readers.reading import Reach

_Noun = TypeVar("_Noun", Gpu, Nic, Link)
_Fact = TypeVar("_Fact", int, str)
# May differ, since they change or are named and rounded in several ways: the first one stands,
# of two names the longer
_FREE = frozenset({"name", "bytes_per_s", "speed_bytes_per_s", "pcie", "fabric", "state"})
#: Texts whose rates were measured; such a rate stands above one that is only promised.
MEASURED = frozenset({"nvbandwidth", p2p_test.KIND})


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one text told about a node."""

    file: str
    kind: str  # of the text
    node: Node
    reach: Reach
    lane_bytes_per_s: Mapping[int, float]

    @property
    def uuids(self) -> frozenset[str]:
        """Of the GPUs that have one."""
        return frozenset(gpu.uuid for gpu in self.node.gpus if gpu.uuid is not None)


def join_nodes(parts: Sequence[Part]) -> Node:
    """One node from all that was told about it.

    Raises:
        TopologyError: Two texts say different things; the message names both files.
    """
    whole = _Whole()
    for part in sorted(parts, key=lambda part: part.reach is Reach.PCIE_ONLY):
        whole.add(part)
    rates = {gpu: rate for part in parts for gpu, rate in part.lane_bytes_per_s.items()}
    links = {pair: _rated(link, rates=rates) for pair, link in whole.links.items()}
    notes = [note for part in parts for note in part.node.notes]
    if links != whole.links:
        notes.append("bytes_per_s of NVLinks: their number from the matrix, rate from nvlink -s")
    measured, odd = _measured(parts)
    links |= {pair: replace(links[pair], bytes_per_s=rate) for pair, rate in measured.items()}
    notes += odd
    indices = sorted(whole.gpus)
    return replace(
        parts[0].node,
        gpus=tuple(whole.gpus.values()),
        nics=tuple(whole.nics.values()),
        gpu_links=tuple(links.get((a, b)) or Link(a=a, b=b) for a, b in combinations(indices, 2)),
        gpu_nics=tuple(
            GpuNic(gpu=gpu, nic=nic, kind=whole.near.get((gpu, nic)))
            for gpu in indices
            for nic in whole.nics
        ),
        cpus=_first(part.node.cpus for part in parts),
        memory_bytes=_first(part.node.memory_bytes for part in parts),
        driver_version=_first(part.node.driver_version for part in parts),
        notes=tuple(dict.fromkeys(notes)),
    )


@dataclass(slots=True)
class _Whole:
    """All that was told so far, and by which files."""

    files: list[str] = field(default_factory=list)
    gpus: dict[int, Gpu] = field(default_factory=dict)
    nics: dict[str, Nic] = field(default_factory=dict)
    links: dict[tuple[int, int], Link] = field(default_factory=dict)
    near: dict[tuple[int, str], LinkKind | None] = field(default_factory=dict)

    def add(self, part: Part) -> None:
        """Take in one text; those that hide NVLink come last."""
        where = f"{part.node.name} in {part.file}"
        for gpu in part.node.gpus:
            place = f"{where}: GPU {gpu.index}"
            self.gpus[gpu.index] = self._filled(self.gpus.get(gpu.index), gpu, where=place)
        for nic in part.node.nics:
            place = f"{where}: NIC {nic.name}"
            self.nics[nic.name] = self._filled(self.nics.get(nic.name), nic, where=place)
        for link in part.node.gpu_links:
            pair = (link.a, link.b)
            seen = _hidden(link, before=self.links.get(pair), reach=part.reach)
            place = f"{where}: GPUs {link.a}-{link.b}"
            self.links[pair] = self._filled(self.links.get(pair), seen, where=place)
        for near in part.node.gpu_nics:
            self._place(near, where=where)
        self.files.append(part.file)

    def _filled(self, before: _Noun | None, after: _Noun, *, where: str) -> _Noun:
        """The facts of both; where both tell, they must tell the same."""
        if before is None:
            return after
        told: dict[str, object] = {}
        for fact in fields(after):
            old, new = getattr(before, fact.name), getattr(after, fact.name)
            if old is None:
                told[fact.name] = new
            elif new is not None and fact.name == "name":
                told[fact.name] = max(str(old), str(new), key=lambda name: (len(name), name))
            elif new is not None and new != old and fact.name not in _FREE:
                raise self._contradiction(f"{where}: {fact.name}", new, old)
        build = replace
        return build(before, **told)

    def _place(self, pair: GpuNic, *, where: str) -> None:
        old = self.near.get((pair.gpu, pair.nic))
        if None not in {old, pair.kind} and old != pair.kind:
            what = f"{where}: GPU {pair.gpu} to NIC {pair.nic}"
            raise self._contradiction(what, pair.kind, old)
        self.near[pair.gpu, pair.nic] = old or pair.kind

    def _contradiction(self, what: str, new: object, old: object) -> TopologyError:
        return TopologyError(
            f"{what}: saw {new!s}, wanted {old!s}, as {' and '.join(self.files)} told",
            hint="nodes of one name are one machine; a node without a name is called after its "
            "file, up to the first dot",
        )


def _hidden(link: Link, *, before: Link | None, reach: Reach) -> Link:
    """A PCIe kind is no contradiction to NVLink where NVLink was hidden."""
    known = before is not None and before.kind is not None
    if known and reach is Reach.PCIE_ONLY:
        return replace(link, kind=None, lanes=None)
    return link


def _rated(link: Link, *, rates: Mapping[int, float]) -> Link:
    if link.lanes is None or link.bytes_per_s is not None:
        return link
    if link.a not in rates or link.b not in rates:
        return link
    return replace(link, bytes_per_s=link.lanes * min(rates[link.a], rates[link.b]))


def _measured(parts: Sequence[Part]) -> tuple[dict[tuple[int, int], float], list[str]]:
    """The slowest measured rate of each pair, and a note where measurements differ.

    Which of them comes first must not count: ranks are placed by these.
    """
    told: dict[tuple[int, int], list[float]] = {}
    files: list[str] = []
    for part in parts:
        if part.kind in MEASURED:
            files.append(part.file)
            for link in part.node.gpu_links:
                if link.bytes_per_s is not None:
                    told.setdefault((link.a, link.b), []).append(link.bytes_per_s)
    least = {pair: min(rates) for pair, rates in told.items()}
    worst = max((1 - least[pair] / max(rates) for pair, rates in told.items()), default=0.0)
    if not worst:
        return least, []
    return least, [
        f"{' and '.join(sorted(files))} measured rates that differ by up to {worst:.0%}: the "
        "slower of each pair stands"
    ]


def _first(values: Iterable[_Fact | None]) -> _Fact | None:
    return next((value for value in values if value is not None), None)
