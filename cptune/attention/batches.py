"""Cuts the messages of an exchange into batches that every rank posts in the same order.

A backend may run a batch as one operation (NCCL does): one of very many messages can hang
(pytorch#174288), and cuts that differ between the two ends of a message wait for each other. So the
batch of a message follows from what both ends know of it: how far its receiver is from its sender,
and how many went before it between the two.
"""

from collections import Counter
from collections.abc import Sequence

PEERS, TURNS = 16, 8  # of a batch: at most 2 * 16 * 8 = 256 messages


def cut_batches(
    *,
    recv: Sequence[int],
    send: Sequence[int],
    rank: int,
    size: int,
    most: tuple[int, int] = (PEERS, TURNS),
) -> list[list[int]]:
    """Indices into (*recv, *send), batch by batch.

    Args:
        recv: Sender of each message that comes.
        send: Receiver of each message that goes.
        rank: This rank.
        size: Ranks of the group.
        most: Peers in either direction, and messages of each, in a batch.
    """
    peers, turns = most
    batches: dict[tuple[int, int], list[int]] = {}
    index = 0
    for ends, sign in ((recv, -1), (send, 1)):
        before: Counter[int] = Counter()
        for peer in ends:
            key = (sign * (peer - rank) % size // peers, before[peer] // turns)
            before[peer] += 1
            batches.setdefault(key, []).append(index)
            index += 1
    return [batches[key] for key in sorted(batches)]
