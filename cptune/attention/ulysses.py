"""Trades heads for tokens: the all-to-all of Ulysses in front of staged attention.

Before attention every member of a group gives each other one its rows of that one's heads; after
it the outputs go back. Heads of any number are shared out as `heads` says, and the gradients of a
kv head that went to several members are summed at its owner in the accumulator type.

Shapes: B batch, S rows of this rank (padding included), R rows of a message, T real rows of the
group, H query heads, K kv heads, N heads of one or the other, D head dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from cptune.attention.heads import HeadShare
from cptune.attention.rounding import Rounding
from cptune.attention.shard import Partition
from cptune.attention.slices import Rows
from cptune.attention.staged import Engine, Saved
from cptune.attention.traffic import Pass
from cptune.attention.transport import Transport
from cptune.attention.wire import Exchange, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTrade:
    """The exchange of one rank with its group."""

    place: int
    peers: tuple[int, ...]  # ranks of the context group, in order of place
    rows: tuple[int, ...]  # real rows of each
    places: Tensor  # place in global order of each row of the group, member by member
    shares: tuple[HeadShare, ...]
    transport: Transport

    def collect(self, parts_BSND: Sequence[Tensor], *, during: Pass) -> list[Tensor]:
        """Give the rows of these tensors away by heads; get the own heads of all rows.

        Args:
            parts_BSND: Tensors of query heads first, then of kv heads: one is q or its gradient,
                three are q, k, v.
            during: Which half of the step asks.

        Returns:
            The same as (B, T, N, D), in global order of the tokens.
        """
        mine = self.rows[self.place]
        packed = [
            torch.cat([x[:, :mine, a:b] for x, (a, b) in zip(parts_BSND, runs, strict=False)], 2)
            .transpose(0, 1)
            .contiguous()
            for runs in ((share.q, share.kv, share.kv) for share in self.shares)
        ]
        shape = packed[self.place].shape[1:]
        counts = [rows * shape.numel() for rows in self.rows]
        arrived = self._exchange(self.transport.kv_wire, packed, counts=counts, during=during)
        share = self.shares[self.place]
        widths = [share.q.num_rows, share.kv.num_rows, share.kv.num_rows][: len(parts_BSND)]
        batch, _, dim = shape
        found = [packed[0].new_empty((batch, sum(self.rows), width, dim)) for width in widths]
        members = zip(self._places(found[0]), self.rows, arrived, strict=True)
        for places, rows, part in members:
            pieces = part.view(rows, *shape).transpose(0, 1).split(widths, dim=2)
            for x_BTND, piece in zip(found, pieces, strict=True):
                x_BTND[:, places] = piece
        return found

    def give_back(
        self,
        x_BTND: Tensor,
        into_BSND: Tensor,
        *,
        heads: Sequence[Rows],
        wire: Wire | None,
        rounding: Rounding,
        during: Pass,
    ) -> None:
        """Send what was computed for the own heads home, and add what comes of all heads.

        Args:
            x_BTND: Results for all rows of the group, in global order; a head may have more than
                one dim.
            into_BSND: This rank's rows with all heads.
            heads: Heads of each member.
            wire: Where.
            rounding: Makes messages of what is sent.
            during: Which half of the step asks.
        """
        batch, _, _, *head = x_BTND.shape
        mine, width = self.rows[self.place], prod(head)
        counts = [mine * batch * one.num_rows * width for one in heads]
        x_TBND = x_BTND.transpose(0, 1)
        places = self._places(x_TBND)
        parts = [rounding.encode(x_TBND.index_select(0, one)) for one in places]
        arrived = self._exchange(wire, parts, counts=counts, during=during)
        for one, part in zip(heads, arrived, strict=True):
            part_RBND = part.view(mine, batch, one.num_rows, *head)
            into = into_BSND[:, :mine, one.start : one.stop]
            into.addcmul_(part_RBND.transpose(0, 1), rounding.factor(part))

    def _exchange(
        self, wire: Wire | None, packed: Sequence[Tensor], *, counts: Sequence[int], during: Pass
    ) -> list[Tensor]:
        """One flat message to and from each other member; what is for ourselves stays."""
        others = [at for at in range(len(self.peers)) if at != self.place]
        buffer = packed[0].new_empty(sum(counts[at] for at in others))
        landing = buffer.split([counts[at] for at in others])
        exchange = Exchange(
            wire,
            buffer=buffer,
            recv=[
                (self.peers[at], into)
                for at, into in zip(others, landing, strict=True)
                if counts[at]
            ],
            send=[(self.peers[at], packed[at].view(-1)) for at in others if packed[at].numel()],
            counters=(self.transport.traffic, self.transport.traffic.of(during)),
        )
        landed = iter(exchange.wait().split([counts[at] for at in others]))
        exchange.finish()
        return [
            packed[at].reshape(-1) if at == self.place else next(landed)
            for at in range(len(self.peers))
        ]

    def _places(self, like: Tensor) -> tuple[Tensor, ...]:
        return self.places.to(like.device).split(self.rows)


def build_trade(
    partition: Partition,
    *,
    peers: tuple[int, ...],
    place: int,
    shares: tuple[HeadShare, ...],
    transport: Transport,
) -> HeadTrade:
    """The exchange of the rank at `place` of a group, with where each row stands in order."""
    found = [position for peer in peers for position in partition.positions(peer)]
    return HeadTrade(
        place=place,
        peers=peers,
        rows=tuple(map(partition.real_len, peers)),
        places=torch.argsort(torch.argsort(torch.tensor(found, dtype=torch.int64, device="cpu"))),
        shares=shares,
        transport=transport,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadParallel:
    """Staged attention of this rank's share of the heads over its group's tokens."""

    engine: Engine
    trade: HeadTrade

    def forward(self, q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor) -> tuple[Tensor, Saved]:
        """As Staged.forward; what is saved has this rank's heads of all tokens of its group."""
        q, k, v = self.trade.collect([q_BSHD, k_BSKD, v_BSKD], during=Pass.FORWARD)
        partial = self.engine.forward(q, k, v)
        out_BTHD, as_it_is = partial.out.to(q.dtype), Rounding(q.dtype)
        out_BSHD = torch.zeros_like(q_BSHD, memory_format=torch.contiguous_format)
        heads = [share.q for share in self.trade.shares]
        self.trade.give_back(
            out_BTHD,
            out_BSHD,
            heads=heads,
            wire=self.trade.transport.kv_wire,
            rounding=as_it_is,
            during=Pass.FORWARD,
        )
        return out_BSHD, Saved(q, k, v, out_BTHD, partial.lse)

    def backward(
        self, dout_BSHD: Tensor, saved: Saved, *, kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As Staged.backward."""
        (dout_BTHD,) = self.trade.collect([dout_BSHD], during=Pass.BACKWARD)
        dq_BTHD, dkv_T2BKD = self.engine.backward(dout_BTHD, saved)
        del dout_BTHD
        dq_BSHD, as_it_is = torch.zeros_like(dout_BSHD), Rounding(dout_BSHD.dtype)
        heads = [share.q for share in self.trade.shares]
        self.trade.give_back(
            dq_BTHD.to(dout_BSHD.dtype),
            dq_BSHD,
            heads=heads,
            wire=self.trade.transport.kv_wire,
            rounding=as_it_is,
            during=Pass.BACKWARD,
        )
        del dq_BTHD
        batch, rows, _, dim = dout_BSHD.shape
        dkv_BSK2D = dkv_T2BKD.new_zeros(batch, rows, kv_heads, 2, dim)
        own_BTK2D = dkv_T2BKD.permute(2, 0, 3, 1, 4)
        del dkv_T2BKD
        heads = [share.kv for share in self.trade.shares]
        self.trade.give_back(
            own_BTK2D,
            dkv_BSK2D,
            heads=heads,
            wire=self.trade.transport.dkv_wire,
            rounding=self.engine.rounding,
            during=Pass.BACKWARD,
        )
        dk_BSKD, dv_BSKD = dkv_BSK2D.to(dout_BSHD.dtype).unbind(dim=3)
        return dq_BSHD, dk_BSKD, dv_BSKD
