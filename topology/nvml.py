"""The only importer of pynvml: asks the driver everything and decides nothing.

A call that a driver lacks or refuses is a fact not told (None) with a note, never a crash. pynvml
is imported when NVML is opened, so a machine without it can still read topologies.
"""

import ctypes
import os
from collections.abc import Generator
from contextlib import contextmanager
from itertools import combinations

from topology.driver import NOT_FOUND, NOT_SUPPORTED, Driver
from topology.errors import TopologyError
from topology.fabric import read_fabric
from topology.gpu import C2c, Pcie
from topology.host import WORD_BITS, cpu_list
from topology.nvlink_ports import read_bus_id, read_nvlinks
from topology.processes import GpuProcess, read_rows
from topology.wiring import GpuReading, MachineReading, PairReading

# nvmlGpuP2PCapsIndex_t; pynvml's own name for 0 is a tuple by mistake
_READS, _WRITES, _NVLINK = 0, 1, 2
_ACCESS = {_READS: "peer reads", _WRITES: "peer writes", _NVLINK: "peer access over NVLink"}
_P2P_UNKNOWN = 6
_FIELD_C2C_COUNT = 170  # NVML_FI_DEV_C2C_LINK_COUNT
_FIELD_C2C_SPEED = 172  # NVML_FI_DEV_C2C_LINK_GET_MAX_BW, MB/s, scope is the link
_MEGA = 1e6
_LEAST_WORDS = 16  # room for 1024 CPU numbers, which may have gaps


def read_machine() -> MachineReading:
    """Ask the driver of this machine for its GPUs and their links.

    Raises:
        TopologyError: NVML cannot be used here; the message says why.
    """
    with _opened() as driver:
        version = driver.ask_text("nvmlSystemGetDriverVersion")
        driver.note("driver", "version", "value")
        count = driver.ask_whole("nvmlDeviceGetCount")
        if count is None:
            raise TopologyError(f"NVML does not say how many GPUs there are: {driver.why()}")
        handles: list[object] = []
        for index in range(count):
            handles.append(driver.ask("nvmlDeviceGetHandleByIndex", index))
            driver.note("GPU", str(index), "all facts")
        gpus = tuple(_read_gpu(driver, index=i, handle=handles[i]) for i in range(count))
        pairs = tuple(
            _read_pair(driver, a=a, b=b, handles=(handles[a], handles[b]))
            for a, b in combinations(range(count), 2)
        )
        empty = [] if count else ["NVML lists no GPU"]
        notes = (*empty, *driver.notes())
    return MachineReading(driver_version=version, gpus=gpus, pairs=pairs, notes=notes)


def read_processes(uuid: str) -> tuple[GpuProcess, ...] | None:
    """Ask the driver which processes compute on a GPU; None where it does not tell.

    Args:
        uuid: Of the GPU, as the driver writes it.
    """
    try:
        with _opened() as driver:
            handle = driver.ask("nvmlDeviceGetHandleByUUID", uuid)
            if handle is None:
                return None
            rows = driver.ask("nvmlDeviceGetComputeRunningProcesses", handle)
    except TopologyError:
        return None
    return read_rows(rows) if isinstance(rows, list) else None


def read_uuids() -> dict[int, str]:
    """UUID of each GPU by the driver's number, as far as it tells; empty where NVML is not."""
    try:
        with _opened() as driver:
            handles = {
                index: driver.ask("nvmlDeviceGetHandleByIndex", index)
                for index in range(driver.ask_whole("nvmlDeviceGetCount") or 0)
            }
            uuids = {
                index: driver.ask_text("nvmlDeviceGetUUID", handle)
                for index, handle in handles.items()
                if handle is not None
            }
    except TopologyError:
        return {}
    return {index: uuid for index, uuid in uuids.items() if uuid is not None}


@contextmanager
def _opened() -> Generator[Driver]:
    try:
        import pynvml
    except ImportError as exc:
        raise TopologyError(f"pynvml cannot be imported: {exc}") from exc
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as exc:
        raise TopologyError(f"NVML cannot be opened: {exc}") from exc
    driver = Driver(nvml=pynvml)
    try:
        yield driver
    finally:
        driver.ask("nvmlShutdown")


