"""Distances between PCI devices in a tree of CPUs and switches, as NCCL draws it."""

from collections.abc import Sequence
from dataclasses import dataclass

from topology.nouns import LinkKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a device hangs."""

    cpu: int  # which CPU of the text
    numa_node: int | None  # None: not told
    switches: tuple[int, ...] = ()  # from the CPU down, each with a number of its own


def tree_distance(a: Place, b: Place) -> LinkKind | None:
    """How far two devices are apart; None where that hangs on something not told.

    A tree of NCCL leaves host bridges out, so all below one CPU count as one bridge (PHB), as
    they do for NCCL.
    """
    if a.cpu != b.cpu:
        if a.numa_node is None or b.numa_node is None:
            return None
        return LinkKind.NODE if a.numa_node == b.numa_node else LinkKind.SYS
    shared = _shared(a.switches, b.switches)
    if shared == 0:
        return LinkKind.PHB
    below = len(a.switches) - shared + len(b.switches) - shared
    return LinkKind.PIX if below == 0 else LinkKind.PXB


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    count = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        count += 1
    return count
