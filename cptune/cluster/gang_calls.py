"""A function run on every actor of a started gang, and one answer a rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import ray

from cptune.bench.calls import COLLECTIVE_S, RankCall
from cptune.bench.job import GRACE_S, Rendezvous
from cptune.cluster.failures import most_telling
from cptune.cluster.gang import Gang
from cptune.domain.outcome import Failure
from cptune.errors import ClusterError

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class RunOnGang:
    """Runs functions on a started gang; after a failure all its actors are new ones."""

    gang: Gang

    def __call__(
        self, function: Callable[[_Given], _Found], argument: _Given, *, ranks: int
    ) -> list[_Found]:
        """As RunOnRanks."""
        assert ranks == len(self.gang.devices), "a gang has one size"
        try:
            return run_on_gang(self.gang, function, argument)
        except ClusterError:
            self.gang.replace()
            raise


def run_on_gang(gang: Gang, function: Callable[[_Given], _Found], argument: _Given) -> list[_Found]:
    """What each rank of a started gang found, by rank.

    Raises:
        ClusterError: when a rank fails or is late.
    """
    host, port = gang.ready()
    rendezvous = Rendezvous(host=host, port=port, prefix=gang.next_prefix(), timeout_s=COLLECTIVE_S)
    refs = [
        gang.call(
            device,
            RankCall(
                function=function,
                argument=argument,
                rank=rank,
                world_size=len(gang.devices),
                rendezvous=rendezvous,
            ),
        )
        for rank, device in enumerate(gang.devices)
    ]
    waiting = {ref: rank for rank, ref in enumerate(refs)}
    found: dict[int, _Found] = {}
    failures: list[Failure] = []
    deadline = time.monotonic() + COLLECTIVE_S
    while waiting:
        left = max(0.0, deadline - time.monotonic())
        done, _ = ray.wait(list(waiting), num_returns=1, timeout=left)
        if not done:
            break
        rank = waiting.pop(done[0])
        answer = gang.answer(done[0], gang.devices[rank], rank=rank)
        if not isinstance(answer, Failure):
            found[rank] = answer
            continue
        failures.append(answer)
        deadline = min(deadline, time.monotonic() + GRACE_S)
    if failures:
        told = most_telling(failures)
        raise ClusterError(f"rank {told.rank} failed: {told.message}")
    if waiting:
        raise ClusterError(f"rank {min(waiting.values())} gave no result in time")
    return [found[rank] for rank in range(len(refs))]
