"""What a process may use of the host: CPUs and memory, with control-group limits respected."""

import os
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

WORD_BITS = 64  # of a CPU mask
_KIB = 1024


def read_cpus(*, proc_root: Path = Path("/proc"), sysfs_root: Path = Path("/sys")) -> int:
    """CPUs this process may run on, or the whole CPUs its control group pays for if fewer."""
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
    else:  # macOS
        usable = os.cpu_count() or 1
    quotas = [
        quota
        for folder in _groups("cpu", proc_root=proc_root, sysfs_root=sysfs_root)
        if (quota := _quota(folder)) is not None
    ]
    return max(1, int(min([usable, *quotas])))


def read_memory_bytes(
    *, proc_root: Path = Path("/proc"), sysfs_root: Path = Path("/sys")
) -> int | None:
    """Memory of the host, or the limit of the control group if lower; None if neither is told."""
    limits = [_mem_total(proc_root / "meminfo")]
    for folder in _groups("memory", proc_root=proc_root, sysfs_root=sysfs_root):
        limits += [_whole(folder / "memory.max"), _whole(folder / "memory.limit_in_bytes")]
    return min((limit for limit in limits if limit), default=None)


def cpu_list(mask: Iterable[int]) -> str | None:
    """The CPUs of a mask of 64-bit words, lowest first, as sysfs writes them: 0-47,96-143."""
    cpus = [
        word * WORD_BITS + bit
        for word, bits in enumerate(mask)
        for bit in range(WORD_BITS)
        if bits >> bit & 1
    ]
    spans: list[str] = []
    for _, run in groupby(enumerate(cpus), key=lambda item: item[1] - item[0]):
        members = [cpu for _, cpu in run]
        spans.append(f"{members[0]}-{members[-1]}" if len(members) > 1 else f"{members[0]}")
    return ",".join(spans) or None


def _groups(controller: str, *, proc_root: Path, sysfs_root: Path) -> list[Path]:
    """Folders of this process's control group and all above it, version 2 and 1.

    Inside a container the path may be the host's and not exist; the mount itself then counts.
    """
    folders: list[Path] = []
    for line in (_text(proc_root / "self" / "cgroup") or "").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = sysfs_root / "fs" / "cgroup" / (controllers and controller)
        inner = mount / group.lstrip("/")
        folders += [inner, *(p for p in inner.parents if p.is_relative_to(mount))]
    return folders


def _quota(folder: Path) -> float | None:
    """CPUs worth of time the group may use; None without a limit."""
    text = _text(folder / "cpu.max")
    if text is None:  # version 1 keeps the two numbers in two files
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        text = " ".join(_text(folder / name) or "" for name in names)
    words = text.split()
    if len(words) != 2 or not all(word.isdecimal() for word in words) or words[1] == "0":
        return None
    return int(words[0]) / int(words[1])


def _mem_total(meminfo: Path) -> int | None:
    for line in (_text(meminfo) or "").splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "MemTotal:" and words[1].isdecimal():
            return int(words[1]) * _KIB
    return None


def _whole(path: Path) -> int | None:
    text = _text(path) or ""
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:  # absent
        return None
