"""The stations of a ring: tensor-parallel groups on the fastest links, and how they are joined.

A ring of CP moves from station to station; the devices of one station have the same place in the
ring, and device r of each station is in ring r. With TP of 1 a station is one device.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from topology.graph import Device, Graph
from topology.node_order import walk_order
from topology.ring_groups import best_groups, best_matching, matching_cost
from topology.ring_search import Costs, cost_matrix

Station: TypeAlias = tuple[Device, ...]
_Worths: TypeAlias = tuple[tuple[tuple[float, int] | None, ...], ...]


def cut_stations(
    graph: Graph, devices: Mapping[str, Sequence[Device]], *, tp: int
) -> dict[str, tuple[Station, ...]]:
    """Cut the devices into groups of `tp`: inside nodes, or NVLink domains where nodes are smaller.

    Args:
        graph: The cluster.
        devices: The devices to use, by node.
        tp: Devices in a group.

    Returns:
        The stations by the node of their first device; devices in none are left over.
    """
    if tp <= max(map(len, devices.values()), default=0):
        return {node: _in_node(graph, found, tp=tp) for node, found in devices.items()}
    stations: dict[str, tuple[Station, ...]] = dict.fromkeys(devices, ())
    for found in _domains(graph, devices):
        for start in range(0, len(found) - tp + 1, tp):
            station = tuple(found[start : start + tp])
            stations[station[0].node] += (station,)
    return stations


def room_for(graph: Graph, devices: Mapping[str, Sequence[Device]]) -> tuple[list[int], list[int]]:
    """How many devices each node has, and each NVLink domain: what groups may be cut from."""
    domains = _domains(graph, devices) if graph.tree.domains else []
    return [*map(len, devices.values())], [*map(len, domains)]


def count_stations(room: tuple[list[int], list[int]], *, tp: int) -> int:
    """How many groups of `tp` there are in all; what `cut_stations` makes of the same devices."""
    nodes, domains = room
    return sum(size // tp for size in (nodes if tp <= max(nodes, default=0) else domains))


def device_costs(graph: Graph, devices: Sequence[Device]) -> Costs:
    """What every edge between the devices costs, for the ring search."""
    rows: list[tuple[tuple[float, int] | None, ...]] = []
    for place, a in enumerate(devices):
        before = [rows[other][place] for other in range(place)]
        after = [graph.edge(a, b).worth for b in devices[place + 1 :]]
        rows.append((*before, None, *after))
    return _costs(tuple(rows))


def station_costs(graph: Graph, stations: Sequence[Station]) -> Costs:
    """What every step between two stations costs, devices lined up as is best."""
    devices = [device for station in stations for device in station]
    costs = device_costs(graph, devices)
    width = len(devices) // max(1, len(stations))
    return costs if width == 1 else _folded(costs, width=width)


def line_up(graph: Graph, stations: Sequence[Station]) -> list[Station]:
    """Order the devices of each station after the station before it, so that each edge is good.

    Inside a node the links decide, between nodes the rails; the first station stays as it is.
    """
    lined: list[Station] = []
    for station in stations:
        if not lined or len(station) == 1:
            lined.append(station)
            continue
        columns = best_matching(_steps(graph, lined[-1], station))
        lined.append(tuple(station[column] for column in columns))
    return lined


def rails_of(graph: Graph, station: Station) -> tuple[tuple[str, ...], ...]:
    """The rails of a station: the nearest NICs of each of its devices, in one order."""
    return tuple(sorted(graph.nearest_nics(device) for device in station))


def _steps(graph: Graph, before: Station, after: Station) -> tuple[tuple[int, ...], ...]:
    same_node = before[0].node == after[0].node
    if same_node:
        width = len(before)
        costs = device_costs(graph, [*before, *after])
        return tuple(row[width:] for row in costs[:width])
    rails_a, rails_b = ([graph.nearest_nics(d) for d in station] for station in (before, after))
    if rails_a == rails_b:
        return ((0,) * len(after),) * len(before)  # any order will do: it stays
    return tuple(tuple(int(a != b) for b in rails_b) for a in rails_a)


def _domains(graph: Graph, devices: Mapping[str, Sequence[Device]]) -> list[list[Device]]:
    found: dict[str, list[Device]] = {}
    for node in walk_order(graph.tree, list(devices)):
        for device in devices[node]:
            if (domain := graph.domain(device)) is not None:
                found.setdefault(domain, []).append(device)
    return list(found.values())


def _in_node(graph: Graph, devices: Sequence[Device], *, tp: int) -> tuple[Station, ...]:
    if tp == 1:
        return tuple((device,) for device in devices)
    if len(devices) == tp:
        return (tuple(devices),)
    groups, _ = best_groups(device_costs(graph, devices), size=tp)
    return tuple(tuple(devices[place] for place in group) for group in groups)


@lru_cache(maxsize=256)
def _costs(worths: _Worths) -> Costs:
    return cost_matrix(worths)


@lru_cache(maxsize=256)
def _folded(costs: Costs, *, width: int) -> Costs:
    starts = range(0, len(costs), width)

    def step(a: int, b: int) -> int:
        return matching_cost(tuple(row[b : b + width] for row in costs[a : a + width]))

    return tuple(tuple(0 if a == b else step(a, b) for b in starts) for a in starts)
