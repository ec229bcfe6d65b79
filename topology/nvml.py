"""The only importer of pynvml: asks the driver everything and decides nothing.

A call that a driver lacks or refuses is a fact not told (None) with a note, never a crash. pynvml
is imported when NVML is opened, so a machine without it can still read topologies.
"""

import ctypes
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from types import ModuleType

from topology.errors import TopologyError
from topology.host import WORD_BITS, cpu_list
from topology.sysfs import normal_bus_id
from topology.wiring import FarEnd, GpuReading, MachineReading, NvlinkEnd, PairReading, fold_notes

_INVALID_ARGUMENT, _NOT_SUPPORTED = 2, 3  # nvmlReturn_t of nvml.h
_NO_SUCH_LINK = (_NOT_SUPPORTED, _INVALID_ARGUMENT)  # what a link beyond the board answers
# nvmlGpuP2PCapsIndex_t; pynvml's own name for 0 is a tuple by mistake
_READS, _WRITES, _NVLINK = 0, 1, 2
_ACCESS = {_READS: "peer reads", _WRITES: "peer writes", _NVLINK: "peer access over NVLink"}
_P2P_UNKNOWN = 6
_CAP_P2P = 0  # NVML_NVLINK_CAP_P2P_SUPPORTED
_FIELD_LINK_COUNT = 91  # NVML_FI_DEV_NVLINK_LINK_COUNT
_FIELD_LINK_STATE = 165  # NVML_FI_DEV_NVLINK_GET_STATE, scope is the link
_FAR_ENDS = {0: FarEnd.GPU, 1: FarEnd.OTHER, 2: FarEnd.SWITCH}
_LEAST_WORDS = 16  # room for 1024 CPU numbers, which may have gaps


@dataclass(slots=True, kw_only=True)
class _Driver:
    """Calls NVML by name; remembers what it would not tell, and why."""

    nvml: ModuleType
    refusals: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    last_code: int = 0  # nvmlReturn_t of the last call

    def ask(self, call: str, *args: object) -> object:
        """The answer, or None where there is none; `last_code` says why."""
        self.last_code = 0
        try:
            return getattr(self.nvml, call)(*args)
        except self.nvml.NVMLError as exc:
            self.last_code = exc.value
        except UnicodeDecodeError:
            self.last_code = self.nvml.NVML_ERROR_UNKNOWN
        return None

    def ask_whole(self, call: str, *args: object) -> int | None:
        """As `ask`, for calls that answer a number."""
        answer = self.ask(call, *args)
        return answer if isinstance(answer, int) else None

    def ask_text(self, call: str, *args: object) -> str | None:
        """As `ask`, for calls that answer text."""
        return str(self.ask(call, *args) or "") or None

    def ask_field(self, handle: object, *, name: int, scope: int = 0) -> int | None:
        """One small number by field id; each field carries a return code of its own."""
        answer = self.ask("nvmlDeviceGetFieldValues", handle, [(name, scope)])
        if not isinstance(answer, ctypes.Array):
            return None
        self.last_code = answer[0].nvmlReturn
        return None if self.last_code else int(answer[0].value.uiVal)

    def note(self, what: str, subject: str, fact: str) -> None:
        """Remember that the last call did not tell `fact`, if so."""
        if self.last_code:
            facts = self.refusals.setdefault((what, subject, self.why()), [])
            facts += [] if fact in facts else [fact]

    def why(self) -> str:
        """The driver's own words for the last refusal."""
        return str(self.nvml.NVMLError(self.last_code))

    def notes(self) -> list[str]:
        """What was refused, folded over GPUs and pairs."""
        folded: list[str] = []
        for kind in dict.fromkeys(what for what, _, _ in self.refusals):
            remarks = [
                (subject, f"{', '.join(facts)} not told (NVML: {why})")
                for (what, subject, why), facts in self.refusals.items()
                if what == kind
            ]
            folded += fold_notes(kind, remarks)
        return folded


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


@contextmanager
def _opened() -> Generator[_Driver]:
    try:
        import pynvml
    except ImportError as exc:
        raise TopologyError(f"pynvml cannot be imported: {exc}") from exc
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as exc:
        raise TopologyError(f"NVML cannot be opened: {exc}") from exc
    driver = _Driver(nvml=pynvml)
    try:
        yield driver
    finally:
        driver.ask("nvmlShutdown")


