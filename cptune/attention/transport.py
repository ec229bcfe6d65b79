"""Moves the rows of a stage between ranks and counts what it moved.

One batch of point-to-point messages a stage and a direction, one message a peer. Keys and values
travel on one process group and their gradients on another: transfers of one group may share a
stream, and then a gradient on its way home would delay the next keys.

Shapes: R rows of a message, 2 key and value, B batch, S rows of this rank, K kv heads, D head dim.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from cptune.attention.plan import Stage
from cptune.attention.traffic import Pass, PassTraffic, Traffic


@dataclass(frozen=True, slots=True)
class Wire:
    """A process group, and the global rank of each rank of the context group."""

    group: dist.ProcessGroup | None
    members: Sequence[int]

    def op(self, kind: Callable[..., dist.Work | None], *, peer: int, tensor: Tensor) -> dist.P2POp:
        """One message. By global rank: the gradients' group may order its ranks otherwise."""
        return dist.P2POp(kind, tensor, self.members[peer], self.group)


class Exchange:
    """A posted batch. Holds every tensor in flight until it was waited for."""

    def __init__(
        self,
        wire: Wire,
        *,
        buffer_R2BKD: Tensor,
        recv: Sequence[tuple[int, int]],
        send: Sequence[tuple[int, Tensor]],
        counters: tuple[Traffic, PassTraffic],
    ) -> None:
        """Post the messages; posts nothing when there is none.

        Args:
            wire: Where.
            buffer_R2BKD: Receives the messages of `recv` one after the other.
            recv: (peer, rows) of each message.
            send: (peer, contiguous rows) of each message.
            counters: What to count on: everything, and the direction this belongs to.
        """
        self._traffic, self._pass = counters
        self._buffer_R2BKD: Tensor | None = buffer_R2BKD
        self._sources = [peer for peer, _ in recv]
        landing = list(zip(self._sources, buffer_R2BKD.split([n for _, n in recv]), strict=True))
        self._held: list[tuple[int, Tensor]] = [*landing, *send]
        self._posted_s = time.perf_counter()
        ops = [wire.op(dist.irecv, peer=peer, tensor=one) for peer, one in landing]
        ops += [wire.op(dist.isend, peer=peer, tensor=one) for peer, one in send]
        works: list[dist.Work] = dist.batch_isend_irecv(ops) if ops else []
        # A backend that coalesces returns one work for the whole batch: it then is an arrival.
        self._arrivals, self._departures = works[: len(recv)], works[len(recv) :]
        for peer, tensor in landing:
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
            self._traffic.peer(source).seconds += time.perf_counter() - self._posted_s
        self._arrivals.clear()
        del self._held[: len(self._sources)]
        # Let go of it altogether: even an empty view would keep its memory until the last stage.
        buffer_R2BKD, self._buffer_R2BKD = self._buffer_R2BKD, None
        assert buffer_R2BKD is not None, "an exchange is waited for once"
        return buffer_R2BKD

    def finish(self) -> None:
        """Block until all is sent, and let go of the tensors."""
        for work in self._departures:
            self._block_on(work)
        self._departures.clear()
        self._held.clear()

    def _block_on(self, work: dist.Work) -> None:
        start_s = time.perf_counter()
        work.wait()
        self._pass.wait_s += time.perf_counter() - start_s


class Transport:
    """The wires of one rank: a group for keys and values, another for their gradients."""

    def __init__(
        self,
        kv_group: dist.ProcessGroup | None = None,
        dkv_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Without groups it serves a plan that has no stages."""
        members = dist.get_process_group_ranks(kv_group) if kv_group else []
        self._kv_wire, self._dkv_wire = Wire(kv_group, members), Wire(dkv_group, members)
        self.traffic = Traffic()

    def fetch(self, stage: Stage, kv_R2BKD: Tensor, *, during: Pass) -> Exchange:
        """Post the keys and values of `stage`.

        Args:
            stage: What to receive and to send.
            kv_R2BKD: This rank's own packed rows; untouched until the exchange is finished.
            during: Which half of the step asks.

        Returns:
            An exchange whose buffer holds the rows of all of `stage.recv`.
        """
        return Exchange(
            self._kv_wire,
            buffer_R2BKD=_buffer(kv_R2BKD, sum(rows.num_rows for _, rows in stage.recv)),
            recv=[(peer, rows.num_rows) for peer, rows in stage.recv],
            send=[(peer, kv_R2BKD[rows.start : rows.stop]) for peer, rows in stage.send],
            counters=(self.traffic, self.traffic.of(during)),
        )

    def give_back(self, stage: Stage, dkv_R2BKD: Tensor) -> Exchange:
        """Post the gradients of `stage` to the owners of the rows: the fetch the other way round.

        Args:
            stage: The stage whose rows they are.
            dkv_R2BKD: Gradients of the rows of all of `stage.recv`, in the order of the buffer.

        Returns:
            An exchange whose buffer holds the peers' gradients of the own rows `stage.send`.
        """
        peers = [peer for peer, _ in stage.recv]
        parts = dkv_R2BKD.split([rows.num_rows for _, rows in stage.recv])
        return Exchange(
            self._dkv_wire,
            buffer_R2BKD=_buffer(dkv_R2BKD, sum(rows.num_rows for _, rows in stage.send)),
            recv=[(peer, rows.num_rows) for peer, rows in stage.send],
            send=list(zip(peers, parts, strict=True)),
            counters=(self.traffic, self.traffic.backward),
        )

    def stream(
        self, stages: Sequence[Stage], kv_R2BKD: Tensor, *, during: Pass
    ) -> Iterator[tuple[Stage, Tensor]]:
        """Post the first stage now; then yield (stage, kv_R2BKD), one stage posted ahead."""
        first = self.fetch(stages[0], kv_R2BKD, during=during) if stages else None
        return self._follow(stages, kv_R2BKD, first=first, during=during)

    def _follow(
        self, stages: Sequence[Stage], kv_R2BKD: Tensor, *, first: Exchange | None, during: Pass
    ) -> Iterator[tuple[Stage, Tensor]]:
        posted = [first] if first else []
        for index, stage in enumerate(stages):
            if index + 1 < len(stages):
                posted.append(self.fetch(stages[index + 1], kv_R2BKD, during=during))
            yield stage, posted[index].wait()
        for exchange in posted:
            exchange.finish()


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


def pack_kv(k_BSKD: Tensor, v_BSKD: Tensor, *, rows: int) -> Tensor:
    """Lay the first `rows` rows out as (R, 2, B, K, D): any range of rows is one message."""
    return torch.stack([k_BSKD[:, :rows].transpose(0, 1), v_BSKD[:, :rows].transpose(0, 1)], dim=1)


def unpack_kv(kv_R2BKD: Tensor) -> tuple[Tensor, Tensor]:
    """(R, 2, B, K, D) -> k and v as (B, R, K, D) views."""
    k_RBKD, v_RBKD = kv_R2BKD.unbind(dim=1)
    return k_RBKD.transpose(0, 1), v_RBKD.transpose(0, 1)


def _buffer(like_R2BKD: Tensor, rows: int) -> Tensor:
    return like_R2BKD.new_empty((rows, *like_R2BKD.shape[1:]))
