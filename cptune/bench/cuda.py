"""A rank on a GPU: one process, one device, nccl between them.

Work is queued, so its times are those of events in the queue of the compute. Memory is what torch's
caching allocator and the driver say.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter, sleep
from typing import Any

import torch
import torch.distributed as dist

from cptune.bench.cuda_memory import DeviceBudget, limit_memory, typed_shortage
from cptune.bench.device import Around
from cptune.bench.job import DeviceError, DirtyDeviceError, OtherDeviceError
from cptune.bench.memory import TensorBudget
from cptune.bench.readings import Clock, Reading
from cptune.domain.timeline import DEVICE_INTERVALS
from cptune.domain.units import bytes_text
from topology.nvml import read_processes
from topology.processes import GpuProcess

#: Messages and collectives on the host, which carries numbers and objects, and between GPUs.
NCCL = "cpu:gloo,cuda:nccl"
_POLL_S = 0.2

ReadProcesses = Callable[[str], "Sequence[GpuProcess] | None"]


class CudaClock:
    """Readings are events on the current stream of the calling thread, under one base event.

    Args:
        device: The GPU.
        queues_waits: Messages are those of NCCL, whose waits hold a stream and not the host.
    """

    method = DEVICE_INTERVALS

    def __init__(self, device: torch.device, *, queues_waits: bool = True) -> None:
        self._device, self.queues_waits = device, queues_waits
        self._events: list[torch.cuda.Event] = []
        self._lock = threading.Lock()
        self._base: torch.cuda.Event | None = None
        self._base_s = 0.0

    def restart(self) -> float:
        """Wait for the device, forget the events, and make the base event now."""
        torch.cuda.synchronize(self._device)
        with self._lock:
            self._events.clear()
        self._base = _event()
        self._base.synchronize()
        self._base_s = perf_counter()
        return self._base_s

    def now(self) -> Reading:
        """Record an event; returns its number."""
        event = _event()
        with self._lock:
            self._events.append(event)
            return float(len(self._events) - 1)

    def settle(self) -> float:
        """Wait for the device."""
        torch.cuda.synchronize(self._device)
        return perf_counter()

    def seconds(self, reading: Reading) -> float:
        """When the device came to the event."""
        assert self._base is not None, "restart comes before the first reading"
        return self._base_s + self._base.elapsed_time(self._events[int(reading)]) / 1e3

    @contextmanager
    def beside(self) -> Generator[None]:
        """A stream of its own."""
        with torch.cuda.stream(torch.cuda.Stream(self._device)):
            yield

    def hold(self, reading: Reading) -> None:
        """Let the current stream wait for the event."""
        self._events[int(reading)].wait(torch.cuda.current_stream(self._device))


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class CudaDevice:
    """One GPU.

    Args:
        index: As CUDA numbers the visible ones.
        backend: Of the default process group.
        shared: Other ranks of the job are on the same device, as in tests.
        expected_uuid: What it should be; who holds memory of it is looked at before CUDA starts.
        read: Who holds memory of a device, by its UUID; None: the driver does not tell.
        patience_s: How long a process that ended may still be on the device.
    """

    def __init__(
        self,
        index: int = 0,
        *,
        backend: str = NCCL,
        shared: bool = False,
        expected_uuid: str | None = None,
        read: ReadProcesses = read_processes,
        patience_s: float = 10.0,
    ) -> None:
        self._patience_s = patience_s
        self.torch = torch.device("cuda", index)
        self.backend, self._shared, self._read = backend, shared, read
        before = self._pids(expected_uuid)
        self.uuid: str | None = device_uuid(index)
        if self.uuid != expected_uuid:
            before = self._pids(self.uuid)
        make_context(self.torch)
        self._own = _own_pids(self.uuid, before=before, now=self._pids(self.uuid))
        self._compute = torch.cuda.current_stream(self.torch)
        over_nccl = "nccl" in backend
        self.clock: Clock = CudaClock(self.torch, queues_waits=over_nccl)
        self.adamw: Mapping[str, Any] = {"fused": True}
        self.watches_timed_steps = False
        self.host_sees_transfers = False
        self.ends_groups = not over_nccl

    def start_trial(self, capacity_bytes: int) -> TensorBudget:
        """Empty the allocator, limit it and start its peaks anew."""
        self.close_trial()
        self._refuse_neighbours()
        limit_memory(self.torch, capacity_bytes)
        budget = DeviceBudget(self.torch)
        budget.restart_peaks()
        return budget

    def connect(self, group: dist.ProcessGroup) -> None:
        """NCCL does at the first exchange, which then all members must take part in at once.

        A batch of messages between some of them, as of a pipeline or of a mask that leaves a rank
        without partners, would wait for the others for ever.
        """
        dist.all_reduce(torch.zeros(1, device=self.torch), group=group)
        torch.cuda.synchronize(self.torch)

    def used_bytes(self) -> int | None:
        """What the driver says of this process."""
        own = [one.used_bytes for one in self._processes(self.uuid) if one.pid in self._own]
        return own[0] if len(own) == 1 else None

    def is_computing(self) -> bool:
        """Whether the current stream is that of the compute."""
        return torch.cuda.current_stream(self.torch) == self._compute

    @contextmanager
    def seeing_waits(self, around: Around) -> Generator[None]:
        """FSDP2 lets the compute wait by `Stream.wait_event`, and tells nobody."""
        plain = torch.cuda.Stream.wait_event

        def wait_event(stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
            if stream != self._compute:
                return plain(stream, event)
            with around():
                return plain(stream, event)

        streams: Any = torch.cuda.Stream
        streams.wait_event = wait_event
        try:
            yield
        finally:
            streams.wait_event = plain

    def typed_shortage(self) -> AbstractContextManager[None]:
        """As `cuda_memory.typed_shortage`."""
        return typed_shortage(self.torch)

    def close_trial(self) -> None:
        """Give everything that no tensor uses back to the driver."""
        gc.collect()
        torch.cuda.synchronize(self.torch)
        torch._C._cuda_clearCublasWorkspaces()  # or the next trial would start with them
        torch.cuda.empty_cache()

    def _pids(self, uuid: str | None) -> set[int]:
        return {one.pid for one in self._processes(uuid)}

    def _processes(self, uuid: str | None) -> Sequence[GpuProcess]:
        return () if uuid is None else self._read(uuid) or ()

    def _others(self) -> list[GpuProcess]:
        if self._shared:
            return []
        return [one for one in self._processes(self.uuid) if one.pid not in self._own]

    def _refuse_neighbours(self) -> None:
        deadline = perf_counter() + self._patience_s
        while (others := self._others()) and perf_counter() < deadline:
            sleep(_POLL_S)
        if others:
            held = ", ".join(f"process {one.pid} holds {_size(one)}" for one in others)
            raise DirtyDeviceError(f"{self.uuid} is not ours alone: {held}")


def make_context(device: torch.device) -> None:
    """Make the GPU the one of this process, whose context is there afterwards."""
    torch.cuda.set_device(device)
    torch.zeros((), device=device)


#: What the driver calls this process on each GPU, once it was told apart.
_known: dict[str | None, set[int]] = {}


def _own_pids(uuid: str | None, *, before: set[int], now: set[int]) -> set[int]:
    """What the driver calls this process: not our own number, where that is of a container.

    It is who came as the context was made; where it was made before, our number, or whoever is
    there alone.
    """
    new = now - before
    alone = now if len(now) == 1 else set[int]()
    own = {os.getpid()} & now or new or alone
    return _known.setdefault(uuid, own) if own else _known.get(uuid, own)


def _size(one: GpuProcess) -> str:
    return "what the driver does not tell" if one.used_bytes is None else bytes_text(one.used_bytes)


def device_uuid(index: int) -> str:
    """The UUID of a visible GPU, as the driver writes it."""
    text = str(torch.cuda.get_device_properties(index).uuid)
    return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"


_opened: dict[int, CudaDevice] = {}


def open_cuda(*, expected_uuid: str | None) -> CudaDevice:
    """The first visible GPU; the same object for all trials of a process.

    Raises:
        DeviceError: when torch finds none, or another one than expected.
    """
    if not torch.cuda.is_available():
        built = "is built without CUDA" if torch.version.cuda is None else "finds no usable driver"
        raise DeviceError(
            f"no CUDA device for this rank: torch {torch.__version__} {built}; wanted GPU "
            f"{expected_uuid or 'of any UUID'}"
        )
    if 0 not in _opened:
        _opened[0] = CudaDevice(0, expected_uuid=expected_uuid)
    device = _opened[0]
    if expected_uuid is not None and device.uuid != expected_uuid:
        raise OtherDeviceError(f"this rank has GPU {device.uuid}, wanted {expected_uuid}")
    return device
