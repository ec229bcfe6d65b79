"""A cluster ready for trials: connected, inventoried, and its gang started."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from cptune.cluster.connection import LOCAL, RayNode, connected
from cptune.cluster.gang import Gang
from cptune.cluster.gang_calls import RunOnGang
from cptune.cluster.inventory import cpu_devices, discover_cluster
from cptune.cluster.ray_launcher import RayLauncher
from cptune.cluster.seats import CpuSeats, GpuSeats
from cptune.domain.devices import DeviceKind, gpu_devices, kind_of_trials
from cptune.domain.study import SweepSpec
from cptune.errors import ClusterError
from topology.discover import discover
from topology.nouns import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What the sweep needs of a cluster."""

    launcher: RayLauncher
    capacity_bytes: int
    gang: Gang


@contextmanager
def joined_cluster(address: str, *, ranks: int) -> Generator[tuple[list[RayNode], Topology]]:
    """Connect and take the inventory of all nodes.

    Raises:
        ClusterError: when the cluster cannot be reached or does not answer.
    """
    here = discover() if address == LOCAL else None
    gpus = None if here is None else sum(len(node.gpus) for node in here.nodes)
    with connected(address, cpus=ranks, gpus=gpus) as nodes:
        if not nodes:
            raise ClusterError(f"Ray at {address} has no living node that offers CPUs or GPUs")
        yield nodes, here or discover_cluster(nodes)


@contextmanager
def ready_for_trials(
    spec: SweepSpec, *, nodes: list[RayNode], topology: Topology, lengths: Sequence[int] = ()
) -> Generator[Ready]:
    """Start one actor a device for the resolved spec; all are gone afterwards.

    Documents, where the mask knows them, are drawn from `lengths`.

    Raises:
        ClusterError: when the actors cannot be placed.
    """
    assert spec.cluster.world_size is not None, "the spec is resolved"
    world_size = spec.cluster.world_size
    on_gpus = kind_of_trials(spec.cluster, topology) is DeviceKind.CUDA
    devices = (gpu_devices if on_gpus else cpu_devices)(topology, world_size=world_size)
    sizes = [device.memory_bytes for device in devices if device.memory_bytes is not None]
    capacity = spec.cluster.device_memory_bytes or min(sizes, default=0)
    if capacity == 0:
        raise ClusterError(
            "the memory of the devices is not known",
            hint="set cluster.device_memory_bytes in the spec",
        )
    used = {device.node for device in devices}
    held = [node for node, one in zip(nodes, topology.nodes, strict=True) if one.name in used]
    per_node = max(1, len(devices) // len(topology.nodes))
    gang = Gang(
        devices,
        nodes=held,
        threads=max(1, (os.cpu_count() or 1) // per_node),
        seats=GpuSeats() if on_gpus else CpuSeats(),
    )
    try:
        gang.start()
        launcher = RayLauncher(
            gang, devices=devices, spec=spec, capacity_bytes=capacity, lengths=lengths
        )
        yield Ready(launcher=launcher, capacity_bytes=capacity, gang=gang)
    finally:
        gang.close()


@contextmanager
def ready_for_calls(
    *, nodes: list[RayNode], topology: Topology, ranks: int
) -> Generator[RunOnGang]:
    """Start so many actors on the host processors, spread evenly; all are gone afterwards.

    Raises:
        ClusterError: when the actors cannot be placed.
    """
    devices = cpu_devices(topology, world_size=ranks)
    used = {device.node for device in devices}
    held = [node for node, name in zip(nodes, topology.nodes, strict=True) if name.name in used]
    with closing(Gang(devices, nodes=held, threads=1)) as gang:
        gang.start()
        yield RunOnGang(gang)