def _read_gpu(driver: _Driver, *, index: int, handle: object) -> GpuReading:
    if handle is None:
        return GpuReading(index=index)
    subject = str(index)

    def text(fact: str, call: str) -> str | None:
        answer = driver.ask_text(call, handle)
        driver.note("GPU", subject, fact)
        return answer

    name = text("name", "nvmlDeviceGetName")
    uuid = text("uuid", "nvmlDeviceGetUUID")
    bus_id = _bus_id(driver.ask("nvmlDeviceGetPciInfo", handle))
    driver.note("GPU", subject, "PCI address")
    memory = driver.ask("nvmlDeviceGetMemoryInfo", handle)
    driver.note("GPU", subject, "memory")
    capability = driver.ask("nvmlDeviceGetCudaComputeCapability", handle)
    driver.note("GPU", subject, "compute capability")
    return GpuReading(
        index=index,
        name=name,
        uuid=uuid,
        pci_bus_id=bus_id,
        memory_bytes=getattr(memory, "total", None) or None,
        cpu_affinity=_read_cpu_affinity(driver, subject=subject, handle=handle),
        mig=_read_mig(driver, subject=subject, handle=handle),
        compute_capability=".".join(map(str, capability))
        if isinstance(capability, tuple)
        else None,
        nvlinks=_read_nvlinks(driver, subject=subject, handle=handle),
    )


def _read_cpu_affinity(driver: _Driver, *, subject: str, handle: object) -> str | None:
    words = max(_LEAST_WORDS, -(-(os.cpu_count() or 1) // WORD_BITS))
    mask = driver.ask("nvmlDeviceGetCpuAffinity", handle, words)
    driver.note("GPU", subject, "CPU affinity")
    if not isinstance(mask, ctypes.Array):
        return None
    return cpu_list(int(word) for word in mask)


def _read_mig(driver: _Driver, *, subject: str, handle: object) -> bool | None:
    modes = driver.ask("nvmlDeviceGetMigMode", handle)  # [current, pending]
    if driver.last_code == _NOT_SUPPORTED:
        return False  # nvml.h: the device has no MIG
    driver.note("GPU", subject, "MIG mode")
    return modes[0] == 1 if isinstance(modes, list) else None


def _read_nvlinks(driver: _Driver, *, subject: str, handle: object) -> tuple[NvlinkEnd, ...] | None:
    bound = driver.ask_field(handle, name=_FIELD_LINK_COUNT)
    if bound is None:
        bound = int(driver.nvml.NVML_NVLINK_MAX_LINKS)
    ends: list[NvlinkEnd] = []
    for link in range(bound):
        active = driver.ask_whole("nvmlDeviceGetNvLinkState", handle, link)
        if active is None and driver.last_code != _INVALID_ARGUMENT:
            refused = driver.last_code
            active = driver.ask_field(handle, name=_FIELD_LINK_STATE, scope=link)
            driver.last_code = refused if driver.last_code else 0
        if driver.last_code not in (0, *_NO_SUCH_LINK):
            driver.note("GPU", subject, "NVLink state")
            return None
        if active == 1 and _carries_peers(driver, handle=handle, link=link):
            ends.append(_read_end(driver, handle=handle, link=link))
    return tuple(ends)


def _carries_peers(driver: _Driver, *, handle: object, link: int) -> bool:
    """False only where the driver says so: NCCL drops such links too."""
    return driver.ask_whole("nvmlDeviceGetNvLinkCapability", handle, link, _CAP_P2P) != 0


def _read_end(driver: _Driver, *, handle: object, link: int) -> NvlinkEnd:
    kind = driver.ask_whole("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
    remote = driver.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
    far_end = FarEnd.UNKNOWN if kind is None else _FAR_ENDS.get(kind, FarEnd.UNKNOWN)
    return NvlinkEnd(far_end=far_end, bus_id=_bus_id(remote))


def _bus_id(pci: object) -> str | None:
    """In virtual machines the far end's address may be empty or not printable."""
    try:
        return normal_bus_id(str(getattr(pci, "busId", "")))
    except UnicodeDecodeError:
        return None


def _read_pair(driver: _Driver, *, a: int, b: int, handles: tuple[object, object]) -> PairReading:
    if None in handles:
        return PairReading(a=a, b=b)
    subject = f"{a}-{b}"
    ancestor = driver.ask_whole("nvmlDeviceGetTopologyCommonAncestor", *handles)
    driver.note("GPUs", subject, "PCIe ancestor")
    nvlink = _both_ways(driver, handles=handles, subject=subject, about=(_NVLINK,))
    p2p = _both_ways(driver, handles=handles, subject=subject, about=(_READS, _WRITES))
    return PairReading(a=a, b=b, ancestor=ancestor, nvlink_p2p=nvlink, p2p=p2p)


def _both_ways(
    driver: _Driver, *, handles: tuple[object, object], subject: str, about: tuple[int, ...]
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
