"""Where the groups of a layout go: tensor parallelism on the fastest links, rings over the next.

A plan is arithmetic on a Topology: it moves nothing and measures nothing.
"""

from collections.abc import Mapping, Sequence

from topology.cuts import limits_bytes_per_s
from topology.errors import TopologyError
from topology.graph import Device, Graph
from topology.nouns import Topology
from topology.ring_layout import Layout, build_ring, group_stations, lay_out
from topology.ring_notes import (
    note_idle_nics,
    note_lost_nvlinks,
    note_rest,
    note_slow_groups,
    read_devices,
)
from topology.ring_plan import Ring, RingPlan
from topology.stations import Station, count_stations, cut_stations, room_for

__all__ = ["plan_rings"]


def plan_rings(topology: Topology, *, tp: int, cp: int) -> RingPlan:
    """Cut the devices into tensor-parallel groups, and those into context-parallel rings.

    TP groups go inside an NVLink island or node, or an NVLink domain across nodes; a ring takes
    one device of each of `cp` groups, and `tp` rings move side by side. All devices that are
    enough for one more set of rings form one; data parallelism goes over these.

    Args:
        topology: The machine or cluster; the order of its nodes and GPUs breaks ties.
        tp: Devices in a tensor-parallel group.
        cp: Tensor-parallel groups in a ring.

    Raises:
        TopologyError: There are too few devices for one set of rings.
    """
    for name, value in (("tp", tp), ("cp", cp)):
        if value < 1:
            raise TopologyError(f"{name}: saw {value}, wanted 1 or more", hint=f"{name} = 1")
    graph = Graph(topology)
    devices = read_devices(graph)
    all_used = count_stations(room_for(graph, devices.healthy), tp=tp) < cp
    used = devices.usable if all_used else devices.healthy
    room = room_for(graph, used)
    if count_stations(room, tp=tp) < cp:
        raise _refusal(room, tp=tp, cp=cp)
    stations = cut_stations(graph, used, tp=tp)
    layouts = _lay_out_all(graph, stations, cp=cp)
    sets = [[build_ring(graph, order) for order in _orders(layout, cp=cp)] for layout in layouts]
    ranked = sorted(range(len(sets)), key=lambda place: _worths(sets[place]), reverse=True)
    rings = [ring for place in ranked for ring in sets[place]]
    bound, achieved = limits_bytes_per_s(graph, [ring.edges for ring in rings])
    lost = note_lost_nvlinks(devices, used=all_used)
    notes = [*devices.notes, *lost, *_notes(graph, rings, layouts=layouts, used=used)]
    return RingPlan(
        tp=tp,
        cp=cp,
        rings=tuple(rings),
        groups=tuple(layouts[place].stations for place in ranked),
        bound_bytes_per_s=bound,
        achieved_bytes_per_s=achieved,
        notes=tuple(dict.fromkeys(notes)),
    )


def _lay_out_all(
    graph: Graph, stations: Mapping[str, tuple[Station, ...]], *, cp: int
) -> list[Layout]:
    if cp > 1:
        return [lay_out(graph, pieces) for pieces in group_stations(graph, stations, cp=cp)]
    layouts: list[Layout] = []
    for station in (station for found in stations.values() for station in found):
        alone: dict[str, tuple[Station, ...]] = {}
        for device in station:
            alone[device.node] = (*alone.get(device.node, ()), (device,))
        found = lay_out(graph, tuple(alone.items()))
        ranks = tuple(device for (device,) in found.stations)
        layouts.append(Layout(stations=(ranks,), note=found.note))
    return layouts


def _orders(layout: Layout, *, cp: int) -> list[tuple[Device, ...]]:
    """The rings of one group: one for each TP rank; with CP of 1 the TP group itself."""
    return list(zip(*layout.stations, strict=True)) if cp > 1 else list(layout.stations)


def _worths(rings: Sequence[Ring]) -> list[tuple[float, int]]:
    return sorted(edge.worth for ring in rings for edge in ring.edges)


def _notes(
    graph: Graph,
    rings: Sequence[Ring],
    *,
    layouts: Sequence[Layout],
    used: Mapping[str, Sequence[Device]],
) -> list[str]:
    stations = [station for layout in layouts for station in layout.stations]
    placed = [device for station in stations for device in station]
    cp = len(layouts[0].stations)
    notes = [layout.note for layout in layouts if layout.note]
    if cp == 1 and len(stations[0]) > 1:
        notes.append("cp is 1: the rings shown are the tensor-parallel groups")
    notes += note_slow_groups(graph, stations)
    if changes := sum(layout.rail_changes for layout in layouts):
        notes.append(f"{changes} steps from node to node end on another rail than they begin")
    if cp > 1:
        notes += note_idle_nics(graph, rings, cp=cp)
    notes += note_rest((device for found in used.values() for device in found), used=placed)
    return [*notes, *graph.tree.notes]


def _refusal(room: tuple[list[int], list[int]], *, tp: int, cp: int) -> TopologyError:
    """What was asked, what exists, and the nearest that can be had."""
    nodes, domains = room
    exists = (
        f"{sum(nodes)} usable GPUs on {len(nodes)} nodes, at most {max(nodes, default=0)} on one"
    )
    most_tp = max([*nodes, *domains], default=0)
    if not most_tp:
        return TopologyError(f"tp={tp}, cp={cp}: wanted {tp * cp} GPUs, saw {exists}")
    if tp > most_tp:
        return TopologyError(
            f"tp={tp}: wanted a tensor-parallel group in one node or NVLink domain, saw {exists}",
            hint=f"the nearest is tp={most_tp}, cp up to {count_stations(room, tp=most_tp)}",
        )
    fitting = [size for size in range(1, tp) if count_stations(room, tp=size) >= cp]
    smaller = f", or tp={max(fitting)} with cp={cp}" if fitting else ""
    most_cp = count_stations(room, tp=tp)
    return TopologyError(
        f"tp={tp}, cp={cp}: wanted {cp} tensor-parallel groups of {tp}, {tp * cp} GPUs in all, "
        f"saw {exists}, enough for {most_cp}",
        hint=f"the nearest is cp={most_cp} with tp={tp}{smaller}",
    )
