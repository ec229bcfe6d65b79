"""Live tensor bytes of a CPU rank, held to a budget, and the process memory beside them.

A dispatch mode sees every tensor that an operator returns, in forward and backward, and counts its
storage until the storage is freed. Scratch memory inside an operator is not seen; the process's
own high-water mark, `peak_reserved_bytes`, holds it.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from cptune.bench.collectives import CutCollectives, TensorCollectives
from cptune.bench.job import MemoryBudgetExceededError

_COLLECTIVES = "_c10d_functional"


class TensorBudget(TorchDispatchMode):
    """Counts live storages, refuses the one that exceeds the capacity, times tensor collectives.

    Active as a context manager around everything a rank does in a trial.

    Args:
        capacity_bytes: Budget of the rank.
    """

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__()
        self.capacity_bytes = capacity_bytes
        self.live_bytes = 0
        self.peak_bytes: dict[str, int] = {}
        #: Seconds inside DTensor's collectives and their waits, since the start.
        self.collective_s = 0.0
        #: Stands between an operator of DTensor's collectives and its call; None: nothing does.
        self.collectives: TensorCollectives | CutCollectives | None = None
        self._phase = "set-up"
        self._storages: dict[int, weakref.ref[Any]] = {}

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Count the peak of what runs inside under this name."""
        before, self._phase = self._phase, name
        self._raise_peak()
        try:
            yield
        finally:
            self._phase = before

    @contextmanager
    def uncounted(self) -> Generator[None]:
        """Active inside, but neither held to the capacity nor raising a peak."""
        capacity_bytes, peak_bytes = self.capacity_bytes, dict(self.peak_bytes)
        self.capacity_bytes = sys.maxsize
        try:
            with self:
                yield
        finally:
            self.capacity_bytes, self.peak_bytes = capacity_bytes, peak_bytes

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run one operator and count what it returned."""
        # Operators on these are made of operators on local tensors, and of waits for them, which
        # come here one by one.
        if any(issubclass(kind, (DTensor, AsyncCollectiveTensor)) for kind in types):
            return NotImplemented
        if getattr(func, "namespace", "") == _COLLECTIVES:
            start = perf_counter()
            run = func if self.collectives is None else self.collectives.around(func)
            out = run(*args, **(kwargs or {}))
            self.collective_s += perf_counter() - start
        else:
            out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor)
        return out

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        identity = storage._cdata
        if identity in self._storages:
            return
        size = storage.nbytes()
        free = self.capacity_bytes - self.live_bytes
        if size > free:
            raise MemoryBudgetExceededError(size, free, self.capacity_bytes, self._phase)

        def forget(_: object) -> None:
            self.live_bytes -= size
            del self._storages[identity]

        self._storages[identity] = weakref.ref(storage, forget)
        self.live_bytes += size
        self._raise_peak()

    def _raise_peak(self) -> None:
        self.peak_bytes[self._phase] = max(self.peak_bytes.get(self._phase, 0), self.live_bytes)


def restart_process_peak() -> None:
    """Start the high-water mark of this process anew (proc(5), clear_refs 5)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def process_peak_bytes() -> int:
    """The high-water mark of this process's resident memory since `restart_process_peak`."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert found, "proc(5) promises VmHWM"
    return int(found.group(1)) * 1024
