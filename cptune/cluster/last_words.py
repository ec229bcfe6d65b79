"""What a process of a rank wrote to its standard error before it ended, wherever it ran.

Ray keeps that in a file of the node. When a library ends a process, as torch does when a collective
of NCCL is late, this is the only place that tells why.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_TAIL_BYTES = 64 << 10
_READ_S = 10.0


def own_stderr() -> str | None:
    """The file that standard error of this process goes to; None where that is no file."""
    with suppress(OSError):
        path = Path("/proc/self/fd/2").readlink()
        if path.is_file():
            return str(path)
    return None


def last_words(node_id: str, path: str | None) -> str:
    """The end of a file of a node; empty where there is none, or the node does not answer."""
    if path is None:
        return ""
    if node_id == ray.get_runtime_context().get_node_id():
        return tail(path)
    look = ray.remote(num_cpus=0, max_retries=0)(tail)
    near = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    try:
        return ray.get(look.options(scheduling_strategy=near).remote(path), timeout=_READ_S)
    except ray.exceptions.RayError:
        return ""


def tail(path: str) -> str:
    """The last bytes of a text; empty where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
