"""What one text told, as nouns, before several texts are put together."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from itertools import combinations
from reprlib import Repr

from topology.errors import TopologyError
from topology.host import WORD_BITS, cpu_list
from topology.nouns import Gpu, GpuNic, Link, LinkKind, Network, Nic, Node

MOST_GPUS = 1024  # of one node; more is a damaged text
_SHORT = Repr()
_SHORT.maxstring = 80
_MASK = re.compile(r"[0-9a-fA-F]{1,8}(,[0-9a-fA-F]{1,8})*")


class Reach(Enum):
    """How much a text can say about the way two GPUs are joined."""

    ALL = auto()
    PCIE_ONLY = auto()  # NVLink is hidden, so NODE may be NVLINK


@dataclass(frozen=True)
class SourceText:
    """A text and what to call it in messages."""

    name: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """The lines without their ends."""
        return self.text.splitlines()

    def refusal(self, place: str, *, saw: object, wanted: str, hint: str = "") -> TopologyError:
        """The error for what cannot be read: file and place, what stands there, what should."""
        shown = _SHORT.repr(saw)
        return TopologyError(f"{self.name}: {place}: saw {shown}, wanted {wanted}", hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one text told."""

    source: str  # for Topology.source
    kind: str  # what the text is, as topo -m
    nodes: tuple[Node, ...] = ()
    network: Network = field(default_factory=Network)
    named: bool = True  # do the nodes have names of their own?
    reach: Reach = Reach.ALL
    lane_bytes_per_s: Mapping[int, float] = field(default_factory=dict)  # GPU -> one NVLink


@dataclass(slots=True, kw_only=True)
class Draft:
    """A node while it is being read; what nobody told stays out."""

    name: str = "node0"
    gpus: dict[int, Gpu] = field(default_factory=dict)
    nics: dict[str, Nic] = field(default_factory=dict)
    links: dict[tuple[int, int], Link] = field(default_factory=dict)  # (a, b), a < b
    near: dict[tuple[int, str], LinkKind | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    driver_version: str | None = None

    def build(self, source: SourceText) -> Node:
        """The node, in which every pair stands once; a pair nobody told of has kind None.

        Raises:
            TopologyError: The facts break a rule of a node.
        """
        if len(self.gpus) > MOST_GPUS:
            wanted = f"at most {MOST_GPUS} in one node"
            raise source.refusal("number of GPUs", saw=len(self.gpus), wanted=wanted)
        try:
            return Node(
                name=self.name,
                gpus=tuple(self.gpus.values()),
                nics=tuple(self.nics.values()),
                gpu_links=tuple(
                    self.links.get((a, b)) or Link(a=a, b=b)
                    for a, b in combinations(sorted(self.gpus), 2)
                ),
                gpu_nics=tuple(
                    GpuNic(gpu=gpu, nic=nic, kind=self.near.get((gpu, nic)))
                    for gpu in sorted(self.gpus)
                    for nic in self.nics
                ),
                driver_version=self.driver_version,
                notes=tuple(dict.fromkeys(self.notes)),
            )
        except ValueError as exc:
            raise TopologyError(f"{source.name}: {exc}") from exc


def affinity_of_mask(text: str) -> str | None:
    """The CPUs of a mask of 32-bit words, highest first, as 0-11,24-35; None if it is no mask."""
    if not _MASK.fullmatch(text.strip()):
        return None
    bits = 0
    for word in text.strip().split(","):
        bits = bits << 32 | int(word, 16)
    words: list[int] = []
    while bits:
        words.append(bits & (1 << WORD_BITS) - 1)
        bits >>= WORD_BITS
    return cpu_list(words)


def spans(numbers: Iterable[int]) -> str:
    """Numbers for people: 0-3, 7."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
