"""Ranks of a context group as threads of one process: the public class over wires of memory.

A message is copied when it is waited for, not when it is posted, so a buffer that is reused too
early is seen; a send is done when its receiver took it.
"""

import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor

from cptune.attention import ContextParallel
from cptune.attention.transport import Transport

PATIENCE_S = 60.0


class MemoryGroup(dist.ProcessGroup):
    """A rank and a size; it carries nothing."""

    def __init__(self, rank: int, size: int, switch: "Switch") -> None:
        super().__init__(rank, size)
        self._rank, self._size, self.switch = rank, size, switch

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


@dataclass
class Switch:
    """Where the messages of all ranks meet; `bytes_moved` by (sender, receiver)."""

    posted: dict[tuple[str, int, int], queue.Queue] = field(
        default_factory=lambda: defaultdict(queue.Queue)
    )
    bytes_moved: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def between(self, kind: str, sender: int, receiver: int) -> queue.Queue:
        with self.lock:
            return self.posted[kind, sender, receiver]


class _Arrival:
    def __init__(self, box: queue.Queue, into: Tensor) -> None:
        self._box, self._into = box, into

    def wait(self) -> None:
        sent, taken = self._box.get(timeout=PATIENCE_S)
        assert sent.shape == self._into.shape or sent.numel() == self._into.numel()
        assert sent.dtype == self._into.dtype
        self._into.copy_(sent.view_as(self._into))
        taken.set()


class _Departure:
    def __init__(self, taken: threading.Event) -> None:
        self._taken = taken

    def wait(self) -> None:
        assert self._taken.wait(PATIENCE_S), "nobody took a message"


@dataclass
class MemoryWire:
    switch: Switch
    kind: str
    rank: int

    def post(self, *, recv, send):
        works: list[Any] = [
            _Arrival(self.switch.between(self.kind, peer, self.rank), into) for peer, into in recv
        ]
        for peer, tensor in send:
            assert tensor.is_contiguous()
            taken = threading.Event()
            self.switch.between(self.kind, self.rank, peer).put((tensor, taken))
            with self.switch.lock:
                self.switch.bytes_moved[self.rank, peer] += tensor.nbytes
            works.append(_Departure(taken))
        return works


class SimulatedContextParallel(ContextParallel):
    """The public class on a MemoryGroup, whose ranks are taken to agree."""

    def _gather(self, mine: object) -> list[object]:
        return [mine]

    def _build_transport(self, group: dist.ProcessGroup | None) -> Transport:
        assert isinstance(group, MemoryGroup)
        wires = (MemoryWire(group.switch, kind, group.rank()) for kind in ("kv", "dkv"))
        return Transport(*wires)


def run_simulated(
    act: Callable[[ContextParallel], Any],
    *,
    cp_size: int,
    made_by: type[ContextParallel] = SimulatedContextParallel,
    switch: Switch | None = None,
    **arguments: Any,
) -> list[Any]:
    """Call `act` with each rank's instance at once; one result a rank."""
    switch = switch or Switch()

    def run(rank: int) -> Any:
        return act(made_by(MemoryGroup(rank, cp_size, switch), **arguments))

    with ThreadPoolExecutor(cp_size) as pool:
        return list(pool.map(run, range(cp_size)))
