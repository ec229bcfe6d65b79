"""What joins the nodes: switches, blocks, NVLink domains, and the speed between them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from topology.record import Record, at_least


class TierKind(StrEnum):
    """What joins the nodes of a tier."""

    SWITCH = "switch"
    BLOCK = "block"
    NVLINK_DOMAIN = "nvlink_domain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier(Record):
    """A switch, block or NVLink domain, and the nodes right below it."""

    name: str
    kind: TierKind
    parent: str | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge(Record):
    """A connection between two nodes or tiers."""

    a: str
    b: str
    bytes_per_s: float | None = None  # one direction

    def __post_init__(self) -> None:
        at_least(bytes_per_s=(self.bytes_per_s, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Network(Record):
    """What is between the nodes, as far as anybody told."""

    optional: ClassVar[tuple[str, ...]] = ("notes",)

    tiers: tuple[Tier, ...] = ()
    edges: tuple[Edge, ...] = ()
    notes: tuple[str, ...] = ()  # what was missing, odd or repaired

    def to_json(self) -> dict[str, object]:
        """As for every record; `notes` only where there are some."""
        shown = Record.to_json(self)
        return shown if self.notes else {key: shown[key] for key in shown if key != "notes"}
