"""The inventory as plain text for people: GPUs, who reaches whom and how, NICs, notes."""

from collections.abc import Iterable, Sequence

from topology.nouns import Link, LinkKind, Network, Node, Topology

_GIB = 2**30
_GIGA = 1e9
_UNKNOWN = "?"


def render_table(topology: Topology) -> str:
    """Every node and the network as text that ends in a newline; `?` is a fact not told."""
    blocks = [block for node in topology.nodes for block in _node_blocks(node)]
    blocks += _network_blocks(topology.network)
    blocks.append(f"source {topology.source}, content hash {topology.content_hash}")
    return "\n\n".join(blocks) + "\n"


def _node_blocks(node: Node) -> list[str]:
    facts = [
        _count(len(node.gpus), "GPU"),
        _count(len(node.nics), "NIC"),
        f"{_shown(node.cpus)} CPUs usable",
        f"{_gib(node.memory_bytes)} memory",
        f"driver {_shown(node.driver_version)}",
    ]
    blocks = [f"node {node.name}: {', '.join(facts)}"]
    if node.gpus:
        blocks += [_gpu_table(node), _matrix(node), _islands(node)]
    if node.nics:
        blocks.append(_nic_table(node))
    if node.notes:
        blocks.append("\n".join(["notes:", *(f"  - {note}" for note in node.notes)]))
    return blocks


def _gpu_table(node: Node) -> str:
    head = ("GPU", "name", "memory", "PCI address", "NUMA", "CPUs", "MIG", "nearest NICs", "uuid")
    nearest = node.nearest_nics
    rows = [
        (
            str(gpu.index),
            _shown(gpu.name),
            _gib(gpu.memory_bytes),
            _shown(gpu.pci_bus_id),
            _shown(gpu.numa_node),
            _shown(gpu.cpu_affinity),
            _UNKNOWN if gpu.mig is None else ("on" if gpu.mig else "off"),
            ",".join(nearest[gpu.index]) or ("-" if not node.nics else _UNKNOWN),
            _shown(gpu.uuid),
        )
        for gpu in node.gpus
    ]
    return _columns([head, *rows])


def _matrix(node: Node) -> str:
    """GPUs against GPUs and NICs, as `nvidia-smi topo -m` shows them; NV18 is 18 NVLinks."""
    cells: dict[tuple[int, int | str], str] = {}
    for link in node.gpu_links:
        cells[link.a, link.b] = cells[link.b, link.a] = _cell(link)
    for pair in node.gpu_nics:
        cells[pair.gpu, pair.nic] = _shown(pair.kind)
    indices = [gpu.index for gpu in node.gpus]
    targets: list[int | str] = [*indices, *(nic.name for nic in node.nics)]
    head = ["link", *(f"GPU{index}" for index in indices), *(nic.name for nic in node.nics)]
    rows = [
        [f"GPU{a}", *("X" if a == b else cells.get((a, b), _UNKNOWN) for b in targets)]
        for a in indices
    ]
    return _columns([head, *rows])


def _cell(link: Link) -> str:
    return f"NV{link.lanes}" if link.lanes is not None else _shown(link.kind)


def _islands(node: Node) -> str:
    shown = " ".join("{" + ",".join(map(str, island)) + "}" for island in node.islands)
    rates = sorted({link.bytes_per_s for link in node.gpu_links if link.bytes_per_s is not None})
    if not any(link.kind is LinkKind.NVLINK for link in node.gpu_links):
        return f"islands: {shown}"
    speed = ", ".join(f"{rate / _GIGA:.1f}" for rate in rates) or _UNKNOWN
    return f"islands: {shown}; NVLink GB/s between two GPUs, one direction: {speed}"


def _nic_table(node: Node) -> str:
    rows = [
        (
            nic.name,
            _gigabytes(nic.speed_bytes_per_s),
            _shown(nic.pci_bus_id),
            _shown(nic.numa_node),
        )
        for nic in node.nics
    ]
    return _columns([("NIC", "GB/s", "PCI address", "NUMA"), *rows])


def _network_blocks(network: Network) -> list[str]:
    blocks: list[str] = []
    if network.tiers:
        tiers = [
            (tier.name, str(tier.kind), tier.parent or "-", ",".join(tier.nodes) or "-")
            for tier in network.tiers
        ]
        blocks.append(_columns([("tier", "kind", "parent", "nodes"), *tiers]))
    if network.edges:
        edges = [(edge.a, edge.b, _gigabytes(edge.bytes_per_s)) for edge in network.edges]
        blocks.append(_columns([("from", "to", "GB/s"), *edges]))
    if network.notes:
        blocks.append("\n".join(["notes:", *(f"  - {note}" for note in network.notes)]))
    return blocks


def _columns(rows: Iterable[Sequence[str]]) -> str:
    table = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def _shown(value: object) -> str:
    return _UNKNOWN if value is None else str(value)


def _gib(size_bytes: int | None) -> str:
    return _UNKNOWN if size_bytes is None else f"{size_bytes / _GIB:.1f} GiB"


def _gigabytes(bytes_per_s: float | None) -> str:
    return _UNKNOWN if bytes_per_s is None else f"{bytes_per_s / _GIGA:.1f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
