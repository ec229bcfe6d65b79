"""The tree for people: who hangs where, and which network is above."""

from topology import Edge, Gpu, GpuNic, Link, LinkKind, Network, Nic, Node, Tier, TierKind, Topology
from topology.tree import render_tree

NODE = Node(
    name="node0",
    gpus=(
        Gpu(index=0, name="H100", numa_node=0, pci_bus_id="0000:1b:00.0"),
        Gpu(index=1, numa_node=1, cpu_affinity="4-7"),
    ),
    nics=(Nic(name="mlx5_0", numa_node=0, speed_bytes_per_s=50e9), Nic(name="mlx5_1")),
    gpu_links=(Link(a=0, b=1, kind=LinkKind.NVLINK, lanes=18, bytes_per_s=478e9, p2p=True),),
    gpu_nics=(
        GpuNic(gpu=0, nic="mlx5_0", kind=LinkKind.PIX),
        GpuNic(gpu=1, nic="mlx5_0", kind=LinkKind.SYS),
    ),
    notes=("a row was cut",),
)
NETWORK = Network(
    tiers=(
        Tier(name="leaf0", kind=TierKind.SWITCH, parent="spine", nodes=("node0", "node1")),
        Tier(name="spine", kind=TierKind.SWITCH),
        Tier(name="nvl", kind=TierKind.NVLINK_DOMAIN, nodes=tuple(f"n{n}" for n in range(20))),
    ),
    edges=(Edge(a="node0", b="node1", bytes_per_s=50e9),),
    notes=("no root",),
)


def test_a_node_shows_numa_switch_devices_and_links():
    assert render_tree(Topology(source="x", nodes=(NODE,))).splitlines()[:-1] == [
        "node node0",
        "|- NUMA 0",
        "|  `- PCIe switch of mlx5_0",
        "|     |- GPU 0 (H100) (0000:1b:00.0)",
        "|     |  `- NVLINK x18 478.0 GB/s p2p to GPU 1",
        "|     `- NIC mlx5_0 50.0 GB/s",
        "|- NUMA 1",
        "|  `- GPU 1 (CPUs 4-7)",
        "|     |- NVLINK x18 478.0 GB/s p2p to GPU 0",
        "|     `- nearest NIC mlx5_0 (SYS)",
        "|- NUMA ?",
        "|  `- NIC mlx5_1",
        "|- NVLink islands {0,1}",
        "`- note: a row was cut",
    ]


def test_the_network_shows_its_tiers():
    lines = render_tree(Topology(source="x", nodes=(), network=NETWORK)).splitlines()

    assert lines[:-1] == [
        "network",
        "|- switch spine",
        "|  `- switch leaf0: node0, node1",
        f"|- nvlink_domain nvl: {', '.join(f'n{n}' for n in range(16))}, ... (20 nodes)",
        "|- edge node0 - node1 50.0 GB/s",
        "`- note: no root",
    ]


def test_tiers_in_a_circle_and_deep_chains_are_shown_once():
    circle = [
        Tier(name="a", kind=TierKind.SWITCH, parent="b"),
        Tier(name="b", kind=TierKind.SWITCH, parent="a"),
    ]
    chain = [Tier(name=f"s{n}", kind=TierKind.SWITCH, parent=f"s{n + 1}") for n in range(3000)]
    text = render_tree(Topology(source="x", nodes=(), network=Network(tiers=(*circle, *chain))))

    assert text.count("switch a\n") == text.count("switch b\n") == 1
    assert len(text.splitlines()) == 3000 + 2 + 2


def test_unknown_facts_are_question_marks():
    node = Node(name="n", gpus=(Gpu(index=0), Gpu(index=1)), gpu_links=(Link(a=0, b=1, p2p=False),))

    assert "? no p2p to GPU 1" in render_tree(Topology(source="x", nodes=(node,)))
