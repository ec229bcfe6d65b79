"""The inventory as a tree: node, NUMA node, GPU or NIC with its links; then the network's tiers."""

from collections.abc import Iterable, Mapping, Sequence

from topology.nouns import Gpu, Link, LinkKind, Network, Nic, Node, Tier, Topology

_GIGA = 1e9
_MOST_HOSTS = 16  # of a tier, shown by name
Branch = tuple[str, list["Branch"]]


def render_tree(topology: Topology) -> str:
    """Nodes and network as an indented tree that ends in a newline; `?` is a fact not told."""
    tops = [_node(node) for node in topology.nodes] + _network(topology.network)
    lines = [line for top in tops for line in _drawn(top)]
    lines.append(f"source {topology.source}, content hash {topology.content_hash}")
    return "\n".join(lines) + "\n"


def _drawn(top: Branch) -> list[str]:
    """The lines of one tree; nothing recurses, however deep a network is."""
    lines: list[str] = []
    waiting: list[tuple[Branch, str, str]] = [(top, "", "")]
    while waiting:
        (text, below), head, margin = waiting.pop()
        lines.append(head + text)
        for place, branch in reversed(list(enumerate(below))):
            last = place == len(below) - 1
            sign, more = ("`- ", "   ") if last else ("|- ", "|  ")
            waiting.append((branch, margin + sign, margin + more))
    return lines


def _node(node: Node) -> Branch:
    known = {
        device.numa_node for device in (*node.gpus, *node.nics) if device.numa_node is not None
    }
    places: list[int | None] = [*sorted(known)]
    if any(device.numa_node is None for device in (*node.gpus, *node.nics)):
        places.append(None)
    branches: list[Branch] = [_numa(node, place) for place in places]
    islands = [island for island in node.islands if len(island) > 1]
    if islands:
        shown = " ".join("{" + ",".join(map(str, island)) + "}" for island in islands)
        branches.append((f"NVLink islands {shown}", []))
    branches += [(f"note: {note}", []) for note in node.notes]
    return f"node {node.name}", branches


def _numa(node: Node, place: int | None) -> Branch:
    """GPUs of one NUMA node with the NICs that are nearest, then the NICs near no GPU."""
    nearest = node.nearest_nics
    nics = {nic.name: nic for nic in node.nics}
    shared = {
        gpu: tuple(name for name in names if _joins(node, gpu, name))
        for gpu, names in nearest.items()
    }
    gpus = [gpu for gpu in node.gpus if gpu.numa_node == place]
    groups: dict[tuple[str, ...], list[Gpu]] = {}
    for gpu in gpus:
        groups.setdefault(shared.get(gpu.index, ()), []).append(gpu)
    branches: list[Branch] = []
    for names, members in groups.items():
        far = {} if names else nearest  # the nearest ones are not on its switch
        inner = [_gpu(node, gpu, nics=far.get(gpu.index, ())) for gpu in members]
        inner += [(_nic(nics[name]), []) for name in names]
        branches += [(f"PCIe switch of {', '.join(names)}", inner)] if names else inner
    grouped = {name for names in shared.values() for name in names}
    branches += [
        (_nic(nic), []) for nic in node.nics if nic.numa_node == place and nic.name not in grouped
    ]
    return f"NUMA {'?' if place is None else place}", branches


def _joins(node: Node, gpu: int, nic: str) -> bool:
    """Are the two below one switch, as far as is told?"""
    near = {LinkKind.PIX, LinkKind.PXB}
    return any(p.gpu == gpu and p.nic == nic and p.kind in near for p in node.gpu_nics)


def _gpu(node: Node, gpu: Gpu, *, nics: Sequence[str]) -> Branch:
    facts = [
        word
        for word in (gpu.name, gpu.pci_bus_id, gpu.cpu_affinity and f"CPUs {gpu.cpu_affinity}")
        if word
    ]
    peers: dict[str, list[int]] = {}
    for link in node.gpu_links:
        if gpu.index in (link.a, link.b):
            other = link.b if link.a == gpu.index else link.a
            peers.setdefault(_link(link), []).append(other)
    below: list[Branch] = [
        (f"{kind} to GPU {', '.join(map(str, others))}", []) for kind, others in peers.items()
    ]
    if nics:
        kind = next(p.kind for p in node.gpu_nics if p.gpu == gpu.index and p.nic == nics[0])
        below.append((f"nearest NIC {', '.join(nics)} ({kind})", []))
    return " ".join([f"GPU {gpu.index}", *(f"({fact})" for fact in facts)]), below


def _link(link: Link) -> str:
    kind = "?" if link.kind is None else str(link.kind)
    lanes = "" if link.lanes is None else f" x{link.lanes}"
    rate = "" if link.bytes_per_s is None else f" {link.bytes_per_s / _GIGA:.1f} GB/s"
    peer = {True: " p2p", False: " no p2p", None: ""}[link.p2p]
    return kind + lanes + rate + peer


def _nic(nic: Nic) -> str:
    rate = "" if nic.speed_bytes_per_s is None else f" {nic.speed_bytes_per_s / _GIGA:.1f} GB/s"
    return f"NIC {nic.name}{rate}"


def _network(network: Network) -> list[Branch]:
    names = {tier.name for tier in network.tiers}
    made: dict[str, Branch] = {tier.name: (_tier(tier), []) for tier in network.tiers}
    reached = _reached(network.tiers)
    tops: list[Branch] = []
    for tier in network.tiers:
        if tier.parent in names and tier.parent is not None and tier.name in reached:
            made[tier.parent][1].append(made[tier.name])
        else:
            tops.append(made[tier.name])
    for edge in network.edges:
        rate = "?" if edge.bytes_per_s is None else f"{edge.bytes_per_s / _GIGA:.1f} GB/s"
        tops.append((f"edge {edge.a} - {edge.b} {rate}", []))
    tops += [(f"note: {note}", []) for note in network.notes]
    return [("network", tops)] if tops else []


def _reached(tiers: Sequence[Tier]) -> set[str]:
    """Tiers that hang below a root; one in a circle of parents would never be drawn."""
    parents: Mapping[str, str | None] = {tier.name: tier.parent for tier in tiers}
    reached: set[str] = set()
    for name in parents:
        path: list[str] = []
        at: str | None = name
        while at is not None and at in parents and at not in reached and at not in path:
            path.append(at)
            at = parents[at]
        if at is None or at not in parents or at in reached:
            reached.update(path)
    return reached


def _tier(tier: Tier) -> str:
    return f"{tier.kind} {tier.name}" + (f": {_hosts(tier.nodes)}" if tier.nodes else "")


def _hosts(nodes: Iterable[str]) -> str:
    names = list(nodes)
    if len(names) <= _MOST_HOSTS:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST_HOSTS])}, ... ({len(names)} nodes)"
