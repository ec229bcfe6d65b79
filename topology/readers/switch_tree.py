"""Who is above whom, where a file lists children: several parents, cycles and gaps are told.

Nothing recurses, so a file that runs in circles costs no more than one that does not.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topology.network import Edge, Network, Tier, TierKind
from topology.readers.reading import SourceText


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchLine:
    """One switch as listed."""

    name: str
    line: int  # 0: not known
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()  # below it


def build_tree(
    switches: Sequence[SwitchLine],
    *,
    blocks: Sequence[Tier],
    notes: Sequence[str],
    source: SourceText,
) -> Network:
    """Tiers with their parents.

    A switch with several parents hangs below the first; the others are edges. A child that a
    cycle puts above its parent is left out and told.

    Raises:
        TopologyError: A name is given twice.
    """
    told = list(notes)
    tiers = [*(line.name for line in switches), *(tier.name for tier in blocks)]
    for name, count in Counter(tiers).items():
        if count > 1:
            raise source.refusal(f"{name}", saw=f"{count} entries", wanted="one")
    below = {line.name: tuple(dict.fromkeys(line.switches)) for line in switches}
    absent = [child for kids in below.values() for child in kids if child not in below]
    for child in dict.fromkeys(absent):
        told.append(f"switch {child} is named as a child but not described")
        below[child] = ()
    dropped = _against_levels(below, leaves=[line.name for line in switches if line.nodes])
    told += [f"cycle: {a} lists {b}, which is above it: not used" for a, b in sorted(dropped)]
    parents: dict[str, list[str]] = {name: [] for name in below}
    for parent, children in below.items():
        for child in children:
            if (parent, child) not in dropped:
                parents[child].append(parent)
    nodes = {line.name: line.nodes for line in switches}
    made = [
        Tier(
            name=name,
            kind=TierKind.SWITCH,
            parent=above[0] if above else None,
            nodes=nodes.get(name, ()),
        )
        for name, above in parents.items()
    ]
    told += _odd(made, parents=parents)
    edges = [Edge(a=name, b=parent) for name, above in parents.items() for parent in above[1:]]
    return Network(tiers=(*made, *blocks), edges=tuple(edges), notes=tuple(told))


def _odd(tiers: Sequence[Tier], *, parents: dict[str, list[str]]) -> list[str]:
    told: list[str] = []
    for name, above in parents.items():
        if len(above) > 1:
            told.append(f"switch {name} has several parents: {', '.join(above)}")
    counts = Counter(host for tier in tiers for host in tier.nodes)
    several = [host for host, count in counts.items() if count > 1]
    if several:
        told.append(f"nodes below several switches: {', '.join(several[:8])}")
    roots = [name for name, above in parents.items() if not above]
    if len(roots) > 1:
        told.append(f"no common root: {len(roots)} switches have no parent")
    return told


def _against_levels(
    below: dict[str, tuple[str, ...]], *, leaves: Sequence[str]
) -> set[tuple[str, str]]:
    """The (parent, child) pairs on a cycle in which the child is not nearer to the hosts."""
    circular = _on_cycles(below)
    if not circular:
        return set()
    above: dict[str, list[str]] = {name: [] for name in below}
    for parent, children in below.items():
        for child in children:
            above[child].append(parent)
    level = dict.fromkeys(leaves, 0)
    waiting = deque(leaves)
    while waiting:
        name = waiting.popleft()
        for parent in above[name]:
            if parent not in level:
                level[parent] = level[name] + 1
                waiting.append(parent)
    far = len(below)
    return {
        (parent, child)
        for parent, children in below.items()
        for child in children
        if {parent, child} <= circular and level.get(child, far) >= level.get(parent, far)
    }


def _on_cycles(below: dict[str, tuple[str, ...]]) -> set[str]:
    """Switches on a cycle or between two: what is left when ends are taken off both ways."""
    above: dict[str, list[str]] = {name: [] for name in below}
    for parent, children in below.items():
        for child in children:
            above[child].append(parent)
    rest = _without_ends(set(below), ahead=below, behind=above)
    return _without_ends(rest, ahead=above, behind=below)


def _without_ends(
    names: set[str], *, ahead: Mapping[str, Sequence[str]], behind: Mapping[str, Sequence[str]]
) -> set[str]:
    rest = set(names)
    open_ways = {name: sum(far in rest for far in ahead[name]) for name in names}
    ends = [name for name, count in open_ways.items() if count == 0]
    while ends:
        name = ends.pop()
        rest.discard(name)
        for near in behind[name]:
            if near in rest:
                open_ways[near] -= 1
                ends += [near] if open_ways[near] == 0 else []
    return rest
