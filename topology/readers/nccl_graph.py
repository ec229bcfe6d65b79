"""NCCL's graph dump (NCCL_DEBUG_SUBSYS=GRAPH): the tree of a system, and tables of paths."""

import re
from dataclasses import dataclass, field

from topology.nouns import LinkKind
from topology.readers.pci_tree import Place, tree_distance

_PATH_LINE = re.compile(r"(GPU|NET)/([0-9A-Fa-f-]+)\s*:\s*((?:[A-Z]+/\S+ \([^)]*\)\s*)+)")
_PATH = re.compile(r"(GPU|NET)/([0-9A-Fa-f-]+) \((\d+)/([0-9.]+)/([A-Z0-9]+)\)")
_ROOT = re.compile(r"CPU/([0-9A-Fa-f-]+)(?: \([^)]*\))?\s*$")
_BRANCH = re.compile(
    r"(\s*)\+ ([A-Z0-9]+)\[([0-9.]+)\] - ([A-Z]+)/([0-9A-Fa-f-]+)(?: \(([^)]*)\))?\s*$"
)
_KINDS = {
    "NVL": LinkKind.NVLINK,
    "PIX": LinkKind.PIX,
    "PXB": LinkKind.PXB,
    "PHB": LinkKind.PHB,
    "SYS": LinkKind.SYS,
    "NODE": LinkKind.NODE,
}
_GIGA = 1e9
_CPU_DIGITS = 4  # an unknown NUMA node is printed as ffffffffffffffff
_LEAST_PCI = 1.0  # GB/s; below it a bridge lies about its width or speed


@dataclass(frozen=True, slots=True)
class Path:
    """One path as NCCL classes it."""

    kind: str
    bytes_per_s: float | None = None


@dataclass(slots=True)
class Graph:
    """What the dumps of one host tell."""

    listed: list[str] = field(default_factory=list)  # buses of GPUs in tables of paths
    drawn: list[str] = field(default_factory=list)  # buses of GPUs in trees
    nets: dict[str, float | None] = field(default_factory=dict)  # NET/0 -> bytes/s
    numa: dict[str, int] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)  # bus or NET/0 -> where
    paths: dict[tuple[str, str], set[Path]] = field(default_factory=dict)
    switched: dict[str, float] = field(default_factory=dict)  # bus -> GB/s into NVSwitch
    notes: list[str] = field(default_factory=list)
    stacks: dict[str, list[tuple[int, str]]] = field(default_factory=dict)  # thread -> open tree
    cpus: dict[str, int] = field(default_factory=dict)

    @property
    def gpus(self) -> list[str]:
        """Buses as paths list them, which is NCCL's own order, then as trees draw them."""
        return list(dict.fromkeys([*self.listed, *self.drawn]))

    def link(self, a: str, b: str) -> tuple[LinkKind | None, float | None, str]:
        """How two GPUs are joined, bytes/s, and what is odd about it."""
        told = self.paths.get((a, b), set()) | self.paths.get((b, a), set())
        kinds = {path.kind for path in told}
        if len(kinds) > 1:
            return None, None, f"paths disagree ({', '.join(sorted(kinds))})"
        speeds = [path.bytes_per_s for path in told if path.bytes_per_s is not None]
        if kinds:
            kind = kinds.pop()
            odd = "" if kind in _KINDS else f"NCCL calls the path {kind}: not one of our kinds"
            return _KINDS.get(kind), min(speeds, default=None), odd
        if a in self.switched and b in self.switched:
            speed = min(self.switched[a], self.switched[b]) * _GIGA
            return LinkKind.NVLINK, speed or None, ""
        return None, None, ""

    def near(self, bus: str, net: str) -> LinkKind | None:
        """How far a NIC is from a GPU."""
        told = self.paths.get((bus, net), set()) | self.paths.get((net, bus), set())
        kinds = {path.kind for path in told}
        if len(kinds) == 1:
            return _KINDS.get(kinds.pop())
        if not kinds and bus in self.places and net in self.places:
            return tree_distance(self.places[bus], self.places[net])
        return None


def add_path_line(graph: Graph, text: str) -> bool:
    """Read `GPU/5000 :GPU/0-4000 (2/370.8/NVL) ...`; False if the line is none."""
    match = _PATH_LINE.match(text)
    if match is None:
        return False
    found = _PATH.findall(match.group(3))
    ends = [_known(graph, kind, word, order=graph.listed) for kind, word, *_ in found]
    start = _known(graph, match.group(1), match.group(2), order=graph.listed)
    for end, (_kind, _word, _hops, speed, path) in zip(ends, found, strict=True):
        if start is None or end is None or start == end:
            continue
        rate = float(speed) * _GIGA
        graph.paths.setdefault((start, end), set()).add(Path(path, rate if rate > 0 else None))
    return True


def add_tree_line(graph: Graph, text: str, *, thread: str) -> None:
    """Read one line of the tree a thread prints: a CPU at the margin, branches below it."""
    if root := _ROOT.match(text):
        graph.stacks[thread] = [(-1, f"CPU/{root.group(1)}")]
        return
    match = _BRANCH.match(text)
    if match is None:
        return
    depth, kind, speed, what, word, _rank = match.groups()
    stack = graph.stacks.setdefault(thread, [])
    while stack and stack[-1][0] >= len(depth):
        stack.pop()
    if kind == "PCI" and float(speed) < _LEAST_PCI:
        graph.notes.append(f"PCI[{speed}] GB/s to {what}/{word}: implausible, a bridge misreports")
    if what == "NVS" and stack and kind == "NVL" and stack[-1][1].startswith("GPU/"):
        bus = _local(stack[-1][1][4:])
        if bus is not None:
            graph.switched[bus] = float(speed)
    if what in {"GPU", "NET"}:
        _add_device(graph, what, word, speed=float(speed), stack=stack)
    stack.append((len(depth), f"{what}/{word}"))


def _add_device(
    graph: Graph, what: str, word: str, *, speed: float, stack: list[tuple[int, str]]
) -> None:
    name = _known(graph, what, word, order=graph.drawn)
    if name is None:
        return
    if what == "NET" and speed > 0:
        graph.nets[name] = speed * _GIGA
    if not stack or not stack[0][1].startswith("CPU/"):
        return  # the top of this thread's tree was not in the text
    cpu = stack[0][1][4:].rsplit("-", 1)[-1]
    numa = int(cpu, 16) if len(cpu) <= _CPU_DIGITS else None
    switches = tuple(int(_local(n[4:]) or "0", 16) for _, n in stack if n.startswith("PCI/"))
    number = graph.cpus.setdefault(cpu, len(graph.cpus))
    graph.places.setdefault(name, Place(cpu=number, numa_node=numa, switches=switches))
    if what == "GPU" and numa is not None:
        graph.numa.setdefault(name, numa)


def _known(graph: Graph, what: str, word: str, *, order: list[str]) -> str | None:
    """The name we use, listed if new; None for a device of another system."""
    local = _local(word)
    if local is None:
        note = "the graph also holds devices of other hosts, which are left out"
        graph.notes += [] if note in graph.notes else [note]
        return None
    if what == "NET":
        graph.nets.setdefault(f"NET/{local}", None)
        return f"NET/{local}"
    if local not in order:
        order.append(local)
    return local


def _local(word: str) -> str | None:
    """0-68000 and 68000 are 68000; an id of another system than 0 is None."""
    system, _, local = word.lower().rpartition("-")
    return local if system in {"", "0"} and local else None
