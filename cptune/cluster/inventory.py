"""The topology of every node of the cluster, and the devices that ranks can be put on."""

from __future__ import annotations

import time
from collections.abc import Sequence

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cptune.cluster.connection import RayNode
from cptune.domain.placement import Device
from cptune.errors import ClusterError
from topology.discover import discover
from topology.merge import join_nodes, least_offset_s
from topology.nouns import Topology

_INVENTORY_S = 60.0
_RANKS_PER_PROCESSOR = 8  # a rank is a process that imports torch


def discover_cluster(nodes: Sequence[RayNode]) -> Topology:
    """Look at every node from a task on it; one topology, nodes in the given order.

    Raises:
        ClusterError: when a node does not answer in time.
        TopologyError: when two nodes report the same GPU.
    """
    look = ray.remote(num_cpus=0, max_retries=0)(_discover_node)
    asked_s = time.time()
    tasks = [
        look.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node.node_id, soft=False)
        ).remote(name)
        for node, name in zip(nodes, unique_names(nodes), strict=True)
    ]
    try:
        parts = ray.get(tasks, timeout=_INVENTORY_S)
    except ray.exceptions.RayError as exc:
        names = ", ".join(node.name for node in nodes)
        raise ClusterError(f"a node of {names} did not give its inventory: {exc}") from exc
    answered_s = time.time()
    return join_nodes(
        [Topology.from_json(part) for part, _ in parts],
        clock_offsets_s=[
            least_offset_s(clock_s, asked_s=asked_s, answered_s=answered_s) for _, clock_s in parts
        ],
    )


def unique_names(nodes: Sequence[RayNode]) -> list[str]:
    """Host names, with a number where several Ray nodes share a host."""
    names = [node.name for node in nodes]
    return [
        name if names.count(name) == 1 else f"{name}#{names[:position].count(name)}"
        for position, name in enumerate(names)
    ]


def most_ranks(topology: Topology) -> int:
    """How many CPU ranks the nodes start in reasonable time, to be asked and not to be timed."""
    return _RANKS_PER_PROCESSOR * sum(node.cpus or 1 for node in topology.nodes)


def cpu_devices(topology: Topology, *, world_size: int) -> list[Device]:
    """CPU ranks, spread evenly over the nodes and contiguous inside each.

    Each owns an equal share of its node's memory.
    """
    count = len(topology.nodes)
    devices: list[Device] = []
    for position, node in enumerate(topology.nodes):
        ranks = world_size // count + (position < world_size % count)
        share = None if node.memory_bytes is None else node.memory_bytes // max(1, ranks)
        devices += [
            Device(node=node.name, kind="cpu", index=index, memory_bytes=share)
            for index in range(ranks)
        ]
    return devices


def _discover_node(name: str) -> tuple[dict[str, object], float]:
    """The inventory of the node that runs this, and its clock."""
    return discover(node_name=name).to_json(), time.time()
