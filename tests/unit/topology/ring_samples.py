"""Small machines and clusters for the tests of graph and rings."""

import random
import re
from itertools import combinations
from pathlib import Path

from topology import Gpu, GpuNic, Link, LinkKind, Network, Nic, Node, Tier, TierKind, Topology

CORPUS = Path(__file__).parents[4] / "shared" / "data" / "topologies"
NVLINK_RATE = 478e9
NIC_RATE = 50e9

DGX_1V = """
GPU0  X  NV1 NV1 NV2 NV2 SYS SYS SYS
GPU1 NV1  X  NV2 NV1 SYS NV2 SYS SYS
GPU2 NV1 NV2  X  NV2 SYS SYS NV1 SYS
GPU3 NV2 NV1 NV2  X  SYS SYS SYS NV1
GPU4 NV2 SYS SYS SYS  X  NV1 NV1 NV2
GPU5 SYS NV2 SYS SYS NV1  X  NV2 NV1
GPU6 SYS SYS NV1 SYS NV1 NV2  X  NV2
GPU7 SYS SYS SYS NV1 NV2 NV1 NV2  X
"""


def link(a, b, cell, *, bytes_per_s=None):
    """A link from a cell of `topo -m`; `?` is one nobody told."""
    if cell.startswith("NV"):
        return Link(a=a, b=b, kind=LinkKind.NVLINK, lanes=int(cell[2:]), bytes_per_s=bytes_per_s)
    kind = None if cell == "?" else LinkKind(cell.replace("SOC", "SYS"))
    return Link(a=a, b=b, kind=kind, bytes_per_s=bytes_per_s)


def node_of_table(text, *, name="node0"):
    """The GPUs of a `topo -m` table and the links between them; NICs are passed over."""
    rows = []
    for line in text.splitlines():
        if row := re.match(r"\s*GPU\d+\s(.*)", line):
            cells = re.findall(r"\b(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC)\b", row[1])
            rows += [cells] if "X" in cells else []
    gpus = tuple(Gpu(index=index) for index in range(len(rows)))
    pairs = combinations(range(len(rows)), 2)
    return Node(name=name, gpus=gpus, gpu_links=tuple(link(a, b, rows[a][b]) for a, b in pairs))


def node_of(cell, *, name="node0", gpus=8, nics=0, bytes_per_s=None, but=None, lost=()):
    """A node whose GPUs are all joined alike, `but` for some pairs and GPUs that `lost` NVLink.

    NIC i is the rail of GPU i (modulo the number of NICs).
    """
    links = []
    for a, b in combinations(range(gpus), 2):
        odd = (but or {}).get((a, b), "SYS" if a in lost or b in lost else None)
        links.append(link(a, b, odd) if odd else link(a, b, cell, bytes_per_s=bytes_per_s))
    names = [f"mlx5_{index}" for index in range(nics)]
    return Node(
        name=name,
        gpus=tuple(Gpu(index=index) for index in range(gpus)),
        nics=tuple(Nic(name=nic, speed_bytes_per_s=NIC_RATE) for nic in names),
        gpu_links=tuple(links),
        gpu_nics=tuple(
            GpuNic(gpu=gpu, nic=nic, kind=LinkKind.PIX if gpu % nics == place else LinkKind.NODE)
            for gpu in range(gpus)
            for place, nic in enumerate(names)
        ),
    )


def cluster(*nodes, tiers=(), edges=()):
    return Topology(source="test", nodes=nodes, network=Network(tiers=tiers, edges=edges))


def switch(name, *nodes, parent=None, kind=TierKind.SWITCH):
    return Tier(name=name, kind=kind, parent=parent, nodes=nodes)


def fat_tree(count, *, rack, gpus=8, seed=0):
    """H100 nodes under leaves of `rack` nodes, which are shuffled, under spines of 8 leaves."""
    names = [f"n{number:04}" for number in range(count)]
    shuffled = random.Random(seed).sample(names, count)
    leaves = [shuffled[start : start + rack] for start in range(0, count, rack)]
    tiers = [switch("core")]
    tiers += [switch(f"spine{number}", parent="core") for number in range((len(leaves) + 7) // 8)]
    tiers += [
        switch(f"leaf{number}", *nodes, parent=f"spine{number // 8}")
        for number, nodes in enumerate(leaves)
    ]
    model = node_of("NV18", gpus=gpus, nics=gpus, bytes_per_s=NVLINK_RATE)
    nodes = (
        Node(
            name=name,
            gpus=model.gpus,
            nics=model.nics,
            gpu_links=model.gpu_links,
            gpu_nics=model.gpu_nics,
        )
        for name in names
    )
    return cluster(*nodes, tiers=tuple(tiers))


def gpus_of(ring):
    return [device.gpu for device in ring.order]


def labels_of(ring):
    return sorted(edge.label for edge in ring.edges)


def turned(order):
    """All rotations and reflections of a ring."""
    turns = [order[place:] + order[:place] for place in range(len(order))]
    return turns + [turn[::-1] for turn in turns]
