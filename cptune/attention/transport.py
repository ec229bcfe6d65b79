"""Moves the rows of a stage between ranks and counts what it moved.

One batch of point-to-point messages a stage and a direction, one message a peer. Keys and values
travel on one process group and their gradients on another: transfers of one group may share a
stream, and then a gradient on its way home would delay the next keys.

Shapes: R rows of a message, 2 key and value, B batch, S rows of this rank, K kv heads, D head dim.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cptune.attention.stages import Stage, Transfer
from cptune.attention.traffic import Pass, Traffic
from cptune.attention.wire import Exchange, Wire


class Transport:
    """The wires of one rank: one for keys and values, another for their gradients."""

    def __init__(
        self,
        kv_wire: Wire | None = None,
        dkv_wire: Wire | None = None,
        *,
        peers: Sequence[int] | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        """Without wires it serves a plan that has no stages.

        Args:
            kv_wire: Keys, values, and the heads of all tensors.
            dkv_wire: Gradients of keys and values.
            peers: Rank of the context group of each rank that a stage names; itself if omitted.
            traffic: Counters to count on; new ones if omitted.
        """
        self.kv_wire, self.dkv_wire = kv_wire, dkv_wire
        self.peers = peers
        self.traffic = traffic or Traffic()

    def among(self, peers: Sequence[int]) -> "Transport":
        """The same wires and counters, for stages whose ranks are these of the context group."""
        return type(self)(self.kv_wire, self.dkv_wire, peers=peers, traffic=self.traffic)

    def fetch(self, stage: Stage, kv_R2BKD: Tensor, *, during: Pass) -> Exchange:
        """Post the keys and values of `stage`.

        Args:
            stage: What to receive and to send.
            kv_R2BKD: The rows that `stage.send` counts in; untouched until the exchange is done.
            during: Which half of the step asks.

        Returns:
            An exchange whose buffer holds the rows of all of `stage.recv`.
        """
        return Exchange(
            self.kv_wire,
            buffer=_buffer(kv_R2BKD, stage.num_rows),
            recv=[(self._peer(one), one.num_rows) for one in stage.recv],
            send=[(self._peer(one), take_rows(kv_R2BKD, one)) for one in stage.send],
            counters=(self.traffic, self.traffic.of(during)),
        )

    def give_back(self, stage: Stage, dkv_R2BKD: Tensor) -> Exchange:
        """Post the gradients of `stage` to where its rows came from: the fetch the other way round.

        Args:
            stage: The stage whose rows they are.
            dkv_R2BKD: Gradients of the rows of all of `stage.recv`, in the order of the buffer.

        Returns:
            An exchange whose buffer holds the peers' gradients of the rows `stage.send`.
        """
        parts = dkv_R2BKD.split([one.num_rows for one in stage.recv])
        return Exchange(
            self.dkv_wire,
            buffer=_buffer(dkv_R2BKD, sum(one.num_rows for one in stage.send)),
            recv=[(self._peer(one), one.num_rows) for one in stage.send],
            send=[(self._peer(one), part) for one, part in zip(stage.recv, parts, strict=True)],
            counters=(self.traffic, self.traffic.backward),
        )

    def stream(
        self, stages: Sequence[Stage], kv_R2BKD: Tensor, *, during: Pass
    ) -> Iterator[tuple[Stage, Tensor]]:
        """Post what stands at the start now; then yield (stage, kv_R2BKD) in order."""
        running = _Stream(self, stages, kv_R2BKD, during=during)
        running.post_due(-1, source=None)
        return running.follow()

    def _peer(self, one: Transfer) -> int:
        return one.peer if self.peers is None else self.peers[one.peer]


class _Stream:
    """The stages of one pass on their way."""

    def __init__(
        self, transport: Transport, stages: Sequence[Stage], own_R2BKD: Tensor, *, during: Pass
    ) -> None:
        self._transport, self._stages, self._during = transport, stages, during
        self._own_R2BKD = own_R2BKD
        self._posted: dict[int, Exchange] = {}
        self._kept: dict[int, Tensor] = {}  # buffers that a later stage hands on
        self._last_use = {one.source: at for at, one in enumerate(stages)}

    def post_due(self, at: int, *, source: int | None) -> None:
        """Post what is due before stage `at` is waited for; with `source`, what it hands on."""
        for index, stage in enumerate(self._stages):
            if stage.post != at or (stage.source == at) != (source is not None):
                continue
            from_R2BKD = self._own_R2BKD if stage.source is None else self._kept[stage.source]
            self._posted[index] = self._transport.fetch(stage, from_R2BKD, during=self._during)
            if stage.source is not None and self._last_use[stage.source] == index:
                del self._kept[stage.source]

    def follow(self) -> Iterator[tuple[Stage, Tensor]]:
        """Wait stage by stage, with the next ones under way."""
        for index, stage in enumerate(self._stages):
            self.post_due(index, source=None)
            buffer_R2BKD = self._posted[index].wait()
            if index in self._last_use:
                self._kept[index] = buffer_R2BKD
                self.post_due(index, source=index)
            # What was packed for an earlier stage is let go; its peers are a stage behind at most.
            for done in [at for at in self._posted if at < index]:
                self._posted.pop(done).finish()
            yield stage, buffer_R2BKD
            del buffer_R2BKD
        for exchange in self._posted.values():
            exchange.finish()


def take_rows(x: Tensor, transfer: Transfer) -> Tensor:
    """The rows of a message, one after the other: a view where they are neighbours."""
    parts = [x[one.start : one.stop] for one in transfer.rows]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def pack_kv(k_BSKD: Tensor, v_BSKD: Tensor, *, rows: int) -> Tensor:
    """Lay the first `rows` rows out as (R, 2, B, K, D): any range of rows is one message."""
    return torch.stack([k_BSKD[:, :rows].transpose(0, 1), v_BSKD[:, :rows].transpose(0, 1)], dim=1)


def unpack_kv(kv_R2BKD: Tensor) -> tuple[Tensor, Tensor]:
    """(R, 2, B, K, D) -> k and v as (B, R, K, D) views."""
    k_RBKD, v_RBKD = kv_R2BKD.unbind(dim=1)
    return k_RBKD.transpose(0, 1), v_RBKD.transpose(0, 1)


def _buffer(like_R2BKD: Tensor, rows: int) -> Tensor:
    return like_R2BKD.new_empty((rows, *like_R2BKD.shape[1:]))
