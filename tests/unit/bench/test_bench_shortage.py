"""The sizes in torch's message on memory that ran out, in every form that torch printed."""

import pytest

from cptune.bench.shortage import AllocatorState, read_message, shortage_of
from cptune.domain.outcome import OomKind

GIB, MIB = 1 << 30, 1 << 20
SINCE_2_2 = (
    "CUDA out of memory. Tried to allocate 2.03 GiB. GPU 0 has a total capacity of 47.50 GiB of "
    "which 748.56 MiB is free. Process 137263 has 46.77 GiB memory in use. Of the allocated memory "
    "45.13 GiB is allocated by PyTorch, and 1.16 GiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
IN_2_1 = SINCE_2_2.replace("capacity", "capacty")
LIMITED = (
    "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 80.00 GiB of "
    "which 70.00 GiB is free. Including non-PyTorch memory, this process has 4.00 GiB memory in "
    "use. 4.00 GiB allowed; Of the allocated memory 3.50 GiB is allocated by PyTorch, with "
    "1.00 MiB allocated in private pools (e.g., CUDA Graphs), and 256.00 MiB is reserved by "
    "PyTorch but unallocated."
)
BEFORE_2_1 = (
    "CUDA out of memory. Tried to allocate 376.00 MiB (GPU 0; 3.95 GiB total capacity; 1.72 GiB "
    "already allocated; 354.88 MiB free; 2.46 GiB reserved in total by PyTorch)"
)


@pytest.mark.parametrize("message", [SINCE_2_2, IN_2_1])
def test_the_form_of_today(message):
    assert read_message(message) == AllocatorState(
        asked_bytes=round(2.03 * GIB),
        total_bytes=round(47.5 * GIB),
        free_bytes=round(748.56 * MIB),
        allocated_bytes=round(45.13 * GIB),
        unused_bytes=round(1.16 * GIB),
    )


def test_the_form_of_a_process_with_a_limit():
    seen = read_message(LIMITED)

    assert (seen.allowed_bytes, seen.capacity_bytes) == (4 * GIB, 4 * GIB)
    assert seen.allocated_bytes == round(3.5 * GIB)
    assert seen.unused_bytes == 256 * MIB


def test_the_form_before_2_1():
    seen = read_message(BEFORE_2_1)

    assert (seen.asked_bytes, seen.free_bytes) == (376 * MIB, round(354.88 * MIB))
    assert seen.unused_bytes == round(2.46 * GIB) - round(1.72 * GIB)


def test_what_is_not_told_is_not_known():
    assert read_message("CUDA error: out of memory") == AllocatorState()
    assert read_message("Tried to allocate 20 bytes") == AllocatorState(asked_bytes=20)
    assert shortage_of(AllocatorState(asked_bytes=20)) is None


@pytest.mark.parametrize(
    ("state", "kind", "free"),
    [
        ({"asked": 81, "total": 80, "free": 80, "unused": 0}, OomKind.CAPACITY, 80),
        ({"asked": 10, "total": 80, "free": 4, "unused": 5}, OomKind.TENSOR, 9),
        ({"asked": 9, "total": 80, "free": 4, "unused": 5}, OomKind.FRAGMENTATION, 9),
        # A limit counts, not what the device has left beside it.
        (
            {"asked": 9, "total": 80, "free": 60, "unused": 1, "allowed": 20, "allocated": 15},
            OomKind.TENSOR,
            5,
        ),
        (
            {"asked": 21, "total": 80, "free": 60, "unused": 1, "allowed": 20, "allocated": 0},
            OomKind.CAPACITY,
            20,
        ),
    ],
)
def test_why_it_ran_out(state, kind, free):
    found = shortage_of(AllocatorState(**{f"{name}_bytes": size for name, size in state.items()}))

    assert (found.kind, found.free_bytes) == (kind, free)
