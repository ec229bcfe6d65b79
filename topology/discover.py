"""The inventory of this machine: NVML for GPUs, sysfs for NICs and NUMA, one Node out."""

import socket
from pathlib import Path

from topology import host, nvml, sysfs
from topology.errors import TopologyError
from topology.nouns import Gpu, GpuNic, Nic, Node, Topology
from topology.wiring import GpuReading, MachineReading, build_links, fold_notes


def discover(*, node_name: str | None = None, sysfs_root: Path = Path("/sys")) -> Topology:
    """Look at this machine.

    A machine where NVML cannot be used has no GPUs and a note that says why; that is no error.
    GPUs are all that NVML lists, by its index, whatever CUDA_VISIBLE_DEVICES says.

    Args:
        node_name: What to call the node; the host name if None.
        sysfs_root: Where sysfs is mounted.

    Returns:
        A topology of one node; its source is "nvml", or "sysfs" where NVML cannot be used.
    """
    source = "nvml"
    try:
        machine = nvml.read_machine()
    except TopologyError as exc:
        source = "sysfs"
        machine = MachineReading(notes=(f"no GPUs listed: {exc}",))
    nics, nic_notes = sysfs.read_nics(sysfs_root)
    gpus, gpu_notes = _place_gpus(machine.gpus, root=sysfs_root)
    links, link_notes = build_links(
        machine, switch_bus_ids=_switches(machine.gpus, root=sysfs_root)
    )
    node = Node(
        name=node_name or socket.gethostname(),
        gpus=tuple(gpus),
        nics=tuple(nics),
        gpu_links=tuple(links),
        gpu_nics=tuple(_pair(gpu, nic, root=sysfs_root) for gpu in gpus for nic in nics),
        cpus=host.read_cpus(sysfs_root=sysfs_root),
        memory_bytes=host.read_memory_bytes(sysfs_root=sysfs_root),
        driver_version=machine.driver_version,
        notes=(*machine.notes, *gpu_notes, *link_notes, *nic_notes),
    )
    return Topology(source=source, nodes=(node,))


def _place_gpus(readings: tuple[GpuReading, ...], *, root: Path) -> tuple[list[Gpu], list[str]]:
    gpus: list[Gpu] = []
    remarks: list[tuple[str, str]] = []
    for reading in readings:
        bus_id = reading.pci_bus_id
        numa_node = sysfs.read_numa_node(bus_id, root=root)
        if bus_id is not None and sysfs.read_pci_path(bus_id, root=root) is None:
            remarks.append((str(reading.index), f"PCIe path not found in {root}/bus/pci"))
        elif bus_id is not None and numa_node is None:
            remarks.append((str(reading.index), "NUMA node not told by sysfs"))
        gpus.append(
            Gpu(
                index=reading.index,
                name=reading.name,
                uuid=reading.uuid,
                pci_bus_id=bus_id,
                memory_bytes=reading.memory_bytes,
                numa_node=numa_node,
                cpu_affinity=reading.cpu_affinity or sysfs.read_cpu_affinity(bus_id, root=root),
                mig=reading.mig,
            )
        )
    return gpus, fold_notes("GPU", remarks)


def _switches(readings: tuple[GpuReading, ...], *, root: Path) -> frozenset[str]:
    far = {end.bus_id for reading in readings for end in reading.nvlinks or ()}
    return frozenset(bus for bus in far if bus is not None and sysfs.is_switch(bus, root=root))


def _pair(gpu: Gpu, nic: Nic, *, root: Path) -> GpuNic:
    kind = sysfs.distance(
        sysfs.read_pci_path(gpu.pci_bus_id, root=root),
        sysfs.nic_pci_path(nic.name, root=root),
        numa_a=gpu.numa_node,
        numa_b=nic.numa_node,
    )
    return GpuNic(gpu=gpu.index, nic=nic.name, kind=kind)
