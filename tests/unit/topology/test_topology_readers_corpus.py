"""Texts that people posted, each with what its index says it must give.

The texts are not part of the project: without them beside it, these tests are skipped.
"""

import csv
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from topology import TopologyError
from topology.readers import read_topology

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "topologies"
DGX1V = {"0-1": "NV1", "0-3": "NV2", "0-5": "SYS", "0-6": "SYS", "0-7": "SYS", "3-7": "NV1"}


@dataclass(kw_only=True)
class Told:
    """What a text must give; what is left empty is not asked."""

    gpus: list[int] | None = None  # indices
    every: str | None = None  # all pairs that are not in `links`
    links: dict[str, str] = field(default_factory=dict)  # 0-1 -> NV12, PIX, NVLINK or ?
    islands: list[list[int]] | None = None
    nics: list[str] | None = None
    near: dict[int, str] = field(default_factory=dict)  # GPU -> nearest NICs
    kinds: dict[str, str] = field(default_factory=dict)  # 0:mlx5_0 -> PIX
    numa: dict[int, int | None] = field(default_factory=dict)
    cpus: dict[int, str | None] = field(default_factory=dict)
    p2p: dict[str, bool | None] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    buses: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    node: str | None = None
    tiers: dict[str, tuple[str, str | None, str | int]] = field(default_factory=dict)


def read(file):
    return read_topology([DATA / file])


def code(link):
    if link.kind is None:
        return "?"
    return f"NV{link.lanes}" if link.lanes else str(link.kind)


def pick(values, wanted):
    return {key: values[key] for key in wanted}


def check_node(node, told):
    links = {f"{link.a}-{link.b}": link for link in node.gpu_links}
    gpus = {gpu.index: gpu for gpu in node.gpus}
    codes = {pair: code(link) for pair, link in links.items()}
    if told.gpus is not None:
        assert list(gpus) == told.gpus
    assert pick(codes, told.links) == told.links
    if told.every is not None:
        assert {c for pair, c in codes.items() if pair not in told.links} == {told.every}
    if told.islands is not None:
        assert [list(island) for island in node.islands] == told.islands
    if told.nics is not None:
        assert [nic.name for nic in node.nics] == told.nics
    near = {gpu: " ".join(names) for gpu, names in node.nearest_nics.items()}
    assert pick(near, told.near) == told.near
    kinds = {f"{p.gpu}:{p.nic}": str(p.kind or "?") for p in node.gpu_nics}
    assert pick(kinds, told.kinds) == told.kinds
    assert pick({i: gpu.numa_node for i, gpu in gpus.items()}, told.numa) == told.numa
    assert pick({i: gpu.cpu_affinity for i, gpu in gpus.items()}, told.cpus) == told.cpus
    assert pick({pair: link.p2p for pair, link in links.items()}, told.p2p) == told.p2p
    assert pick({p: link.bytes_per_s for p, link in links.items()}, told.rates) == told.rates
    assert pick({i: gpu.pci_bus_id for i, gpu in gpus.items()}, told.buses) == told.buses


def check(topology, told):
    notes = [*topology.network.notes]
    if topology.nodes:
        named = {node.name: node for node in topology.nodes}
        node = named[told.node] if told.node else topology.nodes[0]
        check_node(node, told)
        notes += node.notes
    for text in told.notes:
        assert any(text in note for note in notes), (text, notes)
    tiers = {tier.name: tier for tier in topology.network.tiers}
    for name, (kind, parent, nodes) in told.tiers.items():
        tier = tiers[name]
        seen = len(tier.nodes) if isinstance(nodes, int) else " ".join(tier.nodes)
        assert (tier.kind.value, tier.parent, seen) == (kind, parent, nodes)


def each(gpus, value):
    return dict.fromkeys(gpus, value)


def numa(*nodes):
    return dict(enumerate(nodes))


def mlx(*numbers):
    return " ".join(f"mlx5_{number}" for number in numbers)


