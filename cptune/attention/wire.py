"""Posts the messages of an exchange on a process group and waits: the door to its transfers."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from cptune.attention.batches import PEERS, TURNS, cut_batches
from cptune.attention.traffic import PassTraffic, Traffic

Messages = Sequence[tuple[int, Tensor]]  # (peer as a rank of the context group, dense tensor)


class Work(Protocol):
    """A message under way."""

    def wait(self) -> object:
        """Block until it is done (a device: until what is queued after it may use the result)."""
        ...


class Wire(Protocol):
    """Moves messages between the ranks of a context group."""

    def post(self, *, recv: Messages, send: Messages) -> Sequence[Work]:
        """Start all of them. Returns works of `recv`, then of `send`, or one for them all."""
        ...


@dataclass(frozen=True, slots=True)
class AllOf:
    """Batches of which a backend made one work each."""

    works: Sequence[Work]

    def wait(self) -> None:
        """As Work.wait."""
        for work in self.works:
            work.wait()


@dataclass(frozen=True, slots=True)
class GroupWire:
    """A process group, and the global rank of each rank of the context group."""

    group: dist.ProcessGroup
    members: Sequence[int]
    most: tuple[int, int] = (PEERS, TURNS)  # of a batch, as in cut_batches

    def open(self, device: torch.device) -> None:
        """Make the communicator of a device that has one, as NCCL does at a group's first call.

        Collective, which messages are not: a rank may have none.
        """
        if device.type != "cpu":
            dist.all_reduce(torch.zeros(1, device=device), group=self.group)

    def post(self, *, recv: Messages, send: Messages) -> Sequence[Work]:
        """As Wire.post."""
        ops = [self._op(dist.irecv, peer=peer, tensor=one) for peer, one in recv]
        ops += [self._op(dist.isend, peer=peer, tensor=one) for peer, one in send]
        batches = cut_batches(
            recv=[peer for peer, _ in recv],
            send=[peer for peer, _ in send],
            rank=self.members.index(dist.get_rank()),
            size=len(self.members),
            most=self.most,
        )
        works: dict[int, Work] = {}
        coalesced: list[Work] = []
        for batch in batches:
            posted = dist.batch_isend_irecv([ops[index] for index in batch])
            if len(posted) == len(batch):
                works |= zip(batch, posted, strict=True)
            else:
                coalesced += posted
        in_order = [works[index] for index in sorted(works)]
        return [AllOf([*coalesced, *in_order])] if coalesced else in_order

    def _op(
        self, kind: Callable[..., dist.Work | None], *, peer: int, tensor: Tensor
    ) -> dist.P2POp:
        # By global rank: the gradients' group may order its ranks otherwise.
        return dist.P2POp(kind, tensor, self.members[peer], self.group)


class Exchange:
    """A posted batch. Holds every tensor in flight until it was waited for."""

    def __init__(
        self,
        wire: Wire | None,
        *,
        buffer: Tensor,
        recv: Messages,
        send: Messages,
        counters: tuple[Traffic, PassTraffic],
    ) -> None:
        """Post the messages; posts nothing when there is none.

        Args:
            wire: Where; None where there is nobody to exchange with.
            buffer: What the messages of `recv` fill.
            recv: (peer, dense part of the buffer) of each message, peer by peer.
            send: (peer, dense tensor) of each message.
            counters: What to count on: everything, and the direction this belongs to.
        """
        self._traffic, self._pass = counters
        self._buffer: Tensor | None = buffer
        self._sources = [peer for peer, _ in recv]
        self._held: list[tuple[int, Tensor]] = [*recv, *send]
        self._posted_s = time.perf_counter()
        assert wire is not None or not self._held, "messages, and nobody to exchange them with"
        works = wire.post(recv=recv, send=send) if wire else []
        # Of a backend that coalesces there is one work for them all: it then is an arrival.
        self._arrivals, self._departures = list(works[: len(recv)]), list(works[len(recv) :])
        for peer, tensor in recv:
            self._pass.received_bytes += tensor.nbytes
            self._traffic.peer(peer).received_bytes += tensor.nbytes
        for peer, tensor in send:
            self._pass.sent_bytes += tensor.nbytes
            self._traffic.peer(peer).sent_bytes += tensor.nbytes

    def wait(self) -> Tensor:
        """Block until all that was to come is here, and return the buffer. Call it once."""
        for index, source in enumerate(self._sources):
            if index < len(self._arrivals):
                self._block_on(self._arrivals[index])
            if source in self._sources[index + 1 :]:
                continue  # more is to come from there
            self._traffic.peer(source).seconds += time.perf_counter() - self._posted_s
        self._arrivals.clear()
        del self._held[: len(self._sources)]
        # Let go of it altogether: even an empty view would keep its memory until the last stage.
        buffer, self._buffer = self._buffer, None
        assert buffer is not None, "an exchange is waited for once"
        return buffer

    def finish(self) -> None:
        """Block until all is sent, and let go of the tensors."""
        for work in self._departures:
            self._block_on(work)
        self._departures.clear()
        self._held.clear()

    def _block_on(self, work: Work) -> None:
        start_s = time.perf_counter()
        work.wait()
        self._pass.wait_s += time.perf_counter() - start_s


def gather_objects(group: dist.ProcessGroup, mine: object) -> list[object]:
    """Every rank's object, by rank of the group; small ones. Collective.

    On NCCL it goes through the current CUDA device, as all messages of the group do.
    """
    found: list[object] = [None] * group.size()
    dist.all_gather_object(found, mine, group=group)
    return found


def split_group(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """Make a second group of the members of `group`; called by its members only.

    Costs a rendezvous and lives until torch.distributed is shut down. It has the backend and the
    time limit of `group`, not those of the default group.
    """
    device_type = dist.get_backend_config(group).split(":")[0]
    # No public reader of a group's time limit exists; new_group alone would take the library's.
    options = group._get_backend(torch.device(device_type)).options
    made = dist.new_group(
        dist.get_process_group_ranks(group),
        timeout=options._timeout,
        backend=dist.get_backend(group),
        use_local_synchronization=True,
    )
    assert isinstance(made, dist.ProcessGroup), "this rank is a member of its own group"
    return made


def open_wires(group: dist.ProcessGroup) -> tuple[GroupWire, GroupWire]:
    """One wire on `group` and one on a second group of the same members."""
    members = dist.get_process_group_ranks(group)
    return GroupWire(group, members), GroupWire(split_group(group), members)
