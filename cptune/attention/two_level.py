"""The exchange of a ring that spans nodes: a row crosses a boundary once and is handed on inside.

Of each owner elsewhere one rank of a node, its gateway, takes all rows that anyone on the node
needs. In backward the partial gradients of a node are summed at the gateway, in the accumulator
type, before they cross back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cptune.attention.slices import Rows, join_rows
from cptune.attention.stages import Ring, Stage, messages, split_evenly

_Keys = list[tuple[int, tuple[Rows, ...]]]  # (owner, its rows), in the order of a buffer


@dataclass(frozen=True, slots=True)
class Sites:
    """Which rank of a ring is where."""

    members: tuple[tuple[int, ...], ...]  # ranks of each node
    node: tuple[int, ...]  # index of the node of each rank
    place: tuple[int, ...]  # index of each rank on its node

    @property
    def widest(self) -> int:
        """Ranks of the largest node."""
        return max(map(len, self.members))

    def gateway(self, node: int, owner: int) -> int:
        """The rank of `node` that takes the rows of `owner` over the boundary."""
        here = self.members[node]
        return here[self.place[owner] % len(here)]

    def beside(self, rank: int, distance: int) -> int | None:
        """The rank of the same node at a distance; None when the node is too small."""
        here = self.members[self.node[rank]]
        if abs(distance) >= len(here):
            return None
        return here[(self.place[rank] + distance) % len(here)]


def build_sites(nodes: Sequence[object]) -> Sites:
    """Order the nodes by first appearance and the ranks of a node by rank."""
    names = list(dict.fromkeys(nodes))
    members = tuple(tuple(r for r, name in enumerate(nodes) if name == one) for one in names)
    node = tuple(names.index(name) for name in nodes)
    return Sites(members, node, tuple(members[node[r]].index(r) for r in range(len(nodes))))


def spans_nodes(nodes: Sequence[object]) -> bool:
    """Is there a boundary to cross, and anyone to hand on to behind it?"""
    return 1 < len(set(nodes)) < len(nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoLevel:
    """Stages of every rank: peers of the node, then node by node across and handed on."""

    ring: Ring
    sites: Sites
    stages: int  # as of a flat plan: (P-1)/stages peers at a time

    def build_stages(self, rank: int) -> list[Stage]:
        """What `rank` does. As many stages on every rank, some of them empty."""
        inside = self._in_parts(self.sites.widest - 1)
        across = self._in_parts(len(self.sites.members) - 1)
        found = [self._beside(rank, d, post=at - 1) for at, d in enumerate(inside)]
        crossed: int | None = None
        for hops in across:
            # Under way while the stages before it are computed: at first all those of the node.
            post, crossed = (-1 if crossed is None else crossed), len(found)
            found.append(self._across(rank, hops, post=post))
            for distances in inside:
                post = crossed if len(found) == crossed + 1 else len(found) - 1
                found.append(self._hand_on(rank, hops, distances, post=post, source=crossed))
        return found

    def _in_parts(self, peers: int) -> list[range]:
        at_once = -(-(self.ring.size - 1) // self.stages)
        parts = -(-peers // at_once)
        return [split_evenly(peers, parts, index) for index in range(parts)]

    def _beside(self, rank: int, distances: Sequence[int], *, post: int) -> Stage:
        owners = self._peers(rank, [-d for d in distances])
        keys = [(owner, self.ring.needs(rank, owner)) for owner in owners]
        takers = self._peers(rank, distances)
        given = [(taker, self.ring.needs(taker, rank)) for taker in takers]
        return Stage(
            recv=messages(keys),
            send=messages(given),
            slices=self.ring.slices(rank, keys),
            post=post,
        )

    def _across(self, rank: int, hops: Sequence[int], *, post: int) -> Stage:
        node, count = self.sites.node[rank], len(self.sites.members)
        keys = self._crossing(rank, hops)
        takers = [self.sites.gateway((node + hop) % count, rank) for hop in hops]
        given = [(one, self._needs_of_node(self.sites.node[one], rank)) for one in takers]
        return Stage(
            recv=messages(keys),
            send=messages(given),
            slices=self.ring.slices(rank, keys),
            post=post,
        )

    def _hand_on(
        self, rank: int, hops: Sequence[int], distances: Sequence[int], *, post: int, source: int
    ) -> Stage:
        gates = self._peers(rank, [-d for d in distances])
        takers = self._peers(rank, distances)
        keys = [
            (owner, self.ring.needs(rank, owner))
            for gate in gates
            for owner, _ in self._crossing(gate, hops)
        ]
        return Stage(
            recv=messages([(gate, self._handed(gate, rank, hops)) for gate in gates]),
            send=messages([(taker, self._handed(rank, taker, hops)) for taker in takers]),
            slices=self.ring.slices(rank, keys),
            post=post,
            source=source,
        )

    def _peers(self, rank: int, distances: Sequence[int]) -> list[int]:
        found = (self.sites.beside(rank, d) for d in distances)
        return [peer for peer in found if peer is not None]

    def _crossing(self, gate: int, hops: Sequence[int]) -> _Keys:
        """What `gate` takes over the boundary in one stage: its buffer, owner by owner."""
        node, count = self.sites.node[gate], len(self.sites.members)
        return [
            (owner, rows)
            for hop in hops
            for owner in self.sites.members[(node - hop) % count]
            if self.sites.gateway(node, owner) == gate
            if (rows := self._needs_of_node(node, owner))
        ]

    def _needs_of_node(self, node: int, owner: int) -> tuple[Rows, ...]:
        needs = (self.ring.needs(rank, owner) for rank in self.sites.members[node])
        return join_rows(one for rows in needs for one in rows)

    def _handed(self, gate: int, taker: int, hops: Sequence[int]) -> tuple[Rows, ...]:
        """Rows of the buffer of `gate` that `taker` needs, in the order of the buffer."""
        found: list[Rows] = []
        offset = 0
        for owner, held in self._crossing(gate, hops):
            needed = self.ring.needs(taker, owner)
            found += _shift_into(held, needed, offset=offset)
            offset += sum(one.num_rows for one in held)
        return tuple(found)


def _shift_into(held: Sequence[Rows], needed: Sequence[Rows], *, offset: int) -> Iterator[Rows]:
    """Where `needed` rows of a shard lie in a buffer that holds its rows `held` from `offset`."""
    for run in held:
        for one in needed:
            if run.start <= one.start and one.stop <= run.stop:
                shift = offset - run.start
                yield Rows(one.start + shift, one.stop + shift)
        offset += run.num_rows