def _read_gpu(driver: Driver, *, index: int, handle: object) -> GpuReading:
    if handle is None:
        return GpuReading(index=index)
    subject = str(index)

    def text(fact: str, call: str) -> str | None:
        answer = driver.ask_text(call, handle)
        driver.note("GPU", subject, fact)
        return answer

    name = text("name", "nvmlDeviceGetName")
    uuid = text("uuid", "nvmlDeviceGetUUID")
    bus_id = read_bus_id(driver.ask("nvmlDeviceGetPciInfo", handle))
    driver.note("GPU", subject, "PCI address")
    memory = driver.ask("nvmlDeviceGetMemoryInfo", handle)
    driver.note("GPU", subject, "memory")
    capability = driver.ask("nvmlDeviceGetCudaComputeCapability", handle)
    driver.note("GPU", subject, "compute capability")
    mig = _read_mig(driver, subject=subject, handle=handle)
    mig_uuids = _read_mig_uuids(driver, subject=subject, handle=handle) if mig else None
    count, nvlinks = read_nvlinks(driver, subject=subject, handle=handle)
    return GpuReading(
        index=index,
        name=name,
        uuid=uuid,
        pci_bus_id=bus_id,
        memory_bytes=getattr(memory, "total", None) or None,
        cpu_affinity=_read_cpu_affinity(driver, subject=subject, handle=handle),
        mig=mig,
        mig_uuids=mig_uuids,
        compute_capability=".".join(map(str, capability))
        if isinstance(capability, tuple)
        else None,
        nvlinks=nvlinks,
        nvlink_count=count,
        pcie=_read_pcie(driver, subject=subject, handle=handle),
        fabric=read_fabric(driver, subject=subject, handle=handle),
        c2c=_read_c2c(driver, subject=subject, handle=handle),
    )


def _read_cpu_affinity(driver: Driver, *, subject: str, handle: object) -> str | None:
    words = max(_LEAST_WORDS, -(-(os.cpu_count() or 1) // WORD_BITS))
    mask = driver.ask("nvmlDeviceGetCpuAffinity", handle, words)
    driver.note("GPU", subject, "CPU affinity")
    if not isinstance(mask, ctypes.Array):
        return None
    return cpu_list(int(word) for word in mask)


def _read_mig(driver: Driver, *, subject: str, handle: object) -> bool | None:
    modes = driver.ask("nvmlDeviceGetMigMode", handle)  # [current, pending]
    if driver.last_code == NOT_SUPPORTED:
        return False  # nvml.h: the device has no MIG
    driver.note("GPU", subject, "MIG mode")
    return modes[0] == 1 if isinstance(modes, list) else None


def _read_mig_uuids(driver: Driver, *, subject: str, handle: object) -> tuple[str, ...] | None:
    count = driver.ask_whole("nvmlDeviceGetMaxMigDeviceCount", handle)
    driver.note("GPU", subject, "MIG devices")
    if count is None:
        return None
    uuids: list[str] = []
    for slot in range(count):
        device = driver.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
        if driver.last_code == NOT_FOUND:
            continue  # an empty slot
        uuid = None if driver.last_code else driver.ask_text("nvmlDeviceGetUUID", device)
        driver.note("GPU", subject, "MIG devices")
        uuids += [uuid] if uuid is not None else []
    return tuple(uuids)


def _read_pcie(driver: Driver, *, subject: str, handle: object) -> Pcie | None:
    def whole(fact: str, call: str) -> int | None:
        answer = driver.ask_whole(call, handle)
        driver.note("GPU", subject, fact)
        return answer or None  # 0 tells nothing

    link = Pcie(
        generation=whole("PCIe generation", "nvmlDeviceGetMaxPcieLinkGeneration"),
        width=whole("PCIe width", "nvmlDeviceGetMaxPcieLinkWidth"),
        now_generation=whole("PCIe generation now", "nvmlDeviceGetCurrPcieLinkGeneration"),
        now_width=whole("PCIe width now", "nvmlDeviceGetCurrPcieLinkWidth"),
    )
    return None if link == Pcie() else link


def _read_c2c(driver: Driver, *, subject: str, handle: object) -> C2c | None:
    count = driver.ask_field(handle, name=_FIELD_C2C_COUNT)
    driver.note("GPU", subject, "C2C links")
    if not count:
        return None if count is None else C2c(count=0)
    speeds = [driver.ask_field(handle, name=_FIELD_C2C_SPEED, scope=link) for link in range(count)]
    driver.note("GPU", subject, "C2C speed")
    known = [speed for speed in speeds if speed]
    return C2c(count=count, bytes_per_s=min(known) * _MEGA if known else None)


def _read_pair(driver: Driver, *, a: int, b: int, handles: tuple[object, object]) -> PairReading:
    if None in handles:
        return PairReading(a=a, b=b)
    subject = f"{a}-{b}"
    ancestor = driver.ask_whole("nvmlDeviceGetTopologyCommonAncestor", *handles)
    driver.note("GPUs", subject, "PCIe ancestor")
    nvlink = _both_ways(driver, handles=handles, subject=subject, about=(_NVLINK,))
    p2p = _both_ways(driver, handles=handles, subject=subject, about=(_READS, _WRITES))
    return PairReading(a=a, b=b, ancestor=ancestor, nvlink_p2p=nvlink, p2p=p2p)


def _both_ways(
    driver: Driver, *, handles: tuple[object, object], subject: str, about: tuple[int, ...]
) -> bool | None:
    """False if any answer is a refusal of access, else None if any is not told."""
    states: list[int | None] = []
    for question in about:
        for pair in (handles, handles[::-1]):
            status = driver.ask_whole("nvmlDeviceGetP2PStatus", *pair, question)
            states.append(None if status == _P2P_UNKNOWN else status)
            driver.note("GPUs", subject, _ACCESS[question])
    if any(state is not None and state != 0 for state in states):
        return False
    return None if None in states else True
