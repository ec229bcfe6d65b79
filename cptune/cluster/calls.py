"""A function run on the rank actors of a Ray cluster, as `cptune.bench.calls` describes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import ray

from cptune.bench.calls import COLLECTIVE_S, RankCall
from cptune.bench.job import GRACE_S, Rendezvous
from cptune.cluster.failures import most_telling
from cptune.cluster.gang import Gang
from cptune.cluster.inventory import cpu_devices
from cptune.cluster.session import joined_cluster
from cptune.domain.outcome import Failure
from cptune.errors import ClusterError

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOnCluster:
    """Runs a function on a gang of actors, spread evenly over the nodes; all are gone afterwards.

    Args:
        address: "local", or the address of a Ray cluster.
    """

    address: str

    def __call__(
        self, function: Callable[[_Given], _Found], argument: _Given, *, ranks: int
    ) -> list[_Found]:
        """What each rank found, by rank.

        Raises:
            ClusterError: when the cluster cannot be used, or a rank fails or is late.
        """
        with joined_cluster(self.address, ranks=ranks) as (nodes, topology):
            devices = cpu_devices(topology, world_size=ranks)
            used = {device.node for device in devices}
            held = [
                node for node, name in zip(nodes, topology.nodes, strict=True) if name.name in used
            ]
            with closing(Gang(devices, nodes=held, threads=1)) as gang:
                gang.start()
                return run_on_gang(gang, function, argument)


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
