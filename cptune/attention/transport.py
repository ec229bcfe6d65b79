"""Moves the rows of a stage between ranks and counts what it moved.

One batch of point-to-point messages a stage and a direction. Keys and values travel on one process
group and their gradients on another: transfers of one group may share a stream, and then a gradient
on its way home would delay the next keys. Keys and values are sent from where they lie, so a peer
gets a message for each of the two and each sequence of the batch; of gradients it gets one.

Shapes: B batch, S rows of this rank, R rows of a stage, 2 key and value, K kv heads, D head dim.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cptune.attention.rounding import Rounding
from cptune.attention.stages import Stage, Transfer
from cptune.attention.traffic import Pass, Traffic
from cptune.attention.wire import Exchange, GroupWire, Wire


class KeyValue(NamedTuple):
    """Keys and values of some rows: of the own shard, or of what a stage brought."""

    k: Tensor  # BRKD
    v: Tensor  # BRKD


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

    def open(self, device: torch.device) -> None:
        """Before the first message of tensors on `device`. Collective."""
        for wire in (self.kv_wire, self.dkv_wire):
            if isinstance(wire, GroupWire):
                wire.open(device)

    def among(self, peers: Sequence[int]) -> "Transport":
        """The same wires and counters, for stages whose ranks are these of the context group."""
        return type(self)(self.kv_wire, self.dkv_wire, peers=peers, traffic=self.traffic)

    def fetch(self, stage: Stage, kv: KeyValue, *, during: Pass) -> Exchange:
        """Post the keys and values of `stage`.

        Args:
            stage: What to receive and to send.
            kv: The rows that `stage.send` counts in; untouched until the exchange is done.
            during: Which half of the step asks.

        Returns:
            An exchange whose buffer holds the rows of all of `stage.recv`, (2, B, R, K, D).
        """
        batch, _, *row = kv.k.shape
        buffer_2BRKD = kv.k.new_empty((2, batch, stage.num_rows, *row))
        parts = buffer_2BRKD.split([one.num_rows for one in stage.recv], dim=2)
        return Exchange(
            self.kv_wire,
            buffer=buffer_2BRKD,
            recv=[
                (self._peer(one), x_RKD)
                for one, part in zip(stage.recv, parts, strict=True)
                for x_RKD in part.flatten(0, 1)
            ],
            send=[
                (self._peer(one), take_rows(x_RKD, one))
                for one in stage.send
                for x_BRKD in kv
                for x_RKD in x_BRKD
            ],
            counters=(self.traffic, self.traffic.of(during)),
        )

    def give_back(self, stage: Stage, dkv_R2BKD: Tensor, *, rounding: Rounding) -> Exchange:
        """Post the gradients of `stage` to where its rows came from: the fetch the other way round.

        Args:
            stage: The stage whose rows they are.
            dkv_R2BKD: Gradients of the rows of all of `stage.recv`, in the order of the buffer;
                used up.
            rounding: Makes messages of them.

        Returns:
            An exchange whose buffer holds the peers' messages for the rows `stage.send`.
        """
        parts = dkv_R2BKD.split([one.num_rows for one in stage.recv])
        counts = [one.num_rows for one in stage.send]
        buffer = dkv_R2BKD.new_empty((sum(counts), *dkv_R2BKD.shape[1:]), dtype=rounding.dtype)
        coming = zip(map(self._peer, stage.send), buffer.split(counts), strict=True)
        return Exchange(
            self.dkv_wire,
            buffer=buffer,
            recv=list(coming),
            send=[
                (self._peer(one), rounding.encode(part))
                for one, part in zip(stage.recv, parts, strict=True)
            ],
            counters=(self.traffic, self.traffic.backward),
        )

    def stream(
        self, stages: Sequence[Stage], kv: KeyValue, *, during: Pass
    ) -> Iterator[tuple[int, KeyValue]]:
        """Post what stands at the start now; then yield (index of a stage, its rows) in order."""
        running = _Stream(self, stages, kv, during=during)
        running.post_due(-1, source=None)
        return running.follow()

    def _peer(self, one: Transfer) -> int:
        return one.peer if self.peers is None else self.peers[one.peer]


class _Stream:
    """The stages of one pass on their way."""

    def __init__(
        self, transport: Transport, stages: Sequence[Stage], own: KeyValue, *, during: Pass
    ) -> None:
        self._transport, self._stages, self._during = transport, stages, during
        self._own = own
        self._posted: dict[int, Exchange] = {}
        self._kept: dict[int, KeyValue] = {}  # what a later stage hands on
        self._last_use = {one.source: at for at, one in enumerate(stages)}

    def post_due(self, at: int, *, source: int | None) -> None:
        """Post what is due before stage `at` is waited for; with `source`, what it hands on."""
        for index, stage in enumerate(self._stages):
            if stage.post != at or (stage.source == at) != (source is not None):
                continue
            kv = self._own if stage.source is None else self._kept[stage.source]
            self._posted[index] = self._transport.fetch(stage, kv, during=self._during)
            if stage.source is not None and self._last_use[stage.source] == index:
                del self._kept[stage.source]

    def follow(self) -> Iterator[tuple[int, KeyValue]]:
        """Wait stage by stage, with the next ones under way; keeps nothing that it yields."""
        for index in range(len(self._stages)):
            self.post_due(index, source=None)
            yield index, self._arrive(index)
        for exchange in self._posted.values():
            exchange.finish()

    def _arrive(self, index: int) -> KeyValue:
        kv = KeyValue(*self._posted[index].wait())
        if index in self._last_use:
            self._kept[index] = kv
            self.post_due(index, source=index)
        # What was packed for an earlier stage is let go; its peers are a stage behind at most.
        for done in [at for at in self._posted if at < index]:
            self._posted.pop(done).finish()
        return kv


def take_rows(x_RKD: Tensor, transfer: Transfer) -> Tensor:
    """The rows of a message, dense and one after the other: where they are so already, a view."""
    parts = [x_RKD[one.start : one.stop] for one in transfer.rows]
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)


def unpack_kv(kv_R2BKD: Tensor) -> KeyValue:
    """(R, 2, B, K, D) -> k and v as (B, R, K, D) views."""
    k_RBKD, v_RBKD = kv_R2BKD.unbind(dim=1)
    return KeyValue(k_RBKD.transpose(0, 1), v_RBKD.transpose(0, 1))
