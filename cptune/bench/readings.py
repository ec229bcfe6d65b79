"""Readings of the clock of a rank's device, and the time in which its compute stood still.

A process on the CPU reads the host's clock. Work on a GPU is only queued by the host, so there a
reading is an event in the queue, and its time is known once the device has come to it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Protocol

from cptune.domain.timeline import INTERVAL_UNION

#: What `Clock.now` returns; seconds on the CPU, and on a GPU the number of an event.
Reading = float


class Clock(Protocol):
    """Tells when the compute of this rank came to some point. All seconds are of `perf_counter`."""

    @property
    def method(self) -> str:
        """The word for exposed time by its readings."""
        ...

    @property
    def queues_waits(self) -> bool:
        """Whether to wait for a message is queued, too, and does not hold the host."""
        ...

    def restart(self) -> float:
        """Wait for all queued work and forget all readings; returns the time."""
        ...

    def now(self) -> Reading:
        """Mark where the work that is queued on the calling thread's queue ends."""
        ...

    def settle(self) -> float:
        """Wait for all queued work, so that every reading has a time; returns the time."""
        ...

    def seconds(self, reading: Reading) -> float:
        """The time of a reading; call `settle` first."""
        ...

    def beside(self) -> AbstractContextManager[None]:
        """Inside, the calling thread waits and reads beside the compute, and does not hold it."""
        ...

    def hold(self, reading: Reading) -> None:
        """Let what the calling thread queues from now on wait for a reading made beside it."""
        ...


class HostClock:
    """The clock of a process whose work is done when its call returns."""

    method = INTERVAL_UNION
    queues_waits = False

    def __init__(self, tick: Callable[[], float] = perf_counter) -> None:
        self._tick = tick

    def restart(self) -> float:
        """The time."""
        return self._tick()

    def now(self) -> Reading:
        """The time."""
        return self._tick()

    def settle(self) -> float:
        """The time."""
        return self._tick()

    def seconds(self, reading: Reading) -> float:
        """The reading itself."""
        return reading

    def beside(self) -> AbstractContextManager[None]:
        """Nothing: a thread of its own is beside the compute."""
        return nullcontext()

    def hold(self, reading: Reading) -> None:
        """Nothing: who was told of a reading comes after it."""


class Stalls:
    """Seconds in which the compute of a rank stood still, by axis.

    Args:
        clock: Of the device.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spans: list[tuple[str, Reading, Reading]] = []

    @contextmanager
    def standing_still(self, axis: str) -> Generator[None]:
        """Inside, the rank waits for a transfer over that axis."""
        start = self._clock.now()
        try:
            yield
        finally:
            self._spans.append((axis, start, self._clock.now()))

    def forget(self) -> None:
        """Count from here on; needed before a clock restarts."""
        self._spans.clear()

    def seconds(self, axis: str) -> float:
        """The sum since `forget`; call the clock's `settle` first."""
        at = self._clock.seconds
        return sum((at(stop) - at(start) for one, start, stop in self._spans if one == axis), 0.0)
