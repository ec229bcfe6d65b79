"""The network as one tree: for every node the tiers above it, whatever shape the input has.

Switch graphs people post have several parents, cycles and no root; nothing here recurses, and what
does not fit a tree is cut at one place and noted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from topology.network import Network, Tier, TierKind
from topology.nouns import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTree:
    """Where each node hangs."""

    paths: Mapping[str, tuple[str, ...]]  # node -> tiers from the root down to its own
    domains: Mapping[str, str]  # node -> its NVLink domain
    rates: Mapping[frozenset[str], float]  # told of the edge between two names, the best of them
    between_nodes: frozenset[str]  # nodes with a rate told of the way to another node
    rates_out: Mapping[str, tuple[float | None, ...]]  # node or tier -> told of its edges upwards
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, topology: Topology) -> Self:
        """Read the tree out of the network of a topology."""
        names = [node.name for node in topology.nodes]
        known = set(names)
        network = topology.network
        notes: list[str] = []
        fabric = [tier for tier in network.tiers if tier.kind is not TierKind.NVLINK_DOMAIN]
        fast = {tier.name for tier in network.tiers if tier.kind is TierKind.NVLINK_DOMAIN}
        parents = _parents(network, notes=notes)
        leaves = _leaves(fabric, network=network, nodes=known, notes=notes)
        domains = {
            node: tier.name
            for tier in reversed(network.tiers)
            if tier.name in fast
            for node in tier.nodes
        }
        paths: dict[str, tuple[str, ...]] = {}
        for node in names:
            lowest = leaves.get(node) or parents.get(domains.get(node, ""))
            paths[node] = _climb(lowest, parents=parents)
            if above := [tier for tier in paths[node] if tier in fast]:
                domains[node] = above[-1]
        paths = _with_domains(paths, domains=domains)
        rates = _rates(network)
        return cls(
            paths=paths,
            domains=domains,
            rates=rates,
            between_nodes=frozenset(node for ends in rates if ends <= known for node in ends),
            rates_out=_rates_out(network, paths=paths, parents=parents),
            notes=tuple(notes),
        )

    def leaf(self, node: str) -> str | None:
        """The lowest switch or block above a node, not its NVLink domain."""
        domain = self.domains.get(node)
        return next((tier for tier in reversed(self.paths[node]) if tier != domain), None)

    def distance(self, node_a: str, node_b: str) -> int:
        """Tiers to climb from one node until the other is below; one more where none is shared."""
        if node_a == node_b:
            return 0
        path_a, path_b = self.paths[node_a], self.paths[node_b]
        return max(len(path_a), len(path_b)) - _shared(path_a, path_b) + 1


def _parents(network: Network, *, notes: list[str]) -> dict[str, str]:
    """Tier -> the tier above it, one each and without cycles."""
    listed: dict[str, list[str]] = {}
    for tier in network.tiers:
        above = listed.setdefault(tier.name, [])
        if tier.parent is not None and tier.parent not in above:
            above.append(tier.parent)
    several = [name for name, above in listed.items() if len(above) > 1]
    if several:
        notes.append(
            f"network: {_some(several)}: several parents; placement follows the first of each"
        )
    parents = _parents_by_edges(network)
    parents.update({name: above[0] for name, above in listed.items() if above})
    return _without_cycles(parents, notes=notes)


def _parents_by_edges(network: Network) -> dict[str, str]:
    """For tiers that edges alone join: the neighbour one level farther from the nodes."""
    order = list(dict.fromkeys(tier.name for tier in network.tiers))
    neighbours: dict[str, list[str]] = {name: [] for name in order}
    for edge in network.edges:
        if edge.a in neighbours and edge.b in neighbours and edge.a != edge.b:
            neighbours[edge.a].append(edge.b)
            neighbours[edge.b].append(edge.a)
    names = set(order)
    level = {tier.name: 0 for tier in network.tiers if tier.nodes}
    level |= {
        a: 0 for e in network.edges for a, b in ((e.a, e.b), (e.b, e.a)) if _joins(a, b, names)
    }
    front = [name for name in order if name in level]
    parents: dict[str, str] = {}
    while front:
        reached = {near for name in front for near in neighbours[name] if near not in level}
        for name in front:
            above = next((near for near in neighbours[name] if near in reached), None)
            if above is not None:
                parents[name] = above
        level |= dict.fromkeys(reached, level[front[0]] + 1)
        front = [name for name in order if name in reached]
    return parents


def _joins(tier: str, node: str, tiers: set[str]) -> bool:
    return tier in tiers and node not in tiers


def _without_cycles(parents: dict[str, str], *, notes: list[str]) -> dict[str, str]:
    """Cut every cycle of parents above the tier where it is met first."""
    done: set[str] = set()
    cut: list[str] = []
    for start in list(parents):
        way: dict[str, None] = {}
        name: str | None = start
        while name is not None and name not in done and name not in way:
            way[name] = None
            name = parents.get(name)
        if name is not None and name in way:
            del parents[name]
            cut.append(name)
        done.update(way)
    if cut:
        notes.append(f"network: tiers form a cycle; taken as the top of it: {_some(cut)}")
    return parents


def _leaves(
    fabric: Iterable[Tier], *, network: Network, nodes: set[str], notes: list[str]
) -> dict[str, str]:
    """Node -> the switch right above it; the block where it has no switch."""
    above: dict[str, list[Tier]] = {}
    tiers = {tier.name: tier for tier in fabric}
    for tier in fabric:
        for node in tier.nodes:
            above.setdefault(node, []).append(tier)
    for edge in network.edges:
        for node, name in ((edge.a, edge.b), (edge.b, edge.a)):
            if node in nodes and name in tiers and node not in above:
                above[node] = [tiers[name]]
    names = {node: _switches(found) for node, found in above.items()}
    several = [node for node, found in names.items() if len(found) > 1 and node in nodes]
    if several:
        notes.append(f"network: {_some(several)}: under several switches; the first is followed")
    return {node: found[0] for node, found in names.items()}


def _switches(tiers: list[Tier]) -> list[str]:
    """The switches among the tiers; the blocks where there are none."""
    switches = [tier.name for tier in tiers if tier.kind is TierKind.SWITCH]
    return list(dict.fromkeys(switches or [tier.name for tier in tiers]))


def _climb(lowest: str | None, *, parents: Mapping[str, str]) -> tuple[str, ...]:
    path: list[str] = []
    name = lowest
    while name is not None:
        path.append(name)
        name = parents.get(name)
    return tuple(reversed(path))


def _rates(network: Network) -> dict[frozenset[str], float]:
    rates: dict[frozenset[str], float] = {}
    for edge in network.edges:
        if edge.bytes_per_s is not None:
            ends = frozenset((edge.a, edge.b))
            rates[ends] = max(edge.bytes_per_s, rates.get(ends, 0.0))
    return rates


def _rates_out(
    network: Network, *, paths: Mapping[str, tuple[str, ...]], parents: Mapping[str, str]
) -> dict[str, tuple[float | None, ...]]:
    """Edges that cross the boundary of a node or tier with all below it.

    An edge between two nodes is no part of it: it tells of a way through the network, not a cable.
    """
    found: dict[str, list[float | None]] = {}
    for edge in network.edges:
        if edge.a in paths and edge.b in paths:
            continue
        above = [
            {end, *paths[end]} if end in paths else set(_climb(end, parents=parents))
            for end in (edge.a, edge.b)
        ]
        for name in above[0] ^ above[1]:
            found.setdefault(name, []).append(edge.bytes_per_s)
    return {name: tuple(rates) for name, rates in found.items()}


def _with_domains(
    paths: Mapping[str, tuple[str, ...]], *, domains: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Each NVLink domain as a tier below the lowest one that holds all of its nodes."""
    shared: dict[str, tuple[str, ...]] = {}
    for node, path in paths.items():
        if (domain := domains.get(node)) is not None:
            so_far = shared.get(domain, path)
            shared[domain] = path[: _shared(so_far, path)]
    placed = dict(paths)
    for node, path in paths.items():
        if (domain := domains.get(node)) is not None and domain not in path:
            depth = len(shared[domain])
            placed[node] = (*path[:depth], domain, *path[depth:])
    return placed


def _shared(path_a: tuple[str, ...], path_b: tuple[str, ...]) -> int:
    pairs = enumerate(zip(path_a, path_b, strict=False))
    different = (depth for depth, (a, b) in pairs if a != b)
    return next(different, min(len(path_a), len(path_b)))


def _some(names: list[str], *, most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
