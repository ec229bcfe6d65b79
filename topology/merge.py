"""Many topologies become that of a cluster: every device once, every node under its own name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from topology.domains import find_domains
from topology.errors import TopologyError
from topology.network import Edge, Network, Tier
from topology.nouns import Node, Topology

_CLOCK_SLACK_S = 0.1  # less than a scheduler's own delay
_MOST_NAMES = 8  # in a note


def join_nodes(
    topologies: Sequence[Topology], *, clock_offsets_s: Sequence[float | None] | None = None
) -> Topology:
    """One topology of all nodes, in the given order.

    A node that is given twice (same name, same GPUs by UUID) is taken once. Other nodes that share
    a name get a number, by the UUID of their first GPU and not by who answered first.

    Args:
        topologies: At least one; usually one node each.
        clock_offsets_s: How far the clock of each topology's nodes is ahead of ours.

    Raises:
        TopologyError: Two nodes report the same GPU, or two networks contradict each other.
    """
    if not topologies:
        raise TopologyError("saw no topology to join, wanted one or more")
    offsets = [None] * len(topologies) if clock_offsets_s is None else list(clock_offsets_s)
    assert len(offsets) == len(topologies), "one offset for each topology"
    parts, notes = _named_apart(_each_once(topologies))
    sources = {part.source for part in topologies}
    clocks = [
        (node.name, offset)
        for part, offset in zip(parts, offsets, strict=True)
        if offset is not None
        for node in part.nodes
    ]
    return assemble(
        source=sources.pop() if len(sources) == 1 else "mixed",
        nodes=[node for part in parts for node in part.nodes],
        network=_join_networks([part.network for part in parts]),
        notes=[*notes, *_note_clocks(clocks)],
    )


def least_offset_s(clock_s: float, *, asked_s: float, answered_s: float) -> float:
    """How far a clock is ahead of ours, at the least, if it was read while we waited."""
    return min(0.0, clock_s - asked_s) + max(0.0, clock_s - answered_s)


def assemble(
    *, source: str, nodes: Sequence[Node], network: Network, notes: Iterable[str] = ()
) -> Topology:
    """A topology of nodes that belong together; NVLink domains across them become tiers.

    Raises:
        TopologyError: Two nodes report the same GPU or have the same name.
    """
    _refuse_shared_gpus(nodes)
    domains, odd = find_domains(nodes)
    told = [*network.notes, *notes, *odd, *_note_drivers(nodes)]
    whole = _join_networks([network, Network(tiers=tuple(domains))])
    try:
        return Topology(
            source=source,
            nodes=tuple(nodes),
            network=replace(whole, notes=tuple(dict.fromkeys(told))),
        )
    except ValueError as exc:
        raise TopologyError(f"the nodes together: {exc}") from exc


def _each_once(topologies: Sequence[Topology]) -> list[Topology]:
    """The same, with each node that is given twice in its first place only."""
    seen: dict[str, list[frozenset[str]]] = {}
    parts: list[Topology] = []
    for part in topologies:
        fresh: list[Node] = []
        for node in part.nodes:
            uuids = frozenset(gpu.uuid for gpu in node.gpus if gpu.uuid is not None)
            if not uuids or uuids not in seen.setdefault(node.name, []):
                fresh.append(node)
                seen.setdefault(node.name, []).append(uuids)
        parts.append(replace(part, nodes=tuple(fresh)))
    return parts


def _named_apart(parts: Sequence[Topology]) -> tuple[list[Topology], list[str]]:
    """The same, with a number behind each name that several nodes have."""
    places: dict[str, list[tuple[str, int]]] = {}  # name -> (first UUID, part)
    for place, part in enumerate(parts):
        for node in part.nodes:
            first = min((gpu.uuid for gpu in node.gpus if gpu.uuid is not None), default="")
            places.setdefault(node.name, []).append((first, place))
    renamed: list[dict[str, str]] = [{} for _ in parts]
    notes: list[str] = []
    for name, found in places.items():
        if len(found) < 2:
            continue
        free = (
            new for n in range(len(places) + len(found)) if (new := f"{name}#{n}") not in places
        )
        new_names = [next(free) for _ in found]
        notes.append(f"{len(found)} nodes are named {name}: called {_listed(new_names)}")
        for (_, place), new in zip(sorted(found), new_names, strict=True):
            renamed[place][name] = new
    return [_renamed(part, names) for part, names in zip(parts, renamed, strict=True)], notes


def _renamed(part: Topology, names: Mapping[str, str]) -> Topology:
    if not names:
        return part
    network = replace(
        part.network,
        tiers=tuple(
            replace(tier, nodes=tuple(names.get(node, node) for node in tier.nodes))
            for tier in part.network.tiers
        ),
        edges=tuple(
            replace(edge, a=names.get(edge.a, edge.a), b=names.get(edge.b, edge.b))
            for edge in part.network.edges
        ),
    )
    nodes = tuple(replace(node, name=names.get(node.name, node.name)) for node in part.nodes)
    return replace(part, nodes=nodes, network=network)


def _refuse_shared_gpus(nodes: Iterable[Node]) -> None:
    owners: dict[str, tuple[str, int]] = {}
    for node in nodes:
        for gpu in node.gpus:
            if gpu.uuid is None:
                continue
            name, index = owners.setdefault(gpu.uuid, (node.name, gpu.index))
            if name != node.name:
                raise TopologyError(
                    f"{gpu.uuid}: saw it as GPU {index} of {name} and as GPU {gpu.index} of "
                    f"{node.name}, wanted each GPU on one node",
                    hint="two agents on one host report the same devices: start one a host",
                )


def _join_networks(networks: Sequence[Network]) -> Network:
    """Tiers and edges of all; tiers of one name are one, with the nodes of both."""
    tiers: dict[str, Tier] = {}
    for tier in (tier for network in networks for tier in network.tiers):
        old = tiers.setdefault(tier.name, tier)
        parents = {parent for parent in (old.parent, tier.parent) if parent is not None}
        if old.kind is not tier.kind or len(parents) > 1:
            raise TopologyError(
                f"network: saw two tiers named {tier.name!r} that differ, wanted one"
            )
        nodes = tuple(dict.fromkeys([*old.nodes, *tier.nodes]))
        tiers[tier.name] = replace(old, parent=next(iter(parents), None), nodes=nodes)
    edges: dict[Edge, None] = dict.fromkeys(edge for network in networks for edge in network.edges)
    notes = dict.fromkeys(note for network in networks for note in network.notes)
    return Network(tiers=tuple(tiers.values()), edges=tuple(edges), notes=tuple(notes))


def _note_drivers(nodes: Iterable[Node]) -> list[str]:
    on: dict[str, list[str]] = {}
    for node in nodes:
        if node.driver_version is not None:
            on.setdefault(node.driver_version, []).append(node.name)
    if len(on) < 2:
        return []
    ranked = sorted(on.items(), key=lambda item: (-len(item[1]), item[0]))
    shown = "; ".join(f"{version} on {_listed(names)}" for version, names in ranked)
    return [f"driver versions differ: {shown}"]


def _note_clocks(clocks: Sequence[tuple[str, float]]) -> list[str]:
    if not clocks:
        return []
    ranked = sorted(clocks, key=lambda item: (item[1], item[0]))
    (slow, low), (fast, high) = ranked[0], ranked[-1]
    if high - low <= _CLOCK_SLACK_S:
        return []
    return [
        f"clocks differ by {high - low:.2f} s or more: {slow} at {low:+.2f} s, "
        f"{fast} at {high:+.2f} s"
    ]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
