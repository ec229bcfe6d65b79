"""What ranks tell each other after a traced step: who was ready last, and when they stood still."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch.distributed as dist

from cptune.bench.clocks import ClockOffset
from cptune.bench.recorder import Recorder, Transfer
from cptune.bench.timeline import Interval, intersection
from cptune.bench.waits import Causes, Standstill, Wait, attribute

#: Partners name a transfer alike: the index-th of its channel.
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Ready:
    """When the last partner of a transfer was ready for it, and which rank that was."""

    at_s: float
    rank: int


def exchange_ready(transfers: Iterable[Transfer], clock: ClockOffset) -> dict[Key, Ready]:
    """The last partner of each transfer, on this rank's clock. Collective over all ranks."""
    own = {_key(one): one.posted_s - clock.offset_s for one in transfers}
    everyone: list[dict[Key, float]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    last: dict[Key, Ready] = {}
    for rank, posted in enumerate(everyone):
        for key, at_s in posted.items():
            if key not in last or last[key].at_s < at_s:
                last[key] = Ready(at_s, rank)
    return {key: Ready(last[key].at_s + clock.offset_s, last[key].rank) for key in own}


def exchange_waits(recorder: Recorder, ready: Mapping[Key, Ready], clock: ClockOffset) -> Causes:
    """The waits of this rank that are communication, on its clock. Collective over all ranks.

    Args:
        recorder: Closed.
        ready: The last partner of each transfer, on this rank's clock.
        clock: Of this rank.
    """
    own = dist.get_rank()
    everyone: list[Standstill] = [Standstill({}, ())] * dist.get_world_size()
    dist.all_gather_object(everyone, standstill(recorder, ready, rank=own, clock=clock))
    found = attribute(everyone)[own]
    return {
        cause: [(a + clock.offset_s, b + clock.offset_s) for a, b in intervals]
        for cause, intervals in found.items()
    }


def standstill(
    recorder: Recorder, ready: Mapping[Key, Ready], *, rank: int, clock: ClockOffset
) -> Standstill:
    """When a rank stood still, on the clock of rank 0."""
    moved = Causes()
    for one in recorder.transfers:
        moved.setdefault((one.axis, one.layer), []).append(moving(one, ready))
    blocked = [interval for _, interval in recorder.blocked]
    waits: list[Wait] = []
    for one, (start_s, stop_s) in recorder.blocked:
        last = ready.get(_key(one))
        if last is not None and last.rank != rank and start_s < last.at_s:
            waits.append(Wait(_shifted((start_s, min(stop_s, last.at_s)), clock), last.rank))
    return Standstill(
        moving={
            cause: [_shifted(one, clock) for one in intersection(blocked, intervals)]
            for cause, intervals in moved.items()
        },
        waits=waits,
    )


def moving(transfer: Transfer, ready: Mapping[Key, Ready]) -> Interval:
    """From when all partners were ready to when it was done."""
    assert transfer.stop_s is not None, "a closed recorder has no open transfer"
    last = ready.get(_key(transfer))
    start_s = transfer.posted_s if last is None else max(transfer.posted_s, last.at_s)
    return min(start_s, transfer.stop_s), transfer.stop_s


def _key(transfer: Transfer) -> Key:
    return transfer.channel, transfer.index


def _shifted(interval: Interval, clock: ClockOffset) -> Interval:
    """On the clock of rank 0."""
    return interval[0] - clock.offset_s, interval[1] - clock.offset_s
