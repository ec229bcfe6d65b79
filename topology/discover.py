"""The inventory of this machine: NVML for GPUs, sysfs for NICs and NUMA, one Node out."""

import socket
from pathlib import Path

from topology import host, nvml, sysfs
from topology.errors import TopologyError
from topology.nic_roles import choose_nics, read_roles
from topology.nouns import Gpu, GpuNic, Nic, Node, Topology
from topology.wiring import GpuReading, MachineReading, build_links, fold_notes


def discover(
    *,
    node_name: str | None = None,
    sysfs_root: Path = Path("/sys"),
    proc_root: Path = Path("/proc"),
) -> Topology:
    """Look at this machine.

    Where NVML cannot be used there are no GPUs and a note says why; that is no error. GPUs are all
    that NVML lists, by its index, whatever CUDA_VISIBLE_DEVICES says.

    Args:
        node_name: What to call the node; the host name if None.
        sysfs_root: Where sysfs is mounted.
        proc_root: Where the kernel's tables are, for the default route.

    Returns:
        A topology of one node; its source is "nvml", or "sysfs" where NVML cannot be used.
    """
    source = "nvml"
    try:
        machine = nvml.read_machine()
    except TopologyError as exc:
        source = "sysfs"
        machine = MachineReading(notes=(f"no GPUs listed: {exc}",))
    gpus, gpu_notes = _place_gpus(machine.gpus, root=sysfs_root)
    nics, pairs, nic_notes = _place_nics(gpus, sysfs_root=sysfs_root, proc_root=proc_root)
    switches = _switches(machine.gpus, root=sysfs_root)
    links, link_notes = build_links(machine, switch_bus_ids=switches)
    node = Node(
        name=node_name or socket.gethostname(),
        gpus=tuple(gpus),
        nics=nics,
        gpu_links=tuple(links),
        gpu_nics=pairs,
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
        remarks += [(str(reading.index), odd) for odd in reading.oddities]
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
                pcie=reading.pcie,
                nvlink=reading.ports,
                fabric=reading.fabric,
                c2c=reading.c2c,
                mig_uuids=reading.mig_uuids,
            )
        )
    return gpus, fold_notes("GPU", remarks)


def _place_nics(
    gpus: list[Gpu], *, sysfs_root: Path, proc_root: Path
) -> tuple[tuple[Nic, ...], tuple[GpuNic, ...], list[str]]:
    """The NICs that rings may use, how far each is from each GPU, and notes on all of them."""
    found, notes = sysfs.read_nics(sysfs_root)
    pairs = [_pair(gpu, nic, root=sysfs_root) for gpu in gpus for nic in found]
    roles = read_roles((nic.name for nic in found), sysfs_root=sysfs_root, proc_root=proc_root)
    nics, left_out = choose_nics(found, pairs=pairs, roles=roles)
    names = {nic.name for nic in nics}
    kept = tuple(pair for pair in pairs if pair.nic in names)
    return tuple(nics), kept, [*notes, *left_out]


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
