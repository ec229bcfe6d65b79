"""Everyone's exchanges, blocks and costs, as a pure function of cut, mask and strategy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cptune.attention import cost
from cptune.attention.cost import PlanBytes, PlanFlop, PlanPeak, Seat, Widths
from cptune.attention.heads import HeadShare, share_heads
from cptune.attention.kernels import find_footprint
from cptune.attention.mask import Mask, Pattern
from cptune.attention.peak import count_peak
from cptune.attention.shard import Partition, join_touching
from cptune.attention.stages import Ring, Schedule, build_flat_stages
from cptune.attention.two_level import TwoLevel, build_sites, spans_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everyone's schedule.

    Groups of `ulysses` ranks trade heads; the ranks of one place in every group are a ring that
    exchanges keys and values in `stages`. With `nodes`, groups are filled node by node, and a ring
    that spans nodes takes a row over a boundary once. `heads`, `kv_heads`, `head_dim`, `itemsize`
    (bytes of one element), `dkv_itemsize` (of a gradient of keys and values on the wire; the same
    where omitted) and `kernel` only turn rows into bytes.
    """

    partition: Partition
    mask: Mask
    stages: int  # 1..ring-1; 0 for a ring of one rank
    docs: tuple[int, ...] = ()
    window: int | None = None
    ulysses: int = 1
    nodes: tuple[object, ...] | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    itemsize: int | None = None
    dkv_itemsize: int | None = None
    kernel: str | None = None

    def __post_init__(self) -> None:
        most = self.partition.cp_size // self.ulysses - 1
        least = min(1, most)
        if not least <= self.stages <= most:
            nearest = min(max(self.stages, least), most)
            raise ValueError(
                f"stages is {self.stages}, wanted {least}..{most} for {most + 1} ranks; "
                f"nearest is {nearest}"
            )

    @property
    def pattern(self) -> Pattern:
        """The mask over the sequence."""
        return _pattern(self.mask, self.partition.seq_len, self.docs, self.window)

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Ulysses groups, one a ring rank: neighbours, of one node as far as that goes."""
        order: Sequence[int] = range(self.partition.cp_size)
        if self.nodes is not None and self.ulysses > 1:
            names = list(dict.fromkeys(self.nodes))
            seats = [names.index(name) for name in self.nodes]
            order = sorted(order, key=lambda rank: seats[rank])
        size = self.ulysses
        return tuple(tuple(order[at : at + size]) for at in range(0, len(order), size))

    def seat(self, rank: int) -> tuple[int, int]:
        """(ring rank, place in its Ulysses group) of a rank of the context group."""
        for ring_rank, group in enumerate(self.groups()):
            if rank in group:
                return ring_rank, group.index(rank)
        last = self.partition.cp_size - 1
        raise ValueError(f"rank is {rank}, wanted 0..{last}; nearest is {min(max(rank, 0), last)}")

    def peers(self, rank: int) -> tuple[int, ...]:
        """The ring that `rank` is in, as ranks of the context group."""
        place = self.seat(rank)[1]
        return tuple(group[place] for group in self.groups())

    def ring(self) -> Ring:
        """What each ring rank owns: the tokens of its whole Ulysses group."""
        owned = (
            join_touching(sorted(one for rank in group for one in self.partition.intervals(rank)))
            for group in self.groups()
        )
        return Ring(pattern=self.pattern, owned=tuple(owned))

    def schedule(self, rank: int) -> Schedule:
        """What `rank` does once it has its heads; stages name ring ranks."""
        ring, (ring_rank, _) = self.ring(), self.seat(rank)
        nodes = self.nodes and [self.nodes[peer] for peer in self.peers(rank)]
        if nodes and spans_nodes(nodes):
            two_level = TwoLevel(ring=ring, sites=build_sites(nodes), stages=self.stages)
            return ring.schedule(ring_rank, two_level.build_stages(ring_rank))
        stages = build_flat_stages(ring, ring_rank, stages=self.stages)
        return ring.schedule(ring_rank, tuple(stages))

    def shares(self, *, heads: int, kv_heads: int) -> tuple[HeadShare, ...]:
        """Heads of each place in a Ulysses group."""
        return share_heads(heads, kv_heads, ulysses=self.ulysses)

    def bind(
        self,
        *,
        kv_heads: int | None,
        head_dim: int | None,
        itemsize: int | None,
        heads: int | None = None,
        dkv_itemsize: int | None = None,
        kernel: str | None = None,
    ) -> "Plan":
        """The same plan with the size of a row filled in where it was open."""
        return replace(
            self,
            heads=self.heads or heads,
            kv_heads=self.kv_heads or kv_heads,
            head_dim=self.head_dim or head_dim,
            itemsize=self.itemsize or itemsize,
            dkv_itemsize=self.dkv_itemsize or dkv_itemsize,
            kernel=kernel or self.kernel,
        )

    def bytes(
        self,
        rank: int,
        *,
        heads: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        itemsize: int | None = None,
    ) -> PlanBytes:
        """What `rank` will move for one layer at batch 1, payload only.

        Args:
            rank: Rank of the context group.
            heads: Query heads of this rank; the bound value where omitted, as all. Only Ulysses
                moves queries.
            kv_heads: Key heads of this rank.
            head_dim: Elements of a head.
            itemsize: Bytes of an element on the wire.

        Raises:
            ValueError: A size is neither given nor bound.
        """
        given = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "itemsize": itemsize}
        known = {name: value for name, value in given.items() if value is not None}
        whole = replace(self, **known)._widths(heads_matter=self.ulysses > 1)
        found = cost.count_ring_bytes(self.schedule(rank).stages, self._of_place(rank, whole))
        if self.ulysses == 1:
            return found
        return cost.add_bytes(found, cost.count_head_bytes(self._seat(rank, whole), whole))

    def flops(self, rank: int) -> PlanFlop:
        """Floating-point operations of `rank` for one layer at batch 1.

        Raises:
            ValueError: A size is not bound.
        """
        pairs = cost.count_pairs(self.schedule(rank))
        return cost.count_flop(pairs, self._of_place(rank, self._widths()))

    def peak_bytes(self, rank: int, *, kernel: str | None = None) -> PlanPeak:
        """Most bytes that attention holds on `rank` beside its inputs, for one layer at batch 1.

        Args:
            rank: Rank of the context group.
            kernel: Whose scratch memory is counted; the bound one where omitted: the one that ran
                last, or was asked for by its name.

        Raises:
            ValueError: A size or the kernel is not bound.
        """
        whole = self._widths()
        name = kernel or self.kernel
        if name is None:
            raise ValueError("kernel is not known, wanted the name of one: pass it or attend once")
        seat = self._seat(rank, whole) if self.ulysses > 1 else None
        return count_peak(
            self.schedule(rank),
            whole=whole,
            widths=self._of_place(rank, whole),
            local_len=self.partition.local_len,
            seat=seat,
            kernel=find_footprint(name),
        )

    def pairs(self, rank: int) -> int:
        """Query-key pairs that `rank` attends, heads shared out: its share of the work."""
        pairs = cost.count_pairs(self.schedule(rank))
        if self.ulysses == 1:
            return pairs
        if self.heads and self.kv_heads:
            shares = self.shares(heads=self.heads, kv_heads=self.kv_heads)
            return pairs * shares[self.seat(rank)[1]].q.num_rows // self.heads
        return pairs // self.ulysses

    def imbalance(self) -> float:
        """Work of the busiest rank over the mean; 1.0 is perfect."""
        work = [self.pairs(rank) for rank in range(self.partition.cp_size)]
        return max(work) * len(work) / sum(work)

    def _widths(self, *, heads_matter: bool = True) -> Widths:
        asked = {
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "itemsize": self.itemsize,
            "heads": self.heads or (None if heads_matter else self.kv_heads),
        }
        kv_heads, head_dim, itemsize, heads = (_known(*one) for one in asked.items())
        return Widths(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            itemsize=itemsize,
            dkv_itemsize=self.dkv_itemsize or itemsize,
        )

    def _of_place(self, rank: int, whole: Widths) -> Widths:
        """The heads that `rank` attends."""
        shares = self.shares(heads=whole.heads, kv_heads=whole.kv_heads)
        share = shares[self.seat(rank)[1]]
        return replace(
            whole,
            heads=share.q.num_rows,
            kv_heads=share.kv.num_rows,
            spread=share.spread is not None,
        )

    def _seat(self, rank: int, whole: Widths) -> Seat:
        ring_rank, place = self.seat(rank)
        group = self.groups()[ring_rank]
        shares = self.shares(heads=whole.heads, kv_heads=whole.kv_heads)
        return Seat(
            share=shares[place],
            own_rows=self.partition.real_len(rank),
            peer_rows=tuple(self.partition.real_len(peer) for peer in group if peer != rank),
            peer_shares=(*shares[:place], *shares[place + 1 :]),
        )


def _known(name: str, value: int | None) -> int:
    if value is None:
        raise ValueError(
            f"{name} is not known, wanted heads, kv_heads, head_dim and itemsize: pass them, give "
            "heads, kv_heads, head_dim and dtype to ContextParallel, or attend once"
        )
    return value


@lru_cache(maxsize=64)
def _pattern(mask: Mask, seq_len: int, docs: tuple[int, ...], window: int | None) -> Pattern:
    return Pattern(mask=mask, seq_len=seq_len, docs=docs, window=window)
