"""Which actor holds which device: CPU processes in the order that they started, GPUs by UUID."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cptune.cluster.connection import RayNode
from cptune.domain.placement import Device
from cptune.errors import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Where an actor came up: its Ray node, its process, and what Ray and the driver call its GPU.

    None: it has no GPU, or the driver does not tell. `environment` are the variables that its
    libraries read, `versions` those of what it runs on, and `stderr` the file of its node that its
    standard error goes to.
    """

    node_id: str
    pid: int
    gpu_id: str | None = None
    gpu_uuid: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    stderr: str | None = None


class Seats(Protocol):
    """How the actors of a node are asked for, and which of its devices each of them holds."""

    def reserved(self, node: RayNode) -> dict[str, float]:
        """Resources of the whole node: a measured node is not shared."""
        ...

    def count(self, devices: Sequence[Device], node: RayNode) -> int:
        """Actors to start on a node for these devices of it."""
        ...

    def options(self, node: RayNode, *, sharing: int) -> dict[str, Any]:
        """Ray's options of one of so many actors."""
        ...

    def match(self, devices: Sequence[Device], seen: Sequence[Seen]) -> list[int]:
        """Of each of a node's devices, the place of its actor.

        Raises:
            ClusterError: when no actor has the device.
        """
        ...


class CpuSeats:
    """One process for each device, and nothing of a GPU."""

    def reserved(self, node: RayNode) -> dict[str, float]:
        """All CPUs."""
        return {"CPU": node.cpus}

    def count(self, devices: Sequence[Device], node: RayNode) -> int:
        """One each."""
        del node
        return len(devices)

    def options(self, node: RayNode, *, sharing: int) -> dict[str, Any]:
        """An equal share of the CPUs."""
        return {"num_cpus": int(node.cpus / sharing * 100) / 100}

    def match(self, devices: Sequence[Device], seen: Sequence[Seen]) -> list[int]:
        """One process is like another."""
        del seen
        return list(range(len(devices)))


class GpuSeats:
    """One process for each GPU of a node, also for those that no rank is on.

    Ray hands out GPUs in an order of its own, so only all of them are sure to hold those wanted.
    """

    def reserved(self, node: RayNode) -> dict[str, float]:
        """All CPUs and GPUs."""
        return {"CPU": node.cpus, "GPU": node.gpus}

    def count(self, devices: Sequence[Device], node: RayNode) -> int:
        """One for each GPU that Ray has there.

        Raises:
            ClusterError: when those are fewer than the ranks need.
        """
        gpus = int(node.gpus)
        if gpus < len(devices):
            raise ClusterError(
                f"Ray has {gpus} GPUs of {devices[0].node}, where the driver has at least "
                f"{len(devices)}; wanted one for each rank",
                hint=f"start Ray there with `ray start --num-gpus={len(devices)}` or more, and "
                "without CUDA_VISIBLE_DEVICES",
            )
        return gpus

    def options(self, node: RayNode, *, sharing: int) -> dict[str, Any]:
        """One GPU, and an equal share of the CPUs."""
        return {"num_gpus": 1, "num_cpus": int(node.cpus / sharing * 100) / 100}

    def match(self, devices: Sequence[Device], seen: Sequence[Seen]) -> list[int]:
        """By UUID, or by the driver's number where a UUID is not known."""
        by_uuid = {one.gpu_uuid: place for place, one in enumerate(seen) if one.gpu_uuid}
        by_id = {one.gpu_id: place for place, one in enumerate(seen) if one.gpu_id}
        found: list[int] = []
        for device in devices:
            place = None if device.uuid is None else by_uuid.get(device.uuid)
            if place is None and (device.uuid is None or not by_uuid):
                place = by_id.get(str(device.index))
            if place is None:
                held = ", ".join(f"{one.gpu_id} ({one.gpu_uuid or 'no UUID'})" for one in seen)
                raise ClusterError(
                    f"no actor of {device.node} has GPU {device.index} "
                    f"({device.uuid or 'no UUID'}); Ray gave them {held or 'none'}",
                    hint="start Ray on the whole node, without CUDA_VISIBLE_DEVICES",
                )
            found.append(place)
        if len(set(found)) < len(found):
            raise ClusterError(f"two devices of {devices[0].node} are held by one actor: {found}")
        return found
