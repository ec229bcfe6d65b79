"""From stations to rings: which form a group, in which order, and the edges between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from topology.graph import NETWORK, Device, Graph, worth
from topology.node_order import join_nodes
from topology.rails import Ends, join_rails
from topology.ring_groups import best_groups
from topology.ring_plan import Crossings, Ring
from topology.ring_search import (
    EXACT_MOST,
    Costs,
    best_paths,
    best_ring,
    cost_matrix,
    improved_ring,
    is_uniform,
    slowest_edge_bound,
)
from topology.stations import Station, line_up, rails_of, station_costs

Pieces: TypeAlias = tuple[tuple[str, tuple[Station, ...]], ...]  # nodes in walking order
_TOLD_MOST = 64  # nodes of one ring ordered by rates; a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The stations of one group in ring order."""

    stations: tuple[Station, ...]
    rail_changes: int = 0  # steps between nodes that end on another rail than they begin
    note: str = ""


def group_stations(
    graph: Graph, stations: Mapping[str, tuple[Station, ...]], *, cp: int
) -> list[Pieces]:
    """Groups of `cp` stations: inside nodes where they fit, then up the network tree."""
    groups: list[Pieces] = []
    left: dict[str, tuple[Station, ...]] = {}
    for node, found in stations.items():
        inside, left[node] = _inside(graph, found, cp=cp)
        groups += [((node, members),) for members in inside]

    def cut(
        some: tuple[Station, ...], count: int
    ) -> tuple[tuple[Station, ...], tuple[Station, ...]]:
        return _choose(graph, some, count=count)

    joined, _ = join_nodes(left, size=cp, tree=graph.tree, cut=cut)
    groups += [bundle.pieces for bundle in joined]
    place = {node: number for number, node in enumerate(stations)}
    return sorted(groups, key=lambda pieces: min(place[node] for node, _ in pieces))


def lay_out(graph: Graph, pieces: Pieces) -> Layout:
    """The best order of the stations of one group; each node is entered and left once."""
    if len(pieces) == 1:
        return _one_node(graph, pieces[0][1])
    pieces, note = _by_told_rates(graph, pieces)
    ways = [_ways(graph, stations) for _, stations in pieces]
    ends: list[list[Ends]] = [
        [(rails_of(graph, way[0]), rails_of(graph, way[-1])) for way in found] for found in ways
    ]
    chosen, changes = join_rails(ends)
    order = [
        station for found, choice in zip(ways, chosen, strict=True) for station in found[choice]
    ]
    return Layout(stations=tuple(line_up(graph, order)), rail_changes=changes, note=note)


def build_ring(graph: Graph, order: Sequence[Device]) -> Ring:
    """The ring over devices in this order."""
    following = [*order[1:], *order[:1]]
    edges = [graph.edge(a, b) for a, b in zip(order, following, strict=True) if a != b]
    other_island = [graph.island(edge.a) != graph.island(edge.b) for edge in edges]
    leaf = {node: graph.tree.leaf(node) for node in {device.node for device in order}}
    crossings = Crossings(
        island=sum(other_island),
        node=sum(edge.a.node != edge.b.node for edge in edges),
        switch=sum(leaf[edge.a.node] != leaf[edge.b.node] for edge in edges),
    )
    leaving = tuple(
        edge
        for edge, other in zip(edges, other_island, strict=True)
        if other or edge.a.node != edge.b.node
    )
    return Ring(order=tuple(order), edges=tuple(edges), crossings=crossings, leaving=leaving)


def _inside(
    graph: Graph, stations: tuple[Station, ...], *, cp: int
) -> tuple[list[tuple[Station, ...]], tuple[Station, ...]]:
    """(groups that fit in the node, the stations left over)."""
    if len(stations) < cp:
        return [], stations
    if len(stations) == cp:
        return [stations], ()
    groups, left = best_groups(station_costs(graph, stations), size=cp)
    members = [tuple(stations[place] for place in group) for group in groups]
    return members, tuple(stations[place] for place in left)


def _choose(
    graph: Graph, stations: tuple[Station, ...], *, count: int
) -> tuple[tuple[Station, ...], tuple[Station, ...]]:
    """(the `count` stations of a node that go best together, the others)."""
    chosen = range(count)
    if len(stations) <= EXACT_MOST:
        chosen = best_ring(station_costs(graph, stations), size=count)
    taken = tuple(stations[place] for place in sorted(chosen))
    rest = tuple(station for place, station in enumerate(stations) if place not in chosen)
    return taken, rest


def _one_node(graph: Graph, stations: tuple[Station, ...]) -> Layout:
    costs = station_costs(graph, stations)
    note = ""
    if len(stations) <= EXACT_MOST or is_uniform(costs):
        order = best_ring(costs, size=len(stations))
    else:
        order = improved_ring(costs)
        note = _gap(graph, stations, order=order, costs=costs)
    return Layout(stations=tuple(line_up(graph, [stations[place] for place in order])), note=note)


def _by_told_rates(graph: Graph, pieces: Pieces) -> tuple[Pieces, str]:
    """Nodes in the order that rates between nodes ask for, where such are told; and a remark."""
    nodes = [node for node, _ in pieces]
    if len(nodes) < 4 or not graph.tree.between_nodes.intersection(nodes):
        return pieces, ""  # the walk of the tree is the best order
    if len(nodes) > _TOLD_MOST:
        return pieces, f"{len(nodes)} nodes in a ring: their order follows the network tree alone"
    costs = cost_matrix([[_node_worth(graph, a, b) for b in nodes] for a in nodes])
    few = len(nodes) <= EXACT_MOST
    order = best_ring(costs, size=len(nodes)) if few else improved_ring(costs)
    return tuple(pieces[place] for place in order), ""


def _node_worth(graph: Graph, a: str, b: str) -> tuple[float, int] | None:
    if a == b:
        return None
    rate, _ = worth(NETWORK, None, graph.tree.rates.get(frozenset((a, b))))
    return rate, -graph.distance(a, b)


def _ways(graph: Graph, stations: tuple[Station, ...]) -> list[list[Station]]:
    if len(stations) == 1:
        return [[stations[0]]]
    paths = best_paths(station_costs(graph, stations))
    return [[stations[place] for place in path] for path in paths]


def _gap(graph: Graph, stations: tuple[Station, ...], *, order: Sequence[int], costs: Costs) -> str:
    """How far a heuristic order may be from the best one."""
    steps = list(zip(order, (*order[1:], *order[:1]), strict=True))
    worst = max(steps, key=lambda step: costs[step[0]][step[1]])
    bound = slowest_edge_bound(costs)
    what = (
        f"{stations[0][0].node}: {len(stations)} unlike places, more than {EXACT_MOST}: the order"
    )
    if costs[worst[0]][worst[1]] == bound:
        return f"{what} is found by heuristics; its slowest edge is as good as can be"
    places = range(len(costs))
    least = next((a, b) for a in places for b in places if a != b and costs[a][b] == bound)
    shown = [graph.edge(stations[a][0], stations[b][0]).label for a, b in (worst, least)]
    return (
        f"{what} is found by heuristics; its slowest edge is {shown[0]}, no order beats {shown[1]}"
    )
