"""Batches of an exchange: bounded, in order, and posted alike at both ends of every message."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from cptune.attention.batches import PEERS, TURNS, cut_batches
from cptune.attention.transport import Transport
from cptune.attention.wire import GroupWire

Counts = list[list[int]]  # messages from the rank of a row to that of a column


def ends_of(counts: Counts, rank: int) -> tuple[list[int], list[int]]:
    """(senders, receivers) of the messages of a rank, peers in the order of a shift."""
    size = len(counts)
    sources = [(rank - d) % size for d in range(1, size)]
    takers = [(rank + d) % size for d in range(1, size)]
    recv = [peer for peer in sources for _ in range(counts[peer][rank])]
    send = [peer for peer in takers for _ in range(counts[rank][peer])]
    return recv, send


def batches_of(counts: Counts, *, most: tuple[int, int]) -> list[list[list[tuple]]]:
    """What each rank posts: (sender, receiver, number between the two), batch by batch."""
    found = []
    for rank in range(len(counts)):
        recv, send = ends_of(counts, rank)
        ends = [(peer, rank) for peer in recv] + [(rank, peer) for peer in send]
        named = [(*end, ends[:at].count(end)) for at, end in enumerate(ends)]
        cut = cut_batches(recv=recv, send=send, rank=rank, size=len(counts), most=most)
        assert sorted(index for batch in cut for index in batch) == list(range(len(ends)))
        found.append([[named[index] for index in batch] for batch in cut])
    return found


def finishes(posted: list[list[list[tuple]]]) -> bool:
    """Batches as one operation each: done when the other end of all its messages has begun."""
    at = [0] * len(posted)
    while True:
        begun = [
            {one for batch in mine[: now + 1] for one in batch}
            for mine, now in zip(posted, at, strict=True)
        ]
        done = [
            rank
            for rank, mine in enumerate(posted)
            if at[rank] < len(mine)
            and all(one in begun[one[0]] & begun[one[1]] for one in mine[at[rank]])
        ]
        if not done:
            return all(now == len(mine) for mine, now in zip(posted, at, strict=True))
        for rank in done:
            at[rank] += 1


@st.composite
def exchanges(draw: st.DrawFn) -> Counts:
    size = draw(st.integers(2, 7))
    return [[0 if a == b else draw(st.integers(0, 4)) for b in range(size)] for a in range(size)]


@settings(deadline=None)  # another job may hold the core
@given(exchanges(), st.integers(1, 4), st.integers(1, 3))
def test_every_exchange_ends_and_no_batch_is_longer_than_allowed(
    counts: Counts, peers: int, turns: int
) -> None:
    posted = batches_of(counts, most=(peers, turns))
    assert finishes(posted)
    for batch in (batch for mine in posted for batch in mine):
        assert len(batch) <= 2 * peers * turns


@given(exchanges(), st.integers(1, 4), st.integers(1, 3))
def test_messages_between_two_ranks_stay_in_order(counts: Counts, peers: int, turns: int) -> None:
    for mine in batches_of(counts, most=(peers, turns)):
        numbers: dict[tuple[int, int], list[int]] = {}
        for sender, receiver, number in (one for batch in mine for one in batch):
            numbers.setdefault((sender, receiver), []).append(number)
        assert all(found == sorted(found) for found in numbers.values())


def test_batches_cut_by_their_place_in_a_list_wait_for_each_other() -> None:
    counts = [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    whole = [[one for batch in mine for one in batch] for mine in batches_of(counts, most=(9, 9))]
    assert not finishes([[mine[:2], mine[2:]] for mine in whole])
    assert finishes(batches_of(counts, most=(1, 1)))


@pytest.mark.parametrize(("size", "messages"), [(64, 2), (64, 16), (512, 2), (8, 2)])
def test_an_all_gather_of_many_ranks_is_bounded(size: int, messages: int) -> None:
    others = [peer for peer in range(size) if peer]
    each = [peer for peer in others for _ in range(messages)]
    cut = cut_batches(recv=each, send=each, rank=0, size=size)
    assert max(map(len, cut)) <= 2 * PEERS * TURNS
    assert len(cut) == -(-size // PEERS) * -(-messages // TURNS)


class Telling(GroupWire):
    """Says which device it was opened for."""

    opened: list[str] = []  # noqa: RUF012 - of the class, so that both wires tell

    def open(self, device: torch.device) -> None:
        self.opened.append(device.type)


def test_both_groups_make_their_communicators_before_a_rank_without_messages_is_missed() -> None:
    group = dist.ProcessGroup(0, 1)
    Transport(Telling(group, [0]), Telling(group, [0])).open(torch.device("cuda"))
    assert Telling.opened == ["cuda", "cuda"]


def test_the_host_needs_no_communicator() -> None:
    GroupWire(dist.ProcessGroup(0, 1), [0]).open(torch.device("cpu"))
    Transport().open(torch.device("cuda"))
