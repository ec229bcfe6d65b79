"""Ring, all-gather and everything between as one staged exchange that moves only the rows needed.

Every rank can compute everyone's part, so no metadata is exchanged and every receive has its send
by construction.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cptune.attention.mask import Interval, Pattern
from cptune.attention.slices import Rows, Slice, build_slices, needed_rows, pick


class Transfer(NamedTuple):
    """One message: rows of the sender's shard, or of the buffer that it hands on from."""

    peer: int  # as a rank of the ring
    rows: tuple[Rows, ...]  # with holes where nobody needs what lies between

    @property
    def num_rows(self) -> int:
        """Rows of the message."""
        return sum(one.num_rows for one in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One exchange and the compute that uses what it brings.

    The rows of all of `recv` lie one after the other in the stage's buffer; key rows of `slices`
    count there, query rows in the own shard. Posted before stage `post` is waited for (-1: at the
    start), or just after it when it hands on what that stage brings.
    """

    recv: tuple[Transfer, ...]
    send: tuple[Transfer, ...]  # rows of the own shard, or of the buffer of stage `source`
    slices: tuple[Slice, ...]
    post: int
    source: int | None = None

    @property
    def num_rows(self) -> int:
        """Rows of the buffer."""
        return sum(one.num_rows for one in self.recv)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What one rank does: its own block first, then stage by stage."""

    rows: int  # real rows of this rank
    local: tuple[Slice, ...]
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Ranks that exchange keys and values, by what they own."""

    pattern: Pattern
    owned: tuple[tuple[Interval, ...], ...]  # sorted global intervals of each rank

    @property
    def size(self) -> int:
        """How many ranks."""
        return len(self.owned)

    def needs(self, rank: int, owner: int) -> tuple[Rows, ...]:
        """Rows of `owner` that some query of `rank` sees."""
        return needed_rows(self.pattern, self.owned[rank], self.owned[owner])

    def slices(self, rank: int, keys: Sequence[tuple[int, Sequence[Rows]]]) -> tuple[Slice, ...]:
        """Blocks of `rank` against a buffer that holds (owner, its rows) one after the other."""
        found = [one for owner, rows in keys for one in pick(self.owned[owner], rows)]
        return build_slices(self.pattern, q_intervals=self.owned[rank], kv_intervals=found)

    def schedule(self, rank: int, stages: Sequence[Stage]) -> Schedule:
        """The own block, then `stages`."""
        mine = self.owned[rank]
        return Schedule(
            rows=sum(stop - start for start, stop in mine),
            local=build_slices(self.pattern, q_intervals=mine, kv_intervals=mine),
            stages=tuple(stages),
        )


def build_flat_stages(ring: Ring, rank: int, *, stages: int) -> Iterator[Stage]:
    """Peers at distance 1..P-1, some at a time: each stage is a shift, so no rank is a hot spot."""
    size = ring.size
    for index in range(stages):
        distances = split_evenly(size - 1, stages, index)
        owners = [(rank - d) % size for d in distances]
        keys = [(owner, ring.needs(rank, owner)) for owner in owners]
        takers = [(rank + d) % size for d in distances]
        given = [(taker, ring.needs(taker, rank)) for taker in takers]
        yield Stage(
            recv=messages(keys),
            send=messages(given),
            slices=ring.slices(rank, keys),
            post=index - 1,
        )


def split_evenly(count: int, parts: int, index: int) -> range:
    """Part `index` of 1..count in consecutive parts as even as they go."""
    return range(1 + index * count // parts, 1 + (index + 1) * count // parts)


def messages(found: Sequence[tuple[int, Sequence[Rows]]]) -> tuple[Transfer, ...]:
    """The messages that hold a row."""
    return tuple(Transfer(peer, tuple(rows)) for peer, rows in found if rows)
