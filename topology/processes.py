"""Who holds memory of a GPU, by the driver: a process and its bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """One process with a context on a GPU.

    Args:
        pid: As the driver numbers it: that of the host, whatever container the process is in.
        used_bytes: Memory that it holds; None where the driver does not say.
    """

    pid: int
    used_bytes: int | None


def read_rows(rows: Iterable[object]) -> tuple[GpuProcess, ...]:
    """The processes in what `nvmlDeviceGetComputeRunningProcesses` answers."""
    found: list[GpuProcess] = []
    for row in rows:
        pid, used = getattr(row, "pid", None), getattr(row, "usedGpuMemory", None)
        if isinstance(pid, int):
            found.append(GpuProcess(pid=pid, used_bytes=used if isinstance(used, int) else None))
    return tuple(found)
