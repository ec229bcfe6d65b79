"""What torch's CUDA allocator says when it has no memory left, as numbers; made without torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cptune.domain.outcome import MemoryShortage, OomKind

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"(\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB|TiB)"
# CUDACachingAllocator.cpp of torch 1.8 to 2.13: the first form up to 2.0, the second from 2.1 on,
# whose "capacty" lost a letter in 2.1. With a limit of its own the process is told it as "allowed".
_PARTS = {
    "asked": rf"Tried to allocate {_SIZE}",
    "total": rf"(?:total capaci?ty of {_SIZE}|{_SIZE} total capacity)",
    "free": rf"(?:of which {_SIZE} is free|{_SIZE} free)",
    "allowed": rf"{_SIZE} allowed",
    "allocated": rf"(?:allocated memory {_SIZE} is allocated|{_SIZE} already allocated)",
    "unused": rf"{_SIZE} is reserved by PyTorch but unallocated",
    "reserved": rf"{_SIZE} reserved in total",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorState:
    """Bytes at the moment when an allocation failed; None: not told. Rounded as torch prints them.

    Args:
        asked_bytes: Size of the allocation.
        total_bytes: Memory of the device.
        free_bytes: What no process had taken of it.
        allowed_bytes: The limit of this process, where it has one.
        allocated_bytes: In live tensors of this process.
        unused_bytes: What its allocator held and no tensor used.
    """

    asked_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allowed_bytes: int | None = None
    allocated_bytes: int | None = None
    unused_bytes: int | None = None

    @property
    def capacity_bytes(self) -> int | None:
        """The most that this process may have."""
        return self.allowed_bytes or self.total_bytes


def read_message(message: str) -> AllocatorState:
    """What a message of torch.cuda.OutOfMemoryError says."""
    found = {name: _bytes(pattern, message) for name, pattern in _PARTS.items()}
    reserved, allocated = found.pop("reserved"), found["allocated"]
    if found["unused"] is None and reserved is not None and allocated is not None:
        found["unused"] = max(0, reserved - allocated)
    return AllocatorState(**{f"{name}_bytes": size for name, size in found.items()})


def shortage_of(state: AllocatorState) -> MemoryShortage | None:
    """Why the memory ran out; None where the sizes are not known.

    `capacity`: one tensor exceeds all that the process may have. `fragmentation`: free and unused
    bytes together would have held it. `tensor`: one too many.
    """
    asked, capacity = state.asked_bytes, state.capacity_bytes
    if asked is None or state.free_bytes is None:
        return None
    unused = state.unused_bytes or 0
    free = state.free_bytes + unused
    if state.allowed_bytes is not None and state.allocated_bytes is not None:
        free = min(free, max(0, state.allowed_bytes - state.allocated_bytes))
    if capacity is not None and asked > capacity:
        kind = OomKind.CAPACITY
    elif asked <= free:
        # The bytes are there, but in no hole that is large enough.
        kind = OomKind.FRAGMENTATION
    else:
        kind = OomKind.TENSOR
    return MemoryShortage(kind=kind, asked_bytes=asked, free_bytes=free)


def _bytes(pattern: str, message: str) -> int | None:
    match = re.search(pattern, message)
    if match is None:
        return None
    number, unit = (group for group in match.groups() if group is not None)
    return round(float(number) * _UNITS[unit])
