"""How far this rank's monotonic clock is from that of rank 0, with a bound of the error."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
import torch.distributed as dist

_PINGS = 5


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """This clock minus that of rank 0, in seconds, and how wrong that may be."""

    offset_s: float
    error_s: float


def compare_clocks(*, clock_id: str | None = None) -> ClockOffset:
    """Compare this rank's clock with that of rank 0. Collective over all ranks.

    Ranks of one kernel and time namespace read one clock. To the others rank 0 tells its time a few
    times; the shortest round trip counts, and half of it bounds the error (Cristian 1989).

    Args:
        clock_id: Names the clock; that of this kernel where omitted.
    """
    ids: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(ids, _clock_id() if clock_id is None else clock_id)
    own, found = dist.get_rank(), ClockOffset(0.0, 0.0)
    for rank, one in enumerate(ids):
        if one != ids[0] and own in (0, rank):
            seen = _ask(0) if own == rank else _tell(rank)
            found = found if seen is None else seen
    return found


def _clock_id() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespace = ""
    with suppress(OSError):  # a kernel before 5.6 has one for all
        namespace = str(Path("/proc/self/ns/time").readlink())
    return f"{boot} {namespace}"


def _ask(rank: int) -> ClockOffset:
    found: list[tuple[float, float]] = []
    theirs = torch.zeros((), dtype=torch.float64)
    for _ in range(_PINGS):
        start = perf_counter()
        dist.send(theirs, rank)
        dist.recv(theirs, rank)
        stop = perf_counter()
        found.append((stop - start, (start + stop) / 2 - theirs.item()))
    trip_s, offset_s = min(found)
    return ClockOffset(offset_s, trip_s / 2)


def _tell(rank: int) -> None:
    answer = torch.zeros((), dtype=torch.float64)
    for _ in range(_PINGS):
        dist.recv(answer, rank)
        answer.fill_(perf_counter())
        dist.send(answer, rank)
