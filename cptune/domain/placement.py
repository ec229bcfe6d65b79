"""Which device each rank of a candidate runs on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cptune.domain.layout import Coordinates, ParallelLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One thing that can hold a rank. A CPU device is a process, so it has no UUID."""

    node: str
    kind: str  # cpu | cuda
    index: int
    uuid: str | None = None
    memory_bytes: int | None = None

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"{self.node}/{self.kind}{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """One rank, its device and its mesh coordinates."""

    rank: int
    device: Device
    at: Coordinates


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Every rank of a layout, in rank order."""

    ranks: tuple[RankPlace, ...]

    def mesh(self) -> list[dict[str, object]]:
        """Rows of `mesh` in recipe.json: rank, node, gpu_uuid and coordinates."""
        return [
            {
                "rank": place.rank,
                "node": place.device.node,
                "gpu_uuid": place.device.uuid,
                "tp": place.at.tp,
                "cp": place.at.cp,
                "dp": place.at.dp,
                "pp": place.at.pp,
            }
            for place in self.ranks
        ]


def refuse_shared(devices: Sequence[Device]) -> None:
    """Refuse devices of which two are one: the same place, or the same UUID under two names.

    Raises:
        ValueError: naming the device and the two ranks, by their place in the sequence.
    """
    holders: dict[str, int] = {}
    for rank, device in enumerate(devices):
        for name in (device.name, device.uuid):
            if name is not None and (other := holders.setdefault(name, rank)) != rank:
                raise ValueError(
                    f"two ranks would share one device: ranks {other} ({devices[other].name}) and "
                    f"{rank} ({device.name}) are both on {name}"
                )


def place(layout: ParallelLayout, devices: Sequence[Device]) -> Placement:
    """Put rank r on device r of the given order: tp groups on neighbours, cp groups next.

    Raises:
        ValueError: when there are fewer devices than ranks, or one device appears twice.
    """
    if len(devices) < layout.world_size:
        raise ValueError(f"{len(devices)} devices for {layout.world_size} ranks")
    used = devices[: layout.world_size]
    refuse_shared(used)
    return Placement(
        ranks=tuple(
            RankPlace(rank=rank, device=device, at=layout.coordinates(rank))
            for rank, device in enumerate(used)
        )
    )
