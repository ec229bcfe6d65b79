"""The device that a rank computes on: what a CPU process and a GPU do differently stands here.

Nothing else in `cptune.bench` asks which of the two it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist

from cptune.bench.job import RankJob
from cptune.bench.memory import TensorBudget
from cptune.bench.readings import Clock, HostClock

#: What is put around each wait of the compute for something that runs beside it.
Around = Callable[[], AbstractContextManager[None]]


class RankDevice(Protocol):
    """One rank's device, for the time of one trial or longer."""

    #: Where tensors are made.
    torch: torch.device
    #: Of the default process group, as torch.distributed names it.
    backend: str
    #: Tells when the compute came to some point.
    clock: Clock
    #: How AdamW updates: the switch of torch's that costs no memory here.
    adamw: Mapping[str, Any]
    #: Whether tensors are watched in the timed steps too: what that costs is nothing beside them.
    watches_timed_steps: bool
    #: Whether the host's clock sees how long a message and a tensor-parallel collective take.
    host_sees_transfers: bool
    #: Whether the process groups are ended after a failure: NCCL's may wait for peers for ever.
    ends_groups: bool
    #: As the driver names it; None where it has no such name.
    uuid: str | None

    def start_trial(self, capacity_bytes: int) -> TensorBudget:
        """Hold the rank to so many bytes, start its peaks anew, and return who counts them.

        Raises:
            DirtyDeviceError: when a process that is none of ours has memory of the device.
            DeviceError: when the device cannot hold that many bytes.
        """
        ...

    def connect(self, group: dist.ProcessGroup) -> None:
        """Let a group make its connections now. Collective over the group."""
        ...

    def used_bytes(self) -> int | None:
        """Memory of the device that this process holds, by the driver; None: not known."""
        ...

    def is_computing(self) -> bool:
        """Whether what the calling thread queues now is in line with the compute of the rank."""
        ...

    def seeing_waits(self, around: Around) -> AbstractContextManager[None]:
        """Put `around` each wait of the compute for a stream beside it; FSDP2 has such waits."""
        ...

    def typed_shortage(self) -> AbstractContextManager[None]:
        """Memory that runs out inside is told with its sizes.

        Raises:
            MemoryBudgetExceededError: a budget was exceeded.
            DeviceMemoryError: the allocator of the device had none left.
        """
        ...

    def close_trial(self) -> None:
        """Let go of what the trial left on the device."""
        ...


class CpuDevice:
    """A process on the CPU: work is done when its call returns, and tensors are counted one by one.

    Args:
        backend: Of the default process group.
    """

    def __init__(self, *, backend: str = "gloo") -> None:
        self.torch = torch.device("cpu")
        self.backend = backend
        self.clock: Clock = HostClock()
        self.adamw: Mapping[str, Any] = {"foreach": False}
        self.watches_timed_steps = True
        self.host_sees_transfers = True
        self.ends_groups = True
        self.uuid: str | None = None

    def start_trial(self, capacity_bytes: int) -> TensorBudget:
        """A budget of tensors."""
        budget = TensorBudget(capacity_bytes)
        budget.restart_peaks()
        return budget

    def connect(self, group: dist.ProcessGroup) -> None:
        """Gloo made them with the group."""
        del group

    def used_bytes(self) -> int | None:
        """A process on the CPU has no memory of a device."""
        return None

    def is_computing(self) -> bool:
        """Always."""
        return True

    def seeing_waits(self, around: Around) -> AbstractContextManager[None]:
        """There are none."""
        del around
        return nullcontext()

    def typed_shortage(self) -> AbstractContextManager[None]:
        """The budget does it."""
        return nullcontext()

    def close_trial(self) -> None:
        """Nothing is left."""


#: For whoever trains outside of a trial.
CPU = CpuDevice()


def open_device(job: RankJob) -> RankDevice:
    """The device that a job asks for.

    Raises:
        DeviceError: when there is none.
        OtherDeviceError: when it is another one than the job names.
    """
    if job.device == "cpu":
        return CpuDevice()
    from cptune.bench.cuda import open_cuda  # a CPU rank does without

    return open_cuda(expected_uuid=job.gpu_uuid)
