"""Several readings become one topology: which texts are about one node, and what it is called."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from topology.errors import TopologyError
from topology.merge import assemble
from topology.nouns import Network, Node, Tier, Topology
from topology.readers.joining import MEASURED, Part, join_nodes
from topology.readers.reading import Reading

STANDARD_INPUT = Path("-")
_COMPANIONS = frozenset({"topo -m", "topo -mp", "topo -p2p", "nvlink -s", "sysfs table", *MEASURED})
_SEVERAL = frozenset({"topo -p2p", "nvlink -s", *MEASURED})  # one node may have many of these
_PARTIAL = frozenset({"NCCL log"})  # each rank may write one
_YAML = "slurm topology.yaml"
_CONF = "slurm topology.conf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one file told."""

    path: Path
    reading: Reading

    @property
    def stem(self) -> str:
        """The file's name up to the first dot."""
        if self.path == STANDARD_INPUT:
            return "stdin"
        return self.path.name.split(".")[0] or "node"

    @property
    def title(self) -> str:
        """What to call it in messages."""
        return "standard input" if self.path == STANDARD_INPUT else str(self.path)


def combine(pieces: Sequence[Piece]) -> Topology:
    """Put the readings together.

    What several kinds of text tell about a node of one name is about one machine. Two texts of one
    kind are not, unless they show the same GPUs by UUID.

    Raises:
        TopologyError: Two of them contradict each other, or give two machines one name.
    """
    network = _network(pieces)
    hosts = {host for tier in network.tiers for host in tier.nodes}
    parts: dict[str, list[Part]] = {}
    for piece in pieces:
        if piece.reading.named:
            for node in piece.reading.nodes:
                parts.setdefault(node.name, []).append(_part(piece, node))
    groups = _groups([piece for piece in pieces if not piece.reading.named])
    for stem, group in groups.items():
        alone = len(groups) == 1 and stem not in hosts | set(parts)
        name = "node0" if alone else stem
        for piece in group:
            for node in piece.reading.nodes:
                parts.setdefault(name, []).append(_part(piece, replace(node, name=name)))
    nodes = [found[0].node if len(found) == 1 else join_nodes(found) for found in parts.values()]
    for found in parts.values():
        _refuse_two_machines(found)
    source = "+".join(dict.fromkeys(piece.reading.source for piece in pieces))
    return assemble(source=source, nodes=nodes, network=network)


def _refuse_two_machines(parts: Sequence[Part]) -> None:
    for one, other in combinations(parts, 2):
        if one.kind != other.kind or one.kind in _SEVERAL | _PARTIAL:
            continue
        if one.node.gpus and other.node.gpus and not one.uuids & other.uuids:
            raise TopologyError(
                f"{one.file} and {other.file} are both {one.kind} of a node named "
                f"{one.node.name!r}; wanted each machine under a name of its own",
                hint="a node without a name is called after its file: rename one of them; or leave "
                "one out, if they are of one machine",
            )


def _part(piece: Piece, node: Node) -> Part:
    return Part(
        file=piece.title,
        kind=piece.reading.kind,
        node=node,
        reach=piece.reading.reach,
        lane_bytes_per_s=piece.reading.lane_bytes_per_s,
    )


def _groups(pieces: Sequence[Piece]) -> dict[str, list[Piece]]:
    """The files about one node, by what to call it."""
    if _are_one_node(pieces):
        return {pieces[0].stem: list(pieces)} if pieces else {}
    groups: dict[str, list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(piece.stem, []).append(piece)
    split: dict[str, list[Piece]] = {}
    for stem, group in groups.items():
        kinds = Counter(piece.reading.kind for piece in group)
        if all(count == 1 or kind in _SEVERAL for kind, count in kinds.items()):
            split.setdefault(stem, []).extend(group)
            continue
        for piece in group:  # node1/topo.txt and node2/topo.txt
            name = piece.path.parent.name or stem
            split.setdefault(name, []).append(piece)
    return split


def _are_one_node(pieces: Sequence[Piece]) -> bool:
    kinds = [piece.reading.kind for piece in pieces]
    if len(set(kinds)) < len(kinds) or not set(kinds) <= _COMPANIONS:
        return len(pieces) < 2
    shown = [{gpu.index for gpu in node.gpus} for piece in pieces for node in piece.reading.nodes]
    most = max(shown, key=len, default=set())
    return all(indices <= most for indices in shown)


def _network(pieces: Sequence[Piece]) -> Network:
    """All tiers and edges; a Slurm topology.yaml stands above a topology.conf, as in Slurm."""
    networks = [piece.reading.network for piece in pieces if piece.reading.kind != _CONF]
    confs = [piece.reading.network for piece in pieces if piece.reading.kind == _CONF]
    notes: list[str] = []
    if confs and any(piece.reading.kind == _YAML for piece in pieces):
        notes.append("topology.yaml stands above topology.conf, which was left out")
    else:
        networks += confs
    tiers = _once((tier.name, tier) for network in networks for tier in network.tiers)
    edges = dict.fromkeys(edge for network in networks for edge in network.edges)
    notes += [note for network in networks for note in network.notes]
    return Network(tiers=tuple(tiers), edges=tuple(edges), notes=tuple(dict.fromkeys(notes)))


def _once(named: Iterable[tuple[str, Tier]]) -> list[Tier]:
    kept: dict[str, Tier] = {}
    for name, item in named:
        if kept.setdefault(name, item) != item:
            raise TopologyError(f"network: saw two tiers named {name!r} that differ, wanted one")
    return list(kept.values())
