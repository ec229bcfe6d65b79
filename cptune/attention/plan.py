"""Ring, all-gather and everything between as one staged plan that moves only the rows needed.

A plan is a pure function of partition, mask and number of stages. Every rank can compute everyone's
part, so no metadata is exchanged and every receive has its send by construction. The same numbers
are the cost model and what the transport's counters are tested against.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from cptune.attention.mask import Cover, Mask, Slice, build_slices, cover
from cptune.attention.shard import Interval, Partition


class Strategy(StrEnum):
    """Named numbers of stages."""

    RING = "ring"  # one peer a stage unless told otherwise
    ALL_GATHER = "all_gather"  # all peers in one stage


class Rows(NamedTuple):
    """Rows [start, stop) of their owner's shard."""

    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """How many rows."""
        return self.stop - self.start


Transfer = tuple[int, Rows]  # (peer as a rank of the context group, rows of the owner's shard)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One exchange and the compute that uses what it brings.

    The rows of all of `recv` lie one after the other in the stage's buffer; key rows of `slices`
    count there, query rows in the own shard.
    """

    recv: tuple[Transfer, ...]  # from rank - d, for each distance d of the stage
    send: tuple[Transfer, ...]  # to rank + d; rows of the own shard
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What one rank does: its own block first, then stage by stage."""

    rows: int  # real rows of this rank
    local: tuple[Slice, ...]
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBytes:
    """Payload bytes that one rank moves for one layer at batch 1."""

    forward_sent: int
    forward_received: int
    backward_sent: int  # keys and values again, and the gradients of the peers' rows
    backward_received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everyone's schedule.

    `kv_heads`, `head_dim` and `itemsize` (bytes of one element) only turn rows into bytes.
    """

    partition: Partition
    mask: Mask
    stages: int  # 1..cp_size-1; 0 for one rank
    kv_heads: int | None = None
    head_dim: int | None = None
    itemsize: int | None = None

    def __post_init__(self) -> None:
        most = self.partition.cp_size - 1
        least = min(1, most)
        if not least <= self.stages <= most:
            nearest = min(max(self.stages, least), most)
            raise ValueError(
                f"stages is {self.stages}, wanted {least}..{most} for {most + 1} ranks; "
                f"nearest is {nearest}"
            )

    def schedule(self, rank: int) -> Schedule:
        """What `rank` does."""
        mine = self.partition.intervals(rank)
        return Schedule(
            rows=self.partition.real_len(rank),
            local=build_slices(self.mask, q_intervals=mine, kv_intervals=mine),
            stages=tuple(self._stage(rank, index) for index in range(self.stages)),
        )

    def bind(self, *, kv_heads: int | None, head_dim: int | None, itemsize: int | None) -> "Plan":
        """The same plan with the size of a row filled in where it was open."""
        return replace(
            self,
            kv_heads=self.kv_heads or kv_heads,
            head_dim=self.head_dim or head_dim,
            itemsize=self.itemsize or itemsize,
        )

    def bytes(
        self,
        rank: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        itemsize: int | None = None,
    ) -> PlanBytes:
        """What `rank` will move for one layer at batch 1, payload only.

        Args:
            rank: Rank of the context group.
            kv_heads: Key heads of this rank; the bound value where omitted. As the next two.
            head_dim: Elements of a head.
            itemsize: Bytes of an element on the wire.

        Raises:
            ValueError: A size is neither given nor bound.
        """
        asked = {
            "kv_heads": kv_heads or self.kv_heads,
            "head_dim": head_dim or self.head_dim,
            "itemsize": itemsize or self.itemsize,
        }
        row_bytes = 2  # a key and a value
        for name, value in asked.items():
            if value is None:
                raise ValueError(
                    f"{name} is not known, wanted kv_heads, head_dim and itemsize: pass them to "
                    "bytes(), give kv_heads, head_dim and dtype to ContextParallel, or attend once"
                )
            row_bytes *= value
        stages = self.schedule(rank).stages
        sent = row_bytes * sum(rows.num_rows for stage in stages for _, rows in stage.send)
        received = row_bytes * sum(rows.num_rows for stage in stages for _, rows in stage.recv)
        return PlanBytes(
            forward_sent=sent,
            forward_received=received,
            backward_sent=sent + received,
            backward_received=received + sent,
        )

    def pairs(self, rank: int) -> int:
        """Query-key pairs that `rank` attends: its share of the work."""
        schedule = self.schedule(rank)
        remote = (block for stage in schedule.stages for block in stage.slices)
        return sum(block.pairs for block in (*schedule.local, *remote))

    def imbalance(self) -> float:
        """Work of the busiest rank over the mean; 1.0 is perfect."""
        work = [self.pairs(rank) for rank in range(self.partition.cp_size)]
        return max(work) * len(work) / sum(work)

    def _stage(self, rank: int, index: int) -> Stage:
        size = self.partition.cp_size
        distances = _distances(index, stages=self.stages, cp_size=size)
        fetched = [((rank - d) % size, self._needed(rank, (rank - d) % size)) for d in distances]
        given = [((rank + d) % size, self._needed((rank + d) % size, rank)) for d in distances]
        kv_intervals = [interval for _, (_, intervals) in fetched for interval in intervals]
        return Stage(
            recv=tuple((peer, rows) for peer, (rows, _) in fetched if rows.num_rows),
            send=tuple((peer, rows) for peer, (rows, _) in given if rows.num_rows),
            slices=build_slices(
                self.mask,
                q_intervals=self.partition.intervals(rank),
                kv_intervals=kv_intervals,
            ),
        )

    def _needed(self, rank: int, owner: int) -> tuple[Rows, list[Interval]]:
        """Rows of `owner` that some query of `rank` sees, and the global intervals they are."""
        queries = self.partition.intervals(rank)
        needed: list[Interval] = []
        start, row = 0, 0
        for kv in self.partition.intervals(owner):
            if any(cover(self.mask, q=q, kv=kv) is not Cover.SKIP for q in queries):
                start = start if needed else row
                needed.append(kv)
            row += kv[1] - kv[0]
        count = sum(stop - begin for begin, stop in needed)
        # A view of the packed shard is one message only if nothing is left out between.
        assert needed == list(self.partition.intervals(owner))[: len(needed)], "rows with a hole"
        return Rows(start, start + count), needed


def count_stages(strategy: Strategy, *, cp_size: int, stages: int | None) -> int:
    """Number of stages that `strategy` and an optional explicit `stages` mean.

    Raises:
        ValueError: `stages` contradicts the strategy or the group; Plan checks its range.
    """
    most = cp_size - 1
    if stages is None:
        return min(1, most) if strategy is Strategy.ALL_GATHER else most
    if most == 0:
        raise ValueError(f"stages is {stages}, wanted None: one rank exchanges nothing")
    if strategy is Strategy.ALL_GATHER and stages != 1:
        raise ValueError(
            f"stages is {stages}, wanted 1 for strategy all_gather; nearest is 1 "
            f"(strategy ring takes 1..{most})"
        )
    return stages


def _distances(index: int, *, stages: int, cp_size: int) -> range:
    """Distances of one stage: 1..cp_size-1 in consecutive groups as even as they go."""
    peers = cp_size - 1
    return range(1 + index * peers // stages, 1 + (index + 1) * peers // stages)
