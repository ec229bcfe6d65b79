"""From an inventory to the rates of its links, and the machine that trials on it run on."""

from __future__ import annotations

from cptune.domain.devices import DeviceKind, kind_of_trials
from cptune.domain.study import ClusterSpec
from cptune.predict.case import Machine
from cptune.predict.facts import GpuFacts, gpu_of_driver, read_gpu
from topology.nouns import LinkKind, Node, Topology

#: What a copy between GPUs reaches without NVLink: PCIe 4 x16, one way.
PCIE_BYTES_PER_S = 25e9
#: 400 Gb/s a GPU, the usual fabric of 8-GPU nodes.
NETWORK_BYTES_PER_S = 50e9
#: gloo between two ranks of one host, each way at once: 32 MB in 75 to 95 ms on two cores.
_LOOPBACK_BYTES_PER_S = 0.4e9


def trial_machine(cluster: ClusterSpec, topology: Topology, *, capacity_bytes: int) -> Machine:
    """What the trials of a resolved spec run on, by the inventory.

    Args:
        cluster: Of the resolved spec.
        topology: The nodes.
        capacity_bytes: Budget of a rank.
    """
    if kind_of_trials(cluster, topology) is DeviceKind.CPU:
        return cpu_machine(cluster, nodes=len(topology.nodes), capacity_bytes=capacity_bytes)
    assert cluster.world_size is not None, "the spec is resolved"
    # Without a table the rates are those of no device in particular, as on the CPU.
    gpu, node_size = found_gpu(topology) or read_gpu("cpu"), smallest_node(topology)
    island, link = island_of(gpu, node_size, topology)
    return Machine(
        gpu=gpu,
        world_size=cluster.world_size,
        node_size=node_size,
        island_size=island,
        island_bytes_per_s=link or PCIE_BYTES_PER_S,
        network_bytes_per_s=cluster.network_bytes_per_s
        or network_of(topology)
        or NETWORK_BYTES_PER_S,
        capacity_bytes=capacity_bytes,
        memory_margin=cluster.memory_margin,
        gather_hops=cluster.gather_hops,
        reduce_hops=cluster.reduce_hops,
    )


def cpu_machine(cluster: ClusterSpec, *, nodes: int, capacity_bytes: int) -> Machine:
    """CPU processes on so many nodes.

    Their rates are those of no processor in particular.
    """
    assert cluster.world_size is not None, "the spec is resolved"
    node_size = max(1, cluster.world_size // nodes)
    return Machine(
        gpu=read_gpu("cpu"),
        world_size=cluster.world_size,
        node_size=node_size,
        island_size=node_size,
        island_bytes_per_s=_LOOPBACK_BYTES_PER_S,
        network_bytes_per_s=cluster.network_bytes_per_s or _LOOPBACK_BYTES_PER_S,
        capacity_bytes=capacity_bytes,
        memory_margin=cluster.memory_margin,
    )


def found_gpu(topology: Topology) -> GpuFacts | None:
    """The facts of the GPU that the nodes have; None where no table knows it."""
    names = (gpu.name for node in topology.nodes for gpu in node.gpus if gpu.name)
    known = gpu_of_driver(next(names, ""))
    return None if known is None else read_gpu(known)


def with_gpus(found: Topology | None) -> list[Node]:
    """The nodes that have GPUs."""
    return [] if found is None else [node for node in found.nodes if node.gpus]


def smallest_node(found: Topology | None) -> int:
    """GPUs of the node that has fewest, of those that have any; 0 where there is none."""
    return min((len(node.gpus) for node in with_gpus(found)), default=0)


def island_of(gpu: GpuFacts, node_size: int, found: Topology | None) -> tuple[int, float]:
    """Size of the smallest island, and what each GPU sends inside it, one way."""
    nodes = with_gpus(found)
    if not nodes:
        size = gpu.domain_size or node_size
        if gpu.nvlink_bytes_per_s:
            return size, gpu.nvlink_bytes_per_s
        return node_size, PCIE_BYTES_PER_S
    size = min(len(island) for node in nodes for island in node.islands)
    rates = [
        link.bytes_per_s
        for node in nodes
        for link in node.gpu_links
        if link.kind is LinkKind.NVLINK and link.bytes_per_s
    ]
    if size == 1:
        return node_size, PCIE_BYTES_PER_S
    return size, min(rates, default=gpu.nvlink_bytes_per_s) or PCIE_BYTES_PER_S


def network_of(found: Topology | None) -> float:
    """NIC bytes per second and GPU, of the node that has least; 0 where it is not known."""
    shares = [
        sum(nic.speed_bytes_per_s or 0.0 for nic in node.nics) / len(node.gpus)
        for node in with_gpus(found)
    ]
    return min(shares, default=0.0)
