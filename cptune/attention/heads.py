"""Which heads each rank of a Ulysses group attends: any number of heads from the degree on.

Query head h reads kv head h // G (heads of a kv head are neighbours). A kv head that the heads of
several ranks read goes to each of them.
"""

from dataclasses import dataclass

from cptune.attention.slices import Rows


@dataclass(frozen=True, slots=True)
class HeadShare:
    """Heads of one rank."""

    q: Rows
    kv: Rows  # all that the query heads read
    spread: tuple[int, ...] | None  # kv head of `kv` by query head; None: equal runs, as they are


def share_heads(heads: int, kv_heads: int, *, ulysses: int) -> tuple[HeadShare, ...]:
    """Cut the query heads in `ulysses` runs as even as they go.

    Raises:
        ValueError: There are fewer query heads than ranks.
    """
    if ulysses > heads:
        raise ValueError(
            f"ulysses is {ulysses}, wanted at most the {heads} query heads; nearest is {heads}"
        )
    group = heads // kv_heads
    shares: list[HeadShare] = []
    for index in range(ulysses):
        q = Rows(index * heads // ulysses, (index + 1) * heads // ulysses)
        kv = Rows(q.start // group, (q.stop - 1) // group + 1)
        reads = tuple(head // group - kv.start for head in range(q.start, q.stop))
        run = q.num_rows // kv.num_rows
        even = reads == tuple(at // run for at in range(q.num_rows))
        shares.append(HeadShare(q, kv, None if even else reads))
    return tuple(shares)
