"""Memory of a GPU: peaks by phase from torch's allocator, and what is said when it has none left.

The tensors are watched as on the CPU, in the warm-up and the traced step alone, for what the peak
is made of. The timed steps run without, and their peaks are the allocator's all the same.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from cptune.bench.job import DeviceError, DeviceMemoryError, MemoryBudgetExceededError
from cptune.bench.memory import Peaks, TensorBudget
from cptune.bench.parts import Part
from cptune.bench.shortage import AllocatorState, read_message, shortage_of
from cptune.domain.memory import MemorySplit
from cptune.domain.units import bytes_text

_SET_UP = "set-up"


class DeviceBudget(TensorBudget):
    """Tensors of a GPU by what they are for; peaks from the allocator, which holds the limit.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(sys.maxsize)
        self._device = device
        self._current = _SET_UP
        self._counts = True
        #: Most bytes in tensors, and most bytes held, of each phase.
        self._allocated: defaultdict[str, int] = defaultdict(int)
        self._reserved_bytes = 0

    def restart_peaks(self) -> None:
        """Count from here on."""
        self._allocated.clear()
        self._reserved_bytes = 0
        torch.cuda.reset_peak_memory_stats(self._device)

    @contextmanager
    def phase(self, name: str, *, keeps: Part | None = None) -> Generator[None]:
        """As TensorBudget.phase, and the allocator's peak of what runs inside."""
        before = self._enter(name)
        try:
            with super().phase(name, keeps=keeps):
                yield
        finally:
            self._enter(before)

    def peaks(self) -> Peaks:
        """The allocator's."""
        self._enter(self._current)
        return Peaks(
            forward_bytes=self._allocated["forward"],
            backward_bytes=self._allocated["backward"],
            allocated_bytes=max(self._allocated.values()),
            reserved_bytes=self._reserved_bytes,
        )

    def split(self) -> MemorySplit:
        """What the highest peak of the watched steps was made of, up to the allocator's peak.

        What the allocator saw beyond the tensors is scratch memory of operators, workspaces of
        libraries and its own rounding: transient.
        """
        parts, peaks = super().split(), self.peaks()
        scratch = max(0, peaks.allocated_bytes - parts.peak_bytes)
        return replace(
            parts,
            transient_bytes=parts.transient_bytes + scratch,
            optimizer_peak_bytes=self._allocated["optimizer"],
        )

    @contextmanager
    def uncounted(self) -> Generator[None]:
        """As TensorBudget.uncounted; the allocator's peaks are left out too."""
        self._enter(self._current)
        self._counts = False
        try:
            with super().uncounted():
                yield
        finally:
            torch.cuda.reset_peak_memory_stats(self._device)
            self._counts = True

    def _enter(self, name: str) -> str:
        """Credit the peak since the last change to its phase; returns that phase."""
        if self._counts:
            stats = torch.cuda.memory_stats_as_nested_dict(self._device)
            peak = stats["allocated_bytes"]["all"]["peak"]
            self._allocated[self._current] = max(self._allocated[self._current], peak)
            self._reserved_bytes = max(self._reserved_bytes, stats["reserved_bytes"]["all"]["peak"])
            torch.cuda.reset_peak_memory_stats(self._device)
        before, self._current = self._current, name
        return before

    def _count(self, tensor: torch.Tensor) -> None:
        if tensor.device == self._device:
            super()._count(tensor)


def limit_memory(device: torch.device, capacity_bytes: int) -> None:
    """Let the allocator of this process have so many bytes; all, where that is what there is.

    The driver counts a little that CUDA does not give out: a capacity above what CUDA has, as the
    whole of the device is, is no limit.
    """
    total = torch.cuda.get_device_properties(device).total_memory
    if capacity_bytes <= 0:
        raise DeviceError(f"a rank may have {capacity_bytes} bytes; wanted more than 0")
    torch.cuda.set_per_process_memory_fraction(min(1.0, capacity_bytes / total), device)


@contextmanager
def typed_shortage(device: torch.device) -> Generator[None]:
    """Memory of the device that runs out inside is an error with its sizes.

    Raises:
        DeviceMemoryError: naming what was asked, free and short, as far as torch tells it.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as exc:
        if isinstance(exc, MemoryBudgetExceededError):
            raise
        # DTensor re-raises what an operator raised as a RuntimeError of its own.
        told = next((one for one in _chain(exc) if _is_shortage(one)), None)
        if told is None:
            raise
        raise _error(told, device) from exc


def _is_shortage(exc: BaseException) -> bool:
    return isinstance(exc, torch.cuda.OutOfMemoryError) or (
        isinstance(exc, RuntimeError)
        and any(word in str(exc) for word in ("out of memory", "ALLOC_FAILED"))
    )


def _error(exc: BaseException, device: torch.device) -> DeviceMemoryError:
    state = _completed(read_message(str(exc)), device)
    shortage = shortage_of(state)
    if shortage is None:
        lines = str(exc).splitlines() or [type(exc).__name__]
        return DeviceMemoryError(f"out of memory on {device}: {lines[0]}", None)
    capacity = state.capacity_bytes
    of = "" if capacity is None else f" of {bytes_text(capacity)}"
    return DeviceMemoryError(
        f"out of memory on {device}: asked {bytes_text(shortage.asked_bytes)}, "
        f"{bytes_text(shortage.free_bytes)}{of} free",
        shortage,
    )


def _completed(state: AllocatorState, device: torch.device) -> AllocatorState:
    """What the message left out, from the driver and the allocator as they are now."""
    if state.free_bytes is not None and state.unused_bytes is not None:
        return state
    free, total = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return replace(
        state,
        free_bytes=free if state.free_bytes is None else state.free_bytes,
        total_bytes=total if state.total_bytes is None else state.total_bytes,
        unused_bytes=held if state.unused_bytes is None else state.unused_bytes,
    )


def _chain(exc: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = exc
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__