HALF_NUMA = numa(0, 0, 0, 0, 1, 1, 1, 1)
EIGHT = list(range(8))
ONE_ISLAND = [EIGHT]
PLAIN = {
    "topo-m/01_dlperf_v100_8gpu_mlx5.txt": Told(
        gpus=EIGHT,
        links=DGX1V,
        islands=ONE_ISLAND,
        nics=["mlx5_0"],
        kinds={"2:mlx5_0": "PIX", "3:mlx5_0": "PIX", "0:mlx5_0": "NODE", "1:mlx5_0": "NODE"}
        | {f"{gpu}:mlx5_0": "SYS" for gpu in (4, 5, 6, 7)},
        cpus=each(range(4), "0-11,24-35") | each(range(4, 8), "12-23,36-47"),
        numa=each(range(8), None),
    ),
    "topo-m/02_dlperf_v100_8gpu_tab_reindented.txt": Told(
        links={"0-1": "NV1", "0-2": "NV2", "0-7": "NV2", "3-4": "NV1", "0-4": "SYS"},
        nics=["mlx5_0", "mlx5_1"],
        kinds={"2:mlx5_0": "PIX", "3:mlx5_0": "PIX", "0:mlx5_0": "NODE", "1:mlx5_0": "NODE"}
        | {"6:mlx5_1": "PIX", "7:mlx5_1": "PIX", "4:mlx5_1": "NODE", "5:mlx5_1": "NODE"},
        numa=HALF_NUMA,
        cpus={0: "0-23,48-71", 7: "24-47,72-95"},
    ),
    "topo-m/03_dlperf_v100_8gpu_header_shift.txt": Told(
        links=DGX1V,
        islands=ONE_ISLAND,
        kinds={"2:mlx5_0": "PIX", "3:mlx5_0": "PIX", "0:mlx5_0": "NODE", "1:mlx5_0": "NODE"}
        | {f"{gpu}:mlx5_0": "SYS" for gpu in (4, 5, 6, 7)},
    ),
    "topo-m/04_blog_1080ti_pair.txt": Told(
        gpus=[0, 1],
        links={"0-1": "PHB"},
        islands=[[0], [1]],
        cpus=each((0, 1), "0-11"),
        numa=each((0, 1), None),
        nics=[],
    ),
    "topo-m/05_blog_a100_8gpu_17nic.txt": Told(
        gpus=EIGHT,
        every="NV12",
        islands=ONE_ISLAND,
        nics=[*(f"mlx5_{n}" for n in range(2, 18)), "mlx5_bond_0"],
        near=each((0, 1), mlx(2, 3, 4, 5))
        | each((2, 3), mlx(6, 7, 8, 9))
        | each((4, 5), mlx(10, 11, 12, 13))
        | each((6, 7), mlx(14, 15, 16, 17)),
        kinds={f"{gpu}:mlx5_bond_0": "SYS" for gpu in EIGHT} | {"0:mlx5_2": "PXB"},
        numa=each(EIGHT, 0),
        cpus=each(EIGHT, "0-103"),
    ),
    "topo-m/09_threadripper_2gpu_2nic.txt": Told(
        links={"0-1": "PHB"},
        nics=["mlx5_0", "mlx5_1"],
        near=each((0, 1), mlx(0, 1)),
        kinds={"0:mlx5_0": "NODE", "1:mlx5_1": "NODE"},
        numa=each((0, 1), 0),
        cpus=each((0, 1), "0-23"),
    ),
    "topo-m/10_msccl_dgx1v_4nic_unsorted_columns.txt": Told(
        links=DGX1V,
        islands=ONE_ISLAND,
        nics=["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"],
        near={gpu: mlx(gpu // 2) for gpu in EIGHT},
        kinds={"0:mlx5_0": "PIX", "0:mlx5_1": "PHB", "2:mlx5_1": "PIX", "4:mlx5_2": "PIX"},
        cpus=each(range(4), "0-19,40-59") | each(range(4, 8), "20-39,60-79"),
    ),
    "topo-m/12_titan_pair_nv2.txt": Told(
        links={"0-1": "NV2"},
        islands=[[0, 1]],
        cpus=each((0, 1), "0-23"),
        numa=each((0, 1), None),
    ),
    "topo-m/13_pair_phb.txt": Told(
        links={"0-1": "PHB"}, islands=[[0], [1]], cpus=each((0, 1), "0-11")
    ),
    "topo-m/15_h100_8gpu_narrow_columns.txt": Told(
        every="NV18",
        islands=ONE_ISLAND,
        numa=HALF_NUMA,
        cpus=each(range(4), "0-51") | each(range(4, 8), "52-103"),
    ),
    "topo-m/20_godcgm_topology_sample_squashed.txt": Told(
        gpus=[0], nics=[], cpus={0: "0-11"}, numa={0: None}
    ),
    "topo-m/22_rtx4090_8gpu_all_sys.txt": Told(
        every="SYS",
        islands=[[gpu] for gpu in EIGHT],
        kinds={f"{gpu}:NIC{nic}": "PHB" if gpu == 6 else "SYS" for gpu in EIGHT for nic in (0, 1)},
        numa=HALF_NUMA,
    ),
    "topo-m/23_slurm_cgroup_2_of_8_gpus.txt": Told(
        gpus=[0, 1],
        links={"0-1": "NV12"},
        nics=[f"NIC{n}" for n in range(10)],
        near=each((0, 1), "NIC0 NIC1"),
        kinds={"0:NIC0": "PXB", "1:NIC1": "PXB", "0:NIC9": "SYS"},
        numa=each((0, 1), 3),
    ),
    "topo-m/25_a100_8gpu_18_mlx5_vf.txt": Told(
        gpus=EIGHT,
        links={"0-7": "NV12", "3-4": "NV12", "4-5": "?"},
        nics=[f"mlx5_{n}" for n in range(18)],
        near=each((0, 1), mlx(4, 5, 6, 7)) | each((2, 3), mlx(0, 1, 2, 3)) | {4: ""},
        numa=each(range(4), 0) | each(range(4, 8), None),
        notes=["no row for GPUs 4, 5, 6, 7"],
    ),
    "topo-m/26_pcie_8gpu_2017_trailing_spaces.txt": Told(
        gpus=EIGHT,
        links={"0-1": "PIX", "2-3": "PIX", "0-2": "PHB", "0-4": "SYS", "4-5": "PIX", "5-6": "?"},
        kinds={f"{gpu}:mlx4_0": "PHB" for gpu in range(4)} | {"4:mlx4_0": "SYS", "5:mlx4_0": "?"},
    ),
    "topo-m/30_gb200_4gpu_no_nics.txt": Told(
        gpus=[0, 1, 2, 3],
        every="NV18",
        nics=[],
        numa=numa(0, 0, 1, 1),
        cpus={0: "0-71", 1: "0-71", 2: "72-143", 3: "72-143"},
    ),
    "topo-m/32_gb200_ansi_empty_cpu_affinity.txt": Told(
        every="NV18",
        numa=numa(0, 0, 1, None),
        cpus={0: "0-35", 1: "0-35", 2: None, 3: None},
        nics=[f"NIC{n}" for n in range(6)],
        kinds={"2:NIC5": "NODE", "3:NIC5": "?"},
    ),
    "topo-m/33_a800_8gpu_nv8_interleaved_nics.txt": Told(
        every="NV8",
        near={0: "NIC2", 1: "NIC4", 2: "NIC6", 3: "NIC8", 4: "NIC1", 5: "NIC3", 6: "NIC5", 7: ""},
        kinds={"0:NIC2": "PIX", "6:NIC5": "PIX"},
        numa=numa(0, 0, 0, 0, 1, 1, 1, None),
        notes=["row GPU7 has 4 of 17 cells and is left out"],
    ),
    "topo-m/34_a100_2gpu_8_mlx5.txt": Told(
        links={"0-1": "NV12"},
        near=each((0, 1), mlx(6, 7)),
        kinds={"0:mlx5_6": "PXB", "0:mlx5_4": "NODE", "1:mlx5_5": "NODE", "0:mlx5_0": "SYS"},
        numa=each((0, 1), 1),
    ),
    "topo-m/36_b200_8gpu_9nic_snc.txt": Told(
        links={"0-7": "NV18", "4-5": "NV18", "5-6": "?"},
        near={gpu: f"NIC{gpu}" for gpu in range(5)},
        kinds={f"{gpu}:NIC{gpu}": "PIX" for gpu in range(5)},
        numa=numa(0, 0, 1, 1, 2, None, None, None),
    ),
    "topo-m/37_a100_head_truncated_no_header.txt": Told(
        gpus=EIGHT,
        links={"0-1": "?", "0-2": "?", "1-2": "?"},
        every="NV12",
        nics=["NIC0", "NIC1", "NIC2"],
        near={0: "NIC0", 1: "NIC0", 2: "NIC2", 3: "NIC2"},
        kinds={"0:NIC0": "PXB", "1:NIC0": "PXB", "2:NIC2": "PXB", "3:NIC2": "PXB"}
        | {f"{gpu}:NIC{nic}": "SYS" for gpu in range(4, 8) for nic in range(3)},
        numa=numa(None, None, None, 1, 2, 2, 3, 3),
        notes=["header is missing or cut"],
    ),
    "topo-m/40_mixed_5090_4090_5gpu.txt": Told(
        links={"1-2": "PHB", "3-4": "PHB", "1-3": "NODE", "1-4": "NODE"}
        | {f"0-{gpu}": "SYS" for gpu in range(1, 5)},
        numa=numa(1, 0, 0, 0, 0),
    ),
    "topo-m/42_h100_8gpu_flush_left_header.txt": Told(
        gpus=EIGHT,
        links={f"0-{gpu}": "NV18" for gpu in range(1, 8)} | {"2-3": "?"},
        near={0: "NIC0 NIC1", 1: "NIC2"},
        kinds={"0:NIC0": "PIX", "1:NIC2": "PIX"},
        numa={0: 0, 1: 0, 2: None},
    ),
    "topo-m/44_h100_8gpu_9nic_reversed.txt": Told(
        every="NV18",
        near={gpu: f"NIC{8 - gpu}" for gpu in EIGHT},
        kinds={f"{gpu}:NIC{8 - gpu}": "PIX" for gpu in EIGHT},
        numa=HALF_NUMA,
        cpus={0: "0-79", 7: "80-159"},
        nics=[f"NIC{n}" for n in range(9)],
    ),
    "topo-m/46_h100_8gpu_6nic_shared.txt": Told(
        links={"0-1": "NV18", "2-7": "NV18", "3-4": "?"},
        near={0: "NIC0", 1: "NIC0 NIC1 NIC2 NIC3", 2: "NIC1"},
        kinds={"0:NIC0": "PIX", "2:NIC1": "PIX", "1:NIC3": "NODE"},
        numa={0: 0, 1: 0, 2: 0},
    ),
    "topo-m/47_epyc_4gpu_all_phb.txt": Told(
        every="PHB", islands=[[0], [1], [2], [3]], numa=each(range(4), 0)
    ),
    "topo-m/48_pcie_4gpu_pxb_pix_no_fence.txt": Told(
        links={"0-1": "PXB", "2-3": "PIX"}, every="SYS", numa=numa(0, 0, 1, 1)
    ),
    "topo-m/49_k80_8gpu_boards_mlx5.txt": Told(
        links={"0-1": "PIX", "0-2": "PXB", "0-4": "SYS"},
        kinds={f"{gpu}:mlx5_0": "PHB" if gpu > 3 else "SYS" for gpu in EIGHT},
    ),
    "topo-m/50_rtx3090_pair_nv3_of_4.txt": Told(
        links={"0-1": "NV3"}, notes=["3 NVLinks: if this is a bridge of 4"], numa={0: None}
    ),
    "topo-m/51_a100pcie_4gpu_one_bridge.txt": Told(
        links={"0-1": "NV12", "2-3": "NODE"},
        every="SYS",
        islands=[[0, 1], [2], [3]],
        kinds={"0:mlx5_0": "NODE", "1:mlx5_1": "NODE", "2:mlx5_0": "SYS", "3:mlx5_1": "SYS"},
        numa=numa(0, 0, 1, 1),
    ),
    "topo-m/52_a100pcie_8gpu_crossed_bridges.txt": Told(
        links={"0-2": "NV12", "1-3": "NV12", "4-5": "NV12", "6-7": "NV12"},
        every="SYS",
        islands=[[0, 2], [1, 3], [4, 5], [6, 7]],
        numa=HALF_NUMA,
    ),
    "topo-m/53_rtx_pairs_nv4_8numa_partial.txt": Told(
        gpus=EIGHT,
        links={"0-1": "NV4", "0-2": "SYS", "2-3": "?"},
        numa={0: 3, 1: 2, 2: None},
    ),
    "topo-m/55_godcgm_typos_NEGATIVE.txt": Told(refused=["line 1", "column 1", "GP0"]),
    "topo-m/56_wrong_cpu_column_NEGATIVE.txt": Told(refused=["line 1", "column 3", "'CPU'"]),
    "topo-m/58_ucx_docs_dgx1v_4nic_indented.txt": Told(
        links={"0-1": "NV1", "0-3": "NV2", "0-4": "NV2", "1-5": "NV2", "3-7": "NV1", "3-4": "SYS"},
        near={gpu: mlx(gpu // 2) for gpu in EIGHT},
        kinds={f"{gpu}:mlx5_{gpu // 2}": "PIX" for gpu in EIGHT},
        cpus=each(range(4), "0-19,40-59"),
    ),
    "topo-m/59_dgx1_p100_cube_mesh_soc.txt": Told(
        links={"0-1": "NV1", "0-4": "NV1", "3-7": "NV1", "0-5": "SYS", "1-4": "SYS"},
        islands=ONE_ISLAND,
    ),
    "topo-m/60_l40s_4gpu_2nic.txt": Told(
        links={"0-1": "NODE", "2-3": "NODE"},
        every="SYS",
        islands=[[0], [1], [2], [3]],
        nics=["mlx5_0", "mlx5_1"],
        near=each((2, 3), mlx(0, 1)),
        kinds={"2:mlx5_0": "NODE", "3:mlx5_1": "NODE", "0:mlx5_0": "SYS", "1:mlx5_1": "SYS"},
        numa=numa(0, 0, 1, 1),
    ),
    "topo-m/61_pcie_8gpu_pix_phb.txt": Told(
        links={"0-1": "PIX", "0-2": "PHB", "0-4": "SYS", "6-7": "PIX"},
        islands=[[gpu] for gpu in EIGHT],
        numa=HALF_NUMA,
    ),
    "topo-m/64_h100_8gpu_6nic_truncated.txt": Told(
        links={f"{a}-{b}": "NV18" for a in range(3) for b in range(a + 1, 8)} | {"3-4": "?"},
        near={0: "NIC0", 1: "NIC0 NIC1 NIC2 NIC3", 2: "NIC1"},
        kinds={"0:NIC0": "PIX", "1:NIC0": "NODE", "2:NIC1": "PIX"},
        numa={0: 0, 1: 0, 2: 0, 3: None},
        notes=["row GPU3 has 5 of 14 cells and is left out"],
    ),
    "topo-m/65_h100_web_copy_single_spaces.txt": Told(
        every="NV18",
        islands=ONE_ISLAND,
        numa=HALF_NUMA,
        cpus={0: "0-51", 3: "0-51", 4: "52-103", 7: "52-103"},
    ),
    "topo-mp/01_h800_8gpu_14nic_mp_truncated.txt": Told(
        gpus=EIGHT,
        links={"0-1": "NODE", "0-4": "SYS", "4-5": "?"},
        near={0: "NIC0", 1: "NIC1", 2: "NIC2", 3: "NIC7"},
        kinds={"0:NIC0": "PIX", "3:NIC7": "PIX"},
        notes=["NVLink is hidden, not absent", "row GPU4"],
    ),
    "topo-p2p/02_h100_8gpu_p2p_r.txt": Told(
        gpus=EIGHT,
        every="?",
        p2p={f"{a}-{b}": True for a in EIGHT for b in EIGHT if a < b},
        notes=["asked for: reads"],
    ),
    "topo-p2p/03_l4_pair_cns.txt": Told(
        links={"0-1": "?"}, p2p={"0-1": False}, notes=["GPUs 0-1: CNS", "asked for: reads"]
    ),
    "topo-p2p/06_rtx5090_pair_gns_tabs.txt": Told(
        links={"0-1": "?"}, p2p={"0-1": False}, notes=["GPUs 0-1: GNS"]
    ),
    "nvlink-status/02_a10_empty.txt": Told(gpus=[], notes=["no GPU has NVLink"]),
    "nvlink-status/05_p4de_a100_one_gpu.txt": Told(
        gpus=[0], notes=["GPU 0: 12 of 12 NVLinks active at 25 GB/s"]
    ),
    "nvlink-status/07_v100_gpu3_two_inactive.txt": Told(
        gpus=[3],
        notes=["GPU 3: 4 of 6 NVLinks active at 25.781 GB/s", "GPU 3: NVLinks 3, 5 inactive"],
    ),
    "nvlink-status/09_h100_remote_info_truncated.txt": Told(
        gpus=[0, 1],
        links={"0-1": "?"},
        notes=[
            "GPU 0: 18 NVLinks to 0000:05:00.0 x4, 0000:06:00.0 x5, 0000:07:00.0 x5, "
            "0000:08:00.0 x4",
            "GPU 1: its links are not all shown",
        ],
    ),
    "nvlink-status/10_all_links_inactive_message.txt": Told(
        gpus=[0], notes=["GPU 0: 0 active NVLinks: all are inactive, which is an error state"]
    ),
    "other-vendor/01_rocm_smi_showtopo_tpx_NEGATIVE.txt": Told(
        refused=["line 1", "AMD (ROCm)", "not NVIDIA"]
    ),
    "other-vendor/04_rocm_smi_showtoponuma_NEGATIVE.txt": Told(
        refused=["line 1", "AMD (ROCm)", "not NVIDIA"]
    ),
}


def pci(bus, *, device="00.0"):
    return f"0000:{bus}:{device}"


NDV4_NEAR = {
    gpu: f"{a}:00:00.0 {b}:00:00.0"
    for gpu, (a, b) in enumerate(
        [("0103", "0104")] * 2
        + [("0101", "0102")] * 2
        + [("0107", "0108")] * 2
        + [("0105", "0106")] * 2
    )
}
NDV4_BUSES = {
    gpu: f"{domain}:00:00.0"
    for gpu, domain in enumerate(["0003", "0004", "0001", "0002", "000d", "000e", "000b", "000c"])
}
NDV5_GPUS = ["0001", "0002", "0003", "0008", "0009", "000a", "000b", "000c"]
P4D = Told(
    gpus=EIGHT,
    every="?",
    buses={
        gpu: pci(bus, device=f"1{'cd'[gpu % 2]}.0")
        for gpu, bus in enumerate(["10", "10", "20", "20", "90", "90", "a0", "a0"])
    },
    near={
        gpu: pci(bus, device="1b.0")
        for gpu, bus in enumerate(["10", "10", "20", "20", "90", "90", "a0", "a0"])
    },
    kinds={"0:0000:10:1b.0": "PIX", "0:0000:20:1b.0": "PHB", "0:0000:90:1b.0": "SYS"},
    numa=HALF_NUMA,
)
XML = {
    "nccl-xml/02_azure_ndv4_a100.xml": Told(
        every="?",
        buses=NDV4_BUSES,
        near=NDV4_NEAR,
        numa=numa(0, 0, 1, 1, 2, 2, 3, 3),
        notes=["no NVLink in the file, which may mean that it was not written down"],
    ),
    "nccl-xml/03_azure_ndv5_h100.xml": Told(
        every="?",
        buses={gpu: f"{domain}:00:00.0" for gpu, domain in enumerate(NDV5_GPUS)},
        near={gpu: f"010{gpu + 1}:00:00.0" for gpu in EIGHT},
        kinds={"0:0101:00:00.0": "PIX"},
        numa=HALF_NUMA,
        notes=["no NVLink in the file"],
    ),
    "nccl-xml/04_azure_ncv4_a100pcie_4gpu.xml": Told(
        gpus=[0, 1, 2, 3],
        every="?",
        numa=numa(0, 1, 2, 3),
        nics=["eth0"],
        notes=["GPUs 3: NVLink to itself (0004:00:00.0, count 12), not used"],
    ),
    "nccl-xml/05_azure_nc48v4_a100pcie_pair.xml": Told(
        buses={0: "0001:00:00.0", 1: "0002:00:00.0"}, links={"0-1": "NV12"}, numa=numa(0, 1)
    ),
    "nccl-xml/06_aws_p4d_a100.xml": P4D,
    "nccl-xml/07_aws_p4de_a100_80.xml": P4D,
    "nccl-xml/08_aws_g5_48xl.xml": Told(
        gpus=[],
        nics=[],
        notes=["type of PCI devices not told", "0000:00:16.0 (NUMA 0)", "0000:00:15.0 (NUMA 1)"],
    ),
    "nccl-xml/10_nemo_azure_a100_one_numa.xml": Told(
        every="?", buses=NDV4_BUSES, near=NDV4_NEAR, numa=each(EIGHT, 0)
    ),
    "nccl-xml/12_oci_h100_full_dump.xml": Told(
        every="NV18",
        islands=ONE_ISLAND,
        buses={0: pci("0f"), 1: pci("2d")},
        near={0: mlx(0, 1), 1: mlx(3, 4)},
        numa=HALF_NUMA,
        notes=[
            "0000:1a:00.0 x4, 0000:1b:00.0 x5, 0000:1c:00.0 x5, 0000:1d:00.0 x4",
            "bridge shows 5 GT/s above devices of 32 GT/s: implausible",
        ],
    ),
    "nccl-xml/13_oci_h100_kubernetes.xml": Told(
        every="NV18",
        islands=ONE_ISLAND,
        buses={0: pci("0f"), 1: pci("2d")},
        near={0: mlx(18, 19), 1: mlx(26, 27)},
        notes=["0000:1a:00.0 x4, 0000:1b:00.0 x5, 0000:1c:00.0 x5, 0000:1d:00.0 x4"],
    ),
    "nccl-xml/14_oci_a100_flattened_b4.xml": Told(
        every="?",
        buses={0: pci("0f"), 1: pci("15"), 2: pci("50"), 3: pci("53")},
        near=each((0, 1), f"{pci('0c')} {pci('16')}") | each((2, 3), f"{pci('47')} {pci('4b')}"),
        numa=numa(3, 3, 1, 1, 7, 7, 5, 5),
        cpus={0: "48-63,176-191"},
    ),
    "nccl-xml/21_rtx3090_pair_nv4.xml": Told(
        links={"0-1": "NV4"},
        buses={0: pci("03"), 1: pci("83")},
        numa=numa(0, 1),
        nics=["eno2"],
        kinds={"0:eno2": "SYS", "1:eno2": "PHB"},
        cpus={0: "0-5,12-17", 1: "6-11,18-23"},
    ),
    "nccl-xml/27_rccl_mi300_8p_940_NEGATIVE.xml": Told(refused=["line 7", "AMD", "not NVIDIA"]),
    "nccl-xml/29_dgx1v_4gpu_truncated_NEGATIVE.xml": Told(refused=["line 16", "well-formed XML"]),
    "nccl-xml/31_vr200_mlopart_two_gpus_per_pci.xml": Told(
        gpus=[0, 1],
        links={"0-1": "?"},
        buses=each((0, 1), "0002:81:00.0"),
        notes=["partitions of GPU 0002:81:00.0, which share 36 NVLinks", "share one PCI device"],
    ),
    "hwloc-xml/01_dgx2_nvlink_bandwidth.xml": Told(
        gpus=list(range(16)),
        links={"0-7": "NVLINK", "8-15": "NVLINK", "0-8": "?", "7-15": "?"},
        rates={"0-1": 150e9},
        notes=[f"GPU {gpu}: 6 x 25000 MB/s to NVSwitches" for gpu in range(16)],
    ),
}
GRAPH_NEAR = {"0:NET/0": "PHB", "0:NET/4": "PHB", "0:NET/5": "SYS", "0:NET/7": "SYS"}
LOGS = {
    "nccl-log/01_v100_4gpu_channels_trees_2.7.8.log": Told(
        node="node01",
        every="?",
        nics=[f"NET/{n}" for n in range(4)],
        buses={0: pci("1a"), 1: pci("1c"), 2: pci("88"), 3: pci("8a")},
        p2p={"0-1": True, "0-3": True, "2-3": True},
        notes=[
            "NET/0 is hfi1_2:1",
            "NET/1 is hfi1_0:1",
            "NET/2 is hfi1_3:1",
            "NET/3 is hfi1_1:1",
            "channel 00, 06: 0 1 2 3",
            "channel 01, 07: 0 1 3 2",
            "channel 02, 08: 0 2 3 1",
            "channel 03, 09: 0 2 1 3",
            "channel 04, 10: 0 3 1 2",
            "channel 05, 11: 0 3 2 1",
        ],
    ),
    "nccl-log/02_a100_4node_32gpu_opa_channels.log": Told(
        node="node01",
        gpus=EIGHT,
        buses={g: pci(b) for g, b in enumerate(["07", "0b", "48", "4c", "88", "8b", "c8", "cb"])},
        cpus=each(range(4), "0-31") | each(range(4, 8), "32-39"),
        p2p={"0-1": True, "6-7": True, "0-7": None},
        notes=[
            "channel 00, 01: " + " ".join(map(str, range(32))),
            "edge 7 -> 8: receive via NET/IB/1, send via NET/IB/3",
            "edge 31 -> 0: receive via NET/IB/1",
        ],
    ),
    "nccl-log/03_v100_16node_64gpu_rings.log": Told(
        node="node01",
        gpus=[0, 1, 2, 3],
        buses={1: pci("1c"), 2: pci("88")},
        p2p={"1-2": True, "0-1": None},
        cpus={0: "0-19", 3: "20-39"},
        notes=["channel 00, 02: 0 1 2 3 4 5", "channel 01, 03: 0 3 2 1 4 7 6 5 8 11 10 9"],
    ),
    "nccl-log/07_h200_vm_pci_0_2_bug.log": Told(
        node="node02",
        links={"0-1": "NVLINK"},
        rates={"0-1": 370.8e9},
        buses={0: pci("68"), 1: pci("6b")},
        near={0: "NET/c", 1: "NET/d"},
        numa=numa(0, 0),
        notes=["PCI[0.2] GB/s to PCI/0-65000: implausible"],
    ),
    "nccl-log/09_rtx4090_8gpu_paths_interleaved.log": Told(
        node="node31",
        gpus=EIGHT,
        buses={
            gpu: pci(bus)
            for gpu, bus in enumerate(["4e", "4f", "50", "51", "ce", "cf", "d0", "d1"])
        },
        links={"0-2": "PHB", "1-2": "PHB", "2-3": "PHB", "0-1": "?"}
        | {f"2-{gpu}": "SYS" for gpu in range(4, 8)},
        rates={"0-2": 24e9, "2-4": 10e9, "2-7": 10e9},
        numa={4: 1, 5: None},
    ),
    "nccl-log/10_gcp_h100_8net_paths.log": Told(
        node="node01",
        gpus=EIGHT,
        links={"0-1": "NVLINK", "1-7": "NVLINK", "0-2": "?"},
        rates={"0-1": 370.8e9, "1-2": 370.8e9},
        nics=[f"NET/{n}" for n in range(8)],
        near={1: "NET/0 NET/1 NET/2 NET/3 NET/4"},
        kinds={key.replace("0:", "1:"): kind for key, kind in GRAPH_NEAR.items()},
    ),
    "nccl-log/12_h20_net_paths_and_pattern.log": Told(
        node="node01",
        gpus=[0, 1],
        links={"0-1": "?"},
        buses={0: pci("18"), 1: pci("38")},
        kinds={"0:NET/4": "SYS", "1:NET/4": "SYS", "0:NET/3": "?"},
        notes=["NCCL pattern 4 (ring): 4 channels, 24.000000/24.000000 GB/s, type NVL/PIX"],
    ),
}
BLOCK = "block_00000000-0000-0000-0000-00000000000"
NETWORKS = {
    "slurm/14_azure_gb200_blocks_18.conf": Told(
        tiers={f"{BLOCK}{n}": ("block", None, 18) for n in range(2, 5)}
        | {f"{BLOCK}1": ("block", None, " ".join(f"node-{n}" for n in range(1, 70, 4)))},
        notes=["block sizes 1"],
    ),
    "slurm/17_azure_guid_graph_with_cycles.conf": Told(
        tiers={
            "ibsw1": ("switch", "ibsw27", " ".join(f"0x0000000000100{n}" for n in range(3))),
            "ibsw14": ("switch", "ibsw47", 0),
            "ibsw47": ("switch", None, 0),
        },
        notes=["cycle: ibsw14 lists ibsw47, which is above it"],
    ),
    "topograph/03_model_nvl72.yaml": Told(
        tiers={
            "core": ("switch", None, 0),
            "spine-1": ("switch", "core", 0),
            "spine-2": ("switch", "core", 0),
            "leaf-1-1": ("switch", "spine-1", " ".join(f"node{n}" for n in range(1101, 1119))),
            "leaf-2-2": ("switch", "spine-2", 18),
            "nvl-1-1": ("nvlink_domain", None, 18),
            "nvl-2-2": ("nvlink_domain", None, " ".join(f"node{n}" for n in range(2201, 2219))),
        }
    ),
    "topograph/04_model_small_tree.yaml": Told(
        tiers={
            "S1": ("switch", None, 0),
            "S2": ("switch", "S1", "I21 I22 I25"),
            "S3": ("switch", "S1", "I34 I35 I36"),
            "nvl2": ("nvlink_domain", None, "I21 I22 I25"),
            "nvl3": ("nvlink_domain", None, "I34 I35 I36"),
        }
    ),
    "topograph/06_model_dual_xclr_irregular.yaml": Told(
        tiers={
            "rack-1-01": ("switch", "sw-01", 9),
            "rack-1-03": ("switch", "sw-01", 0),
            "rack-2-15": ("switch", "sw-02", 5),
            "domain-01": ("nvlink_domain", None, 0),
            "nvlink:rack-2-15": ("nvlink_domain", "domain-02", 5),
        },
        notes=["switch rack-1-03 is named as a child but not described"],
    ),
    "topograph/07_graph_engine_output.json": Told(
        tiers={
            "leaf-a": ("switch", "spine-a", "I21"),
            "spine-a": ("switch", None, 0),
            "nvl-1": ("nvlink_domain", None, 0),
            "nvl-1.rack-1": ("nvlink_domain", "nvl-1", "I21"),
        }
    ),
    "topograph/08_netq_compute_nodes.json": Told(
        node="node1",
        gpus=[0, 1, 2, 3],
        every="?",
        tiers={"00000000-0000-0000-0000-000000000001": ("nvlink_domain", None, "node1 node2")},
        notes=["ChassisID 1,", "HostID 1, SlotID 5, TrayIndex 4, health HEALTHY"],
    ),
    "ibnetdiscover/01_dgx_superpod_first_260_lines.out": Told(
        tiers={
            "A09-P1-IBLEAF-04-04": (
                "switch",
                None,
                " ".join(f"node-c{n:02d}" for n in range(1, 18)),
            ),
            "A10-P1-IBSPINE-02": ("switch", None, 0),
        }
    ),
    "ibnetdiscover/03_superbench_hostname_guid_map.txt": Told(
        node="node03", gpus=[], nics=["000200000000000c"]
    ),
    "nvbandwidth/01_gh200_v0.6_full_log.log": Told(
        gpus=[0],
        buses={0: "0009:01:00.0"},
        notes=[
            "host_to_device_memcpy_ce (GB/s, measured): 369.36 269.33 412.11 / "
            "323.36 299.33 312.11; SUM 1985.60",
            "host_device_latency_sm (ns, measured): 772.58; SUM 772.58",
        ],
    ),
    "sysfs/01_infiniband_h100_9hca.tsv": Told(
        gpus=[],
        nics=[*(f"mlx5_{n}" for n in (0, 1, 4, 5, 6, 7, 8, 9)), "mlx5_bond_0"],
        notes=[
            "InfiniBand 400 Gb/sec (4X NDR) 4: ACTIVE",
            "NICs mlx5_bond_0: Ethernet 200 Gb/sec (2X NDR) 4: ACTIVE",
        ],
    ),
}
CASES = {**PLAIN, **XML, **LOGS, **NETWORKS}

needs_data = pytest.mark.skipif(
    not (DATA / "INDEX.csv").exists(), reason="the posted texts are not beside the project"
)


@needs_data
def test_every_row_of_the_index_has_its_expectation():
    with (DATA / "INDEX.csv").open(newline="", encoding="utf-8") as file:
        rows = [row["file"] for row in csv.DictReader(file)]

    assert sorted(CASES) == sorted(rows)


@needs_data
@pytest.mark.parametrize("file", [name for name, told in CASES.items() if not told.refused])
def test_a_posted_text_gives_what_its_index_says(file):
    check(read(file), CASES[file])


@needs_data
@pytest.mark.parametrize("file", [name for name, told in CASES.items() if told.refused])
def test_a_posted_text_that_cannot_be_read_is_refused_with_its_place(file):
    with pytest.raises(TopologyError) as caught:
        read(file)

    for text in [file, *CASES[file].refused]:
        assert text in str(caught.value)


@needs_data
def test_each_gpu_of_the_cube_mesh_has_four_nvlinks():
    [node] = read("topo-m/59_dgx1_p100_cube_mesh_soc.txt").nodes

    for gpu in node.gpus:
        mine = [link.lanes for link in node.gpu_links if gpu.index in (link.a, link.b)]
        assert sum(lanes or 0 for lanes in mine) == 4


@needs_data
def test_the_second_compute_node_has_its_own_slot():
    second = read("topograph/08_netq_compute_nodes.json").nodes[1]

    assert second.name == "node2"
    assert any("SlotID 22, TrayIndex 12" in note for note in second.notes)


@needs_data
def test_a_leaf_has_its_hosts_and_spines_at_the_printed_speed():
    network = read("ibnetdiscover/01_dgx_superpod_first_260_lines.out").network
    speeds = {(edge.a, edge.b): edge.bytes_per_s for edge in network.edges}

    assert speeds["A09-P1-IBLEAF-04-04", "node-c17"] == 50e9  # 4xNDR
    assert speeds["A09-P1-IBLEAF-04-04", "A10-P1-IBSPINE-02"] == 100e9  # two cables


@needs_data
def test_host_order_is_the_order_of_appearance():
    nodes = read("ibnetdiscover/03_superbench_hostname_guid_map.txt").nodes

    assert [node.name for node in nodes[:3]] == ["node01", "node02", "node03"]
    assert all(len(node.nics) == 1 for node in nodes)


@needs_data
def test_a_port_that_lists_its_speed_gives_the_nic_that_speed():
    [node] = read("sysfs/01_infiniband_h100_9hca.tsv").nodes

    assert [nic.speed_bytes_per_s for nic in node.nics] == [50e9] * 8 + [25e9]
