"""Writes down when each transfer of a step was posted and done, and when the rank stood still.

The one source of truth of a traced step: the attention's wires, the collectives over replicas,
those of DTensor and the pipeline's messages all tell it, and nothing else is asked.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from cptune.bench.readings import Clock, HostClock, Reading
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

    Until the recorder is closed, they are readings of the clock of its device.

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
        clock: Of the device.
    """

    def __init__(self, axes: Mapping[str, str], *, clock: Clock | None = None) -> None:
        self._axes, self._clock = dict(axes), clock or HostClock()
        self._counts: Counter[str] = Counter()
        self._watchers = ThreadPoolExecutor(_MOST_WATCHED, thread_name_prefix="transfer")
        self.transfers: list[Transfer] = []
        self.blocked: list[tuple[Transfer, Interval]] = []
        self.marks: list[Mark] = []
        self.layer: int | None = None
        self._beside: deque[Transfer] = deque()

    def now(self) -> Reading:
        """The clock of everything here."""
        return self._clock.now()

    @property
    def method(self) -> str:
        """The word for exposed time by what is written down here."""
        return self._clock.method

    def hold(self, reading: Reading) -> None:
        """Let the compute wait for what a watcher saw the end of."""
        self._clock.hold(reading)

    def axis_of(self, group_name: str) -> str:
        """The axis of a process group; all ranks where it is of none."""
        return self._axes.get(group_name, WORLD)

    def work_on(self, name: str, layer: int | None) -> None:
        """What follows belongs to a layer, or to none."""
        self.layer = layer
        self.marks.append(Mark(self._clock.now(), name, layer))

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
            posted_s=self._clock.now(),
            peer=peer,
        )
        self._counts[channel] += 1
        self.transfers.append(transfer)
        return transfer

    def watch(self, work: Waitable, *transfers: Transfer) -> Waitable:
        """Stamp the end of messages when it comes; the step waits for what is returned.

        Gloo's messages have no future (torch 2.13: `Work::getFuture not implemented`), so a thread
        waits for each; where a backend joins several messages to one work, for all of them. A wait
        that is only queued needs no thread, which might come late.
        """

        def see() -> Reading:
            with self._clock.beside():
                work.wait()
                end = self._clock.now()
            for one in transfers:
                one.end(end, Stamp.COMPLETED)
            return end

        if self._clock.queues_waits:
            seen = Future[Reading]()
            seen.set_result(see())
        else:
            seen = self._watchers.submit(see)
        return _Watched(self, transfers[0], seen)

    @contextmanager
    def standing_still(self, transfer: Transfer) -> Generator[None]:
        """The rank computes nothing inside: it waits for that."""
        start = self._clock.now()
        try:
            yield
        finally:
            self.blocked.append((transfer, (start, self._clock.now())))

    @contextmanager
    def collective(
        self,
        name: str,
        *,
        axis: str,
        group_name: str,
        size_bytes: int,
        layer: int | None = None,
        blocks: bool = True,
    ) -> Generator[None]:
        """A collective runs inside; `blocks` False: in a queue beside the compute of the rank."""
        transfer = self.post(
            name, axis=axis, size_bytes=size_bytes, channel=f"{axis} {group_name}", layer=layer
        )
        with self.standing_still(transfer) if blocks else nullcontext():
            yield
        transfer.end(self._clock.now(), Stamp.COMPLETED)
        if not blocks:
            self._beside.append(transfer)

    @contextmanager
    def waiting_beside(self) -> Generator[None]:
        """The compute waits inside for a collective that runs beside it, the oldest of them.

        It may be for one that was waited for already: the last one counts again.
        """
        if len(self._beside) > 1:
            transfer = self._beside.popleft()
        elif self._beside:
            transfer = self._beside[0]
        else:
            yield  # for no collective of ours
            return
        with self.standing_still(transfer):
            yield

    def close(self) -> None:
        """Wait for the watchers, and turn every reading into seconds.

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
        self._clock.settle()
        at = self._clock.seconds
        for one in self.transfers:
            assert one.stop_s is not None, "none is lost"
            one.posted_s, one.stop_s = at(one.posted_s), at(one.stop_s)
        self.blocked = [(one, (at(start), at(stop))) for one, (start, stop) in self.blocked]
        self.marks = [Mark(at(one.at_s), one.name, one.layer) for one in self.marks]


class _Watched:
    """What the step waits for in place of the work."""

    def __init__(self, recorder: Recorder, transfer: Transfer, seen: Future[Reading]) -> None:
        self._recorder, self._transfer, self._seen = recorder, transfer, seen

    def wait(self) -> bool:
        """Block until the watcher saw the end, and raise what it met."""
        with self._recorder.standing_still(self._transfer):
            self._recorder.hold(self._seen.result())
        return True
