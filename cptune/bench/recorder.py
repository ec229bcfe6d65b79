"""Writes down when each transfer of a step was posted and done, and when the rank stood still.

The one source of truth of a traced step: the attention's wires, the collectives over replicas,
those of DTensor and the pipeline's messages all tell it, and nothing else is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from cptune.bench.timeline import Interval
from cptune.domain.timeline import WORLD, Stamp

_MOST_WATCHED = 64  # messages under way at once whose end is seen at once


class Waitable(Protocol):
    """A message or a collective under way."""

    def wait(self) -> object:
        """Block until it is done."""
        ...


@dataclass(slots=True, kw_only=True)
class Transfer:
    """One message or collective, as this rank saw it; times are of its own clock.

    `channel` and `index` are the same on all partners: the index-th of that channel.
    """

    axis: str
    name: str
    layer: int | None
    bytes: int
    channel: str
    index: int
    posted_s: float
    peer: int | None = None
    stop_s: float | None = None
    stamp: Stamp | None = None

    def end(self, at_s: float, stamp: Stamp) -> None:
        """It is done."""
        self.stop_s, self.stamp = at_s, stamp


@dataclass(frozen=True, slots=True)
class Mark:
    """From here on the rank works on this."""

    at_s: float
    name: str
    layer: int | None


class Recorder:
    """What one rank does in one step. Told by the thread of the step, and by its own watchers.

    Args:
        axes: The axis of each process group, by the group's name.
        clock: Monotonic seconds.
    """

    def __init__(
        self, axes: Mapping[str, str], *, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._axes, self._clock = dict(axes), clock
        self._counts: Counter[str] = Counter()
        self._watchers = ThreadPoolExecutor(_MOST_WATCHED, thread_name_prefix="transfer")
        self.transfers: list[Transfer] = []
        self.blocked: list[tuple[Transfer, Interval]] = []
        self.marks: list[Mark] = []
        self.layer: int | None = None

    def now_s(self) -> float:
        """The clock of everything here."""
        return self._clock()

    def axis_of(self, group_name: str) -> str:
        """The axis of a process group; all ranks where it is of none."""
        return self._axes.get(group_name, WORLD)

    def work_on(self, name: str, layer: int | None) -> None:
        """What follows belongs to a layer, or to none."""
        self.layer = layer
        self.marks.append(Mark(self._clock(), name, layer))

    def post(
        self,
        name: str,
        *,
        axis: str,
        size_bytes: int,
        channel: str,
        peer: int | None = None,
        layer: int | None = None,
    ) -> Transfer:
        """This rank is ready for a transfer; without `layer` it is of the layer worked on."""
        transfer = Transfer(
            axis=axis,
            name=name,
            layer=self.layer if layer is None else layer,
            bytes=size_bytes,
            channel=channel,
            index=self._counts[channel],
            posted_s=self._clock(),
            peer=peer,
        )
        self._counts[channel] += 1
        self.transfers.append(transfer)
        return transfer

    def watch(self, work: Waitable, transfer: Transfer) -> Waitable:
        """Stamp the end of a message when it comes; the step waits for what is returned.

        Gloo's messages have no future (torch 2.13: `Work::getFuture not implemented`), so a thread
        waits for each.
        """

        def see() -> None:
            work.wait()
            transfer.end(self._clock(), Stamp.COMPLETED)

        return _Watched(self, transfer, self._watchers.submit(see))

    @contextmanager
    def standing_still(self, transfer: Transfer) -> Generator[None]:
        """The rank computes nothing inside: it waits for that."""
        start = self._clock()
        try:
            yield
        finally:
            self.blocked.append((transfer, (start, self._clock())))

    @contextmanager
    def collective(
        self, name: str, *, axis: str, group_name: str, size_bytes: int, layer: int | None = None
    ) -> Generator[None]:
        """A blocking collective runs inside."""
        transfer = self.post(
            name, axis=axis, size_bytes=size_bytes, channel=f"{axis} {group_name}", layer=layer
        )
        with self.standing_still(transfer):
            yield
        transfer.end(self._clock(), Stamp.COMPLETED)

    def close(self) -> None:
        """Wait for the watchers.

        Raises:
            RuntimeError: when a transfer has no end: something posted it and told nobody.
        """
        self._watchers.shutdown(wait=True)
        lost = [one for one in self.transfers if one.stop_s is None]
        if lost:
            raise RuntimeError(
                f"{len(lost)} of {len(self.transfers)} transfers were never seen to end; the first "
                f"is {lost[0].name} over {lost[0].axis} in layer {lost[0].layer}"
            )


class _Watched:
    """What the step waits for in place of the work."""

    def __init__(self, recorder: Recorder, transfer: Transfer, seen: Future[None]) -> None:
        self._recorder, self._transfer, self._seen = recorder, transfer, seen

    def wait(self) -> bool:
        """Block until the watcher saw the end, and raise what it met."""
        with self._recorder.standing_still(self._transfer):
            self._seen.result()
        return True
