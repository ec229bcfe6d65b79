"""All actors of a sweep, one per device: reserved together, replaced together after any failure."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, cast

import ray
import ray.exceptions
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cptune.bench.calls import RankCall
from cptune.bench.job import ProbeJob, RankJob
from cptune.cluster.actors import RankActor
from cptune.cluster.connection import RayNode
from cptune.cluster.failures import failure_from
from cptune.cluster.last_words import last_words
from cptune.cluster.seats import CpuSeats, Seats, Seen
from cptune.domain.environment import RankEnvironment, join_environments
from cptune.domain.outcome import Failure, RankReport
from cptune.domain.placement import Device, refuse_shared
from cptune.domain.probe import EdgeReading
from cptune.errors import ClusterError

_NODE_ID = "ray.io/node-id"  # the label that Ray itself puts on every node
_READY_S = 120.0
_GONE_S = 10.0
_POLL_S = 0.02
_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


class Gang:
    """Warm actors on reserved nodes.

    Args:
        devices: One actor for each, grouped by node.
        nodes: The Ray nodes, in the order in which their names first appear in `devices`.
        threads: Torch threads of an actor.
        seats: How actors come to hold the devices; as CPU processes where omitted.

    Raises:
        ClusterError: when two devices are one, Ray has too few GPUs, or the nodes cannot be
            reserved in time.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        nodes: Sequence[RayNode],
        threads: int,
        seats: Seats | None = None,
    ) -> None:
        try:
            refuse_shared(devices)
        except ValueError as exc:
            raise ClusterError(str(exc)) from exc
        self._devices, self._threads = tuple(devices), threads
        self._names = list(dict.fromkeys(device.node for device in devices))
        self._nodes = dict(zip(self._names, nodes, strict=True))
        self._seats = seats or CpuSeats()
        self._counts = {
            name: self._seats.count(self._of(name), node) for name, node in self._nodes.items()
        }
        self._reservation = self._reserve()
        self._started: list[tuple[str, Any]] = []  # (node, actor), node by node
        self._actors: dict[str, Any] = {}
        self._seen: dict[str, Seen] = {}  # by device
        self._store: tuple[str, int] | None = None
        self._attempts = count()

    def _reserve(self) -> PlacementGroup:
        nodes = [self._nodes[name] for name in self._names]
        group = placement_group(
            [self._seats.reserved(node) for node in nodes],
            strategy="STRICT_SPREAD",
            bundle_label_selector=[{_NODE_ID: node.node_id} for node in nodes],  # each its own node
        )
        try:
            ray.get(group.ready(), timeout=_READY_S)
        except ray.exceptions.GetTimeoutError as exc:
            remove_placement_group(group)
            want = ", ".join(
                f"{_text(self._seats.reserved(node))} of {name}"
                for name, node in self._nodes.items()
            )
            free = ray.available_resources()
            left = _text({what: free.get(what, 0.0) for what in self._seats.reserved(nodes[0])})
            raise ClusterError(
                f"cannot reserve {want} within {_READY_S:g} s: {left} are free in all",
                hint="end the other jobs of this cluster: a measured node is not shared",
            ) from exc
        return group

    def _of(self, name: str) -> list[Device]:
        return [device for device in self._devices if device.node == name]

    def start(self) -> None:
        """Begin to start the actors; `ready` waits for them."""
        actor = cast(Any, ray.remote(RankActor))
        for bundle, (name, node) in enumerate(self._nodes.items()):
            count = self._counts[name]
            for _ in range(count):
                started = actor.options(
                    **self._seats.options(node, sharing=count),
                    max_restarts=0,
                    max_task_retries=0,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        placement_group=self._reservation, placement_group_bundle_index=bundle
                    ),
                ).remote(threads=self._threads)
                self._started.append((name, started))

    def ready(self) -> tuple[str, int]:
        """Wait until every actor is up and holds its device; returns the address of their store.

        Raises:
            ClusterError: when an actor does not come up, or on another node or device than wanted.
        """
        if self._store is not None:
            return self._store
        try:
            seen = ray.get(
                [actor.identify.remote() for _, actor in self._started], timeout=_READY_S
            )
        except ray.exceptions.RayError as exc:
            raise ClusterError(f"the actors did not come up within {_READY_S:g} s: {exc}") from exc
        self._seat(seen)
        first = self._actors[self._devices[0].name]
        try:
            self._store = ray.get(first.open_store.remote(), timeout=_READY_S)
        except ray.exceptions.RayError as exc:
            raise ClusterError(f"an actor was lost before it opened the store: {exc}") from exc
        return self._store

    def _seat(self, seen: Sequence[Seen]) -> None:
        """Give every device its actor, and end those that no rank is on."""
        pairs = list(zip(self._started, seen, strict=True))
        for name, node in self._nodes.items():
            own = [(actor, one) for (place, actor), one in pairs if place == name]
            for _, one in own:
                if one.node_id != node.node_id:
                    raise ClusterError(
                        f"an actor of {name} came up on node {one.node_id}, wanted {node.node_id}"
                    )
            devices = self._of(name)
            places = self._seats.match(devices, [one for _, one in own])
            for device, place in zip(devices, places, strict=True):
                self._actors[device.name], found = own[place]
                self._seen[device.name] = found
            for place, (actor, _) in enumerate(own):
                if place not in places:
                    ray.kill(actor, no_restart=True)

    def next_prefix(self) -> str:
        """A prefix for the store that no trial of this gang had before."""
        return f"attempt-{next(self._attempts)}"

    def run(self, device: Device, job: RankJob) -> ray.ObjectRef[RankReport | Failure]:
        """Start one rank's part of a trial on the actor that holds a device."""
        return self._actors[device.name].run.remote(job)

    def probe(
        self, device: Device, job: ProbeJob
    ) -> ray.ObjectRef[tuple[EdgeReading, ...] | Failure]:
        """Start one rank's part of a probe on the actor that holds a device."""
        return self._actors[device.name].probe.remote(job, device.node)

    def environment(self) -> RankEnvironment:
        """The variables that the libraries of the ranks read; waits until every actor is up.

        Raises:
            ClusterError: as `ready`.
        """
        self.ready()
        return join_environments(
            [(device.node, self._seen[device.name].environment) for device in self._devices]
        )

    def versions(self) -> RankEnvironment:
        """The versions of what the ranks run on, likewise.

        Raises:
            ClusterError: as `ready`.
        """
        self.ready()
        return join_environments(
            [(device.node, self._seen[device.name].versions) for device in self._devices]
        )

    def last_words(self, device: Device) -> str:
        """The end of what the actor of a device wrote to its standard error."""
        seen = self._seen[device.name]
        return last_words(seen.node_id, seen.stderr)

    def answer(
        self, ref: ray.ObjectRef[_Found | Failure], device: Device, *, rank: int
    ) -> _Found | Failure:
        """What the actor of a device answered, or why it gives no answer."""
        words = ""
        try:
            return ray.get(ref)
        except ray.exceptions.RayError as exc:
            if isinstance(exc, ray.exceptions.ActorDiedError):
                words = self.last_words(device)
            return failure_from(exc, rank=rank, node=device.node, words=words)

    @property
    def devices(self) -> tuple[Device, ...]:
        """One for each actor, in the order of ranks."""
        return self._devices

    def call(
        self, device: Device, call: RankCall[_Given, _Found]
    ) -> ray.ObjectRef[_Found | Failure]:
        """Start one rank's part of a function on the actor that holds a device."""
        return self._actors[device.name].call.remote(call)

    def stop(self) -> None:
        """Kill every actor and wait until the processes of this host are gone."""
        for _, actor in self._started:
            ray.kill(actor, no_restart=True)
        here = socket.gethostname()
        ours = [
            self._seen[device.name].pid
            for device in self._devices
            if device.name in self._seen and device.node.split("#")[0] == here
        ]
        self._started.clear()
        self._actors.clear()
        self._seen.clear()
        self._store = None
        _wait_gone(ours)

    def replace(self) -> None:
        """Kill every actor and begin to start new ones."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Kill every actor and free the reservation."""
        self.stop()
        remove_placement_group(self._reservation)


def _text(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{count:g} {what}s" for what, count in resources.items())


def _wait_gone(pids: Sequence[int]) -> None:
    deadline = time.monotonic() + _GONE_S
    while alive := [pid for pid in pids if _is_alive(pid)]:
        if time.monotonic() > deadline:
            raise ClusterError(f"processes {alive} are still there {_GONE_S:g} s after the kill")
        time.sleep(_POLL_S)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        return status.rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
