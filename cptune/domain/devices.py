"""What the trials of a sweep run on: the GPUs of the nodes, or CPU processes."""

from __future__ import annotations

from enum import StrEnum

from cptune.domain.placement import Device
from cptune.domain.study import ClusterSpec
from topology.nouns import Topology


class DeviceKind(StrEnum):
    """The word in the `device_kind` column."""

    CPU = "cpu"
    CUDA = "cuda"


def kind_of_trials(cluster: ClusterSpec, topology: Topology) -> DeviceKind:
    """GPUs where there are some, unless the spec says "cpu"."""
    if cluster.gpu == DeviceKind.CPU or not any(node.gpus for node in topology.nodes):
        return DeviceKind.CPU
    return DeviceKind.CUDA


def gpu_devices(topology: Topology, *, world_size: int) -> list[Device]:
    """The first GPUs: node after node, so that the ranks are on as few nodes as can be."""
    found = [
        Device(
            node=node.name,
            kind=DeviceKind.CUDA.value,
            index=gpu.index,
            uuid=gpu.uuid,
            memory_bytes=gpu.memory_bytes,
        )
        for node in topology.nodes
        for gpu in node.gpus
    ]
    return found[:world_size]
