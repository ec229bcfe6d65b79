"""What a plan costs one rank, for one layer at batch 1, before anything runs.

The same numbers are what the transport's counters are tested against.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cptune.attention.heads import HeadShare
from cptune.attention.stages import Schedule, Stage

_FORWARD_FLOP = 4  # a pair, a head and an element of it: two products
_BACKWARD_FLOP = 10  # five products


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBytes:
    """Payload bytes that one rank moves for one layer at batch 1."""

    forward_sent: int
    forward_received: int
    backward_sent: int  # keys and values again, and the gradients of the peers' rows
    backward_received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFlop:
    """Floating-point operations of one rank for one layer at batch 1."""

    forward: int
    backward: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPeak:
    """Most bytes that live at once beside the inputs, for one layer at batch 1."""

    forward: int  # the output and its log-sum-exp among them
    backward: int  # the gradients among them


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Sizes that turn rows into bytes."""

    heads: int
    kv_heads: int
    head_dim: int
    itemsize: int
    dkv_itemsize: int  # of a gradient of keys and values on the wire
    spread: bool = False  # each query head gets a copy of its kv head for a kernel

    @property
    def sum_itemsize(self) -> int:
        """Bytes of an element that partial results are summed in."""
        return 8 if self.itemsize == 8 else 4

    @property
    def halves(self) -> bool:
        """Are the inputs narrower than what partial results are summed in?"""
        return self.itemsize != self.sum_itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One rank in its Ulysses group: what it attends, and whose heads it trades."""

    share: HeadShare
    own_rows: int  # real rows of its shard
    peer_rows: tuple[int, ...]  # of each other member
    peer_shares: tuple[HeadShare, ...]


def count_ring_bytes(stages: Sequence[Stage], widths: Widths) -> PlanBytes:
    """Keys and values of stages, twice, and gradients: once each in the type of their wire."""
    row = 2 * widths.kv_heads * widths.head_dim
    sent = received = back_sent = back_received = 0
    for stage in stages:
        given, taken = sum(one.num_rows for one in stage.send), stage.num_rows
        sent, received = sent + given, received + taken
        # On the way to a gateway partial sums keep the type that they are summed in.
        width = widths.dkv_itemsize if stage.source is None else widths.sum_itemsize
        back_sent, back_received = back_sent + taken * width, back_received + given * width
    return PlanBytes(
        forward_sent=sent * row * widths.itemsize,
        forward_received=received * row * widths.itemsize,
        backward_sent=(sent * widths.itemsize + back_sent) * row,
        backward_received=(received * widths.itemsize + back_received) * row,
    )


def count_head_bytes(seat: Seat, widths: Widths) -> PlanBytes:
    """Queries, keys and values there, outputs back; in backward the same the other way round."""
    kv_width = 2 * widths.dkv_itemsize
    q_there = seat.own_rows * sum(share.q.num_rows for share in seat.peer_shares)
    kv_there = seat.own_rows * sum(share.kv.num_rows for share in seat.peer_shares)
    q_here = sum(seat.peer_rows) * seat.share.q.num_rows
    kv_here = sum(seat.peer_rows) * seat.share.kv.num_rows
    item, dim = widths.itemsize, widths.head_dim
    return PlanBytes(
        forward_sent=(q_there + 2 * kv_there + q_here) * item * dim,
        forward_received=(q_here + 2 * kv_here + q_there) * item * dim,
        backward_sent=((q_there + q_here) * item + kv_here * kv_width) * dim,
        backward_received=((q_here + q_there) * item + kv_there * kv_width) * dim,
    )


def add_bytes(one: PlanBytes, two: PlanBytes) -> PlanBytes:
    """Both."""
    return PlanBytes(
        forward_sent=one.forward_sent + two.forward_sent,
        forward_received=one.forward_received + two.forward_received,
        backward_sent=one.backward_sent + two.backward_sent,
        backward_received=one.backward_received + two.backward_received,
    )


def count_pairs(schedule: Schedule) -> int:
    """Query-key pairs of one head."""
    remote = (block for stage in schedule.stages for block in stage.slices)
    return sum(block.pairs for block in (*schedule.local, *remote))


def count_flop(pairs: int, widths: Widths) -> PlanFlop:
    """Of `pairs` for every query head of `widths`."""
    each = pairs * widths.heads * widths.head_dim
    return PlanFlop(forward=_FORWARD_FLOP * each, backward=_BACKWARD_FLOP * each)
