"""One GPU and its ports: PCIe, NVLink, the fabric across hosts, and the way to a Grace CPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from topology.record import Record, at_least

_PASSING = frozenset({"now_generation", "now_width", "state"})  # change while nothing is rewired


class FabricState(StrEnum):
    """How far a GPU has come in joining the NVLink fabric."""

    NOT_SUPPORTED = "not_supported"
    NOT_STARTED = "not_started"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"  # completed, with an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcie(Record):
    """The PCIe link of a GPU."""

    generation: int | None = None  # the most that GPU and slot can do
    width: int | None = None
    now_generation: int | None = None  # an idle GPU drops to 1
    now_width: int | None = None

    def __post_init__(self) -> None:
        at_least(generation=(self.generation, 1), width=(self.width, 1))
        at_least(now_generation=(self.now_generation, 1), now_width=(self.now_width, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvlinks(Record):
    """The NVLinks of a GPU, whatever they lead to."""

    count: int | None = None  # that the board has
    active: int | None = None  # and can carry peer traffic
    version: str | None = None  # as 4.0; the lowest of the active ones
    bytes_per_s: float | None = None  # of one link, one direction, as the driver tells

    def __post_init__(self) -> None:
        at_least(count=(self.count, 0), active=(self.active, 0))
        at_least(bytes_per_s=(self.bytes_per_s, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric(Record):
    """What joins GPUs of several hosts over NVLink."""

    state: FabricState | None = None
    cluster_uuid: str | None = None  # None also where the driver tells zeros
    clique: int | None = None

    @property
    def domain(self) -> tuple[str, int] | None:
        """Equal for GPUs that reach each other over NVLink; None unless the fabric is up."""
        if self.state is not FabricState.COMPLETED or self.cluster_uuid is None:
            return None
        return None if self.clique is None else (self.cluster_uuid, self.clique)


@dataclass(frozen=True, slots=True, kw_only=True)
class C2c(Record):
    """The links between a GPU and the CPU of its module."""

    count: int | None = None
    bytes_per_s: float | None = None  # of one link

    def __post_init__(self) -> None:
        at_least(count=(self.count, 0), bytes_per_s=(self.bytes_per_s, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Record):
    """One GPU as its source numbers it."""

    optional: ClassVar[tuple[str, ...]] = ("pcie", "nvlink", "fabric", "c2c", "mig_uuids")

    index: int  # the source's own: GPU3 is 3
    name: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None  # as in sysfs: 0000:1b:00.0
    memory_bytes: int | None = None
    numa_node: int | None = None
    cpu_affinity: str | None = None  # as in sysfs: 0-47,96-143
    mig: bool | None = None
    pcie: Pcie | None = None
    nvlink: Nvlinks | None = None
    fabric: Fabric | None = None
    c2c: C2c | None = None
    mig_uuids: tuple[str, ...] | None = None  # of its MIG devices; only where MIG is on

    def __post_init__(self) -> None:
        at_least(index=(self.index, 0), memory_bytes=(self.memory_bytes, 1))
        at_least(numa_node=(self.numa_node, 0))


def lasting_facts(noun: Record) -> dict[str, object]:
    """What identifies a device: optional fields only where told, and nothing that passes."""
    told = noun.to_json()
    kept = {name: value for name, value in told.items() if name not in noun.optional}
    for name in noun.optional:
        value = told[name]
        if isinstance(value, Mapping):
            value = {k: v for k, v in value.items() if k not in _PASSING and v is not None}
        if value and name not in _PASSING:
            kept[name] = value
    return kept
