"""Networks: Slurm files, host ranges, the YAML subset, topograph, ibnetdiscover, NCCL logs."""

import json

import pytest

from topology import TopologyError
from topology.readers import read_text
from topology.readers.hostlist import expand_hosts
from topology.readers.nccl_log import bus_address
from topology.readers.reading import SourceText, affinity_of_mask
from topology.readers.yaml_subset import read_yaml


def network_of(text):
    return read_text(text, source_name="net").network


def tree(network):
    return {tier.name: (tier.parent, list(tier.nodes)) for tier in network.tiers}


def refusal(text):
    with pytest.raises(TopologyError) as caught:
        read_text(text, source_name="net")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node[0-3]", ["node0", "node1", "node2", "node3"]),
        ("n[008-010,2],login", ["n008", "n009", "n010", "n2", "login"]),
        ("r[0-1]n[1-2]", ["r0n1", "r0n2", "r1n1", "r1n2"]),
        ("a , b", ["a", "b"]),
        ("gpu[1-2]-ib", ["gpu1-ib", "gpu2-ib"]),
        ("", []),
    ],
)
def test_host_ranges_are_expanded(text, hosts):
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    "text",
    ["n[0-", "n0-3]", "n[3-1]", "n[a-b]", "n[0-9999999]", "n[0-999]m[0-999]", "n[[1]]", "a b"],
)
def test_host_ranges_that_are_wrong_or_endless_are_refused(text):
    with pytest.raises(TopologyError):
        expand_hosts(text)


CONF = """\
# two leaves
switchname=leaf0 nodes=node[0-1] LinkSpeed=100
SwitchName=leaf1 Nodes=node[2-3]
SwitchName=spine \\
  Switches=leaf[0-1]
"""


def test_a_slurm_tree_gives_tiers_with_parents():
    network = network_of(CONF)

    assert tree(network) == {
        "leaf0": ("spine", ["node0", "node1"]),
        "leaf1": ("spine", ["node2", "node3"]),
        "spine": (None, []),
    }
    assert network.notes == ()


def test_blocks_and_what_is_commented_out_are_told():
    network = network_of("BlockName=b0 Nodes=n[0-1]\n#BlockName=b1 Nodes=n2\nBlockSizes=2,4\n")

    assert [(tier.name, tier.kind.value) for tier in network.tiers] == [("b0", "block")]
    assert network.notes == ("line 2: b1 is commented out", "block sizes 2,4")


def test_a_second_parent_is_an_edge_and_a_cycle_is_left_out():
    network = network_of(
        "SwitchName=l0 Nodes=n0\nSwitchName=s0 Switches=l0,s1\nSwitchName=s1 Switches=l0,s0\n"
    )

    assert tree(network)["l0"] == ("s0", ["n0"])
    assert [(edge.a, edge.b) for edge in network.edges] == [("l0", "s1")]
    assert any("cycle: s0 lists s1" in note for note in network.notes)
    assert any("l0 has several parents: s0, s1" in note for note in network.notes)


def test_what_hangs_above_and_below_a_cycle_keeps_its_parent():
    network = network_of(
        "SwitchName=top Switches=a\nSwitchName=a Switches=b\nSwitchName=b Switches=a,leaf\n"
        "SwitchName=leaf Nodes=n0\n"
    )

    assert {name: parent for name, (parent, _) in tree(network).items()} == {
        "top": None,
        "a": "top",
        "b": "a",
        "leaf": "b",
    }
    assert network.notes[0] == "cycle: b lists a, which is above it: not used"


def test_a_switch_that_lists_itself_ends():
    assert "cycle: a lists a" in network_of("SwitchName=a Switches=a\n").notes[0]


def test_a_long_chain_of_switches_costs_no_recursion():
    lines = [f"SwitchName=s{n} Switches=s{n + 1}" for n in range(3000)]
    network = network_of("\n".join([*lines, "SwitchName=s3000 Nodes=n0"]))

    assert len(network.tiers) == 3001


def test_gaps_are_told():
    notes = network_of(
        "SwitchName=a Switches=b\nSwitchName=c Nodes=n0\nSwitchName=d Nodes=n0\n"
    ).notes

    assert "switch b is named as a child but not described" in notes
    assert "nodes below several switches: n0" in notes
    assert "no common root: 3 switches have no parent" in notes


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("SwitchName=a Nodes=n[0\n", ["line 1", "n[0"]),
        ("SwitchName=a Nodes=n0\nSwitchName=a Nodes=n1\n", ["a", "2 entries"]),
        ("SwitchName=a Nodes=n0\nhello\n", ["line 2", "hello"]),
        ("SwitchName=a Ports=4\n", ["line 1", "ports"]),
    ],
)
def test_a_slurm_line_that_is_wrong_is_refused(text, told):
    message = refusal(text)

    for word in told:
        assert word in message


YAML = """\
---
- topology: tree1
  cluster_default: true
  tree:
    switches:
      - switch: spine
        children: leaf[0-1]
      - switch: leaf0
        nodes: node[0-1]   # two
      - switch: leaf1
        nodes: ["node2", node3]
- topology: other
  block:
    block_sizes: [2, 4]
    blocks:
      - block: b0
        nodes: node[0-1]
"""


def test_the_default_topology_of_the_yaml_is_read():
    network = network_of(YAML)

    assert tree(network) == {
        "spine": (None, []),
        "leaf0": ("spine", ["node0", "node1"]),
        "leaf1": ("spine", ["node2", "node3"]),
    }
    assert network.notes == ("topologies left out: other",)


def test_another_default_is_respected():
    text = YAML.replace("  cluster_default: true\n", "").replace(
        "topology: other", "topology: other\n  cluster_default: true"
    )

    assert tree(network_of(text)) == {"b0": (None, ["node0", "node1"])}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("  tree:", "  torus3d:", ["tree, block or flat"]),
        ("switches:", "switch:", ["topology tree1, switches"]),
        ("- switch: spine", "- name: spine", ["topology tree1, switch"]),
        ("node[0-1]   #", "node[0-   #", ["topology tree1, nodes", "node[0-"]),
        ("leaf[0-1]", "&anchor leaf", ["line 7", "plain word"]),
        ("leaf[0-1]", "!!python/object:os.system x", ["line 7", "plain word"]),
        ("    switches:", "\tswitches:", ["line 5", "a tab"]),
        ("    switches:", "    switches: |", ["line 5"]),
        ("  cluster_default: true", "  topology: tree1", ["line 3", "once"]),
    ],
)
def test_yaml_that_is_wrong_is_refused(old, new, told):
    assert old in YAML
    message = refusal(YAML.replace(old, new, 1))

    for word in told:
        assert word in message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            "a: 1\nb:\n- x\n- y: z\n  w: [p, 'q,r', n[0-1,3]]\n",
            {"a": "1", "b": ["x", {"y": "z", "w": ["p", "q,r", "n[0-1,3]"]}]},
        ),
        ("a: 'b # c' # d\n", {"a": "b # c"}),
        ("", None),
        ("a:\n\n# only\nb: {}\n", {"a": None, "b": {}}),
        ('"k/e": "v"\n', {"k/e": "v"}),
        ("-\n  a: b\n-\n", [{"a": "b"}, None]),
    ],
)
def test_the_yaml_subset(text, value):
    assert read_yaml(SourceText("y", text)) == value


def test_domains_of_topograph_stand_beside_the_switches():
    labels = {"x/domain": "d"}
    instances = [
        {"id": name, "network_layers": ["l", "s"], "labels": labels} for name in ("n0", "n1")
    ]
    text = json.dumps({"instances": instances})
    network = network_of(text)

    assert [(t.name, t.kind.value, t.parent, t.nodes) for t in network.tiers] == [
        ("l", "switch", "s", ("n0", "n1")),
        ("s", "switch", None, ()),
        ("d", "nvlink_domain", None, ("n0", "n1")),
    ]


@pytest.mark.parametrize(
    "text",
    [
        '{"instances": 1}',
        '{"instances": [{"id": 1}]}',
        '{"instances": [{"id": "a", "network_layers": 3}]}',
        '[{"DomainUUID": "x"}]',
        '{"schema": 1',
        '{"schema": 2}',
        "blocks: x\n",
        "switches: [a]\n",
    ],
)
def test_json_and_models_of_another_shape_are_refused(text):
    assert refusal(text).startswith("net: ")


LEAF = """\
Switch	65 "S-01"		# "MF0;leaf-1:MQM9700/U1" enhanced port 0 lid 1 lmc 0
[1]	"H-aa"[1](aa) 		# "node0 mlx5_0" lid 2 4xNDR
[2]	"H-ab"[1](ab) 		# "node0 mlx5_1" lid 3 4xNDR
[3]	"H-ac"[1](ac) 		# "MT4129 ConnectX7" lid 4 4xHDR
[9]	"S-02"[1]		# "MF0;spine-1:MQM9700/U1" lid 9 4xNDR

Ca	1 "H-aa"		# "node0 mlx5_0"
[1](aa) 	"S-01"[1]		# lid 2 lmc 0 "MF0;leaf-1:MQM9700/U1" lid 1 4xNDR
"""


def test_a_fabric_gives_leaves_spines_and_speeds():
    network = network_of(LEAF)

    assert tree(network) == {"leaf-1": ("spine-1", ["node0", "H-ac"]), "spine-1": (None, [])}
    assert {(edge.a, edge.b): edge.bytes_per_s for edge in network.edges} == {
        ("leaf-1", "node0"): 100e9,
        ("leaf-1", "H-ac"): 25e9,
        ("leaf-1", "spine-1"): 50e9,
    }
    assert "1 host ports without a host name, called by their GUID" in network.notes


LOG = """\
noise before host7:1:11 [0] NCCL INFO CPU/0-0 (1/2/-1)
host7:1:12 [1] NCCL INFO CPU/0-1 (1/2/-1)
host7:1:11 [0] NCCL INFO + PCI[24.0] - PCI/0-1000 (1000c0101000100b)
host7:1:12 [1] NCCL INFO + PCI[24.0] - GPU/0-81000 (1)
host7:1:11 [0] NCCL INFO              + PCI[24.0] - GPU/0-2000 (0)
host7:1:12 [1] NCCL INFO              + NVL[40.0] - NVS/0-0
host7:1:11 [0] NCCL INFO                            + NVL[40.0] - NVS/0-0
host7:1:11 [0] NCCL INFO              + PCI[24.0] - NIC/0-3000
host7:1:11 [0] NCCL INFO                            + NET[25.0] - NET/0-0 (0/1/1/25.000000)
host7:1:11 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 2000 - Init START
host7:1:12 [1] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 81000 - Init START
"""


def test_threads_of_a_log_are_kept_apart():
    [node] = read_text(LOG, source_name="log").nodes
    near = {pair.gpu: str(pair.kind) for pair in node.gpu_nics}

    assert node.name == "host7"
    assert [(gpu.index, gpu.pci_bus_id, gpu.numa_node) for gpu in node.gpus] == [
        (0, "0000:02:00.0", 0),
        (1, "0000:81:00.0", 1),
    ]
    assert near == {0: "PIX", 1: "SYS"}
    assert [str(link.kind) for link in node.gpu_links] == ["NVLINK"]
    assert node.gpu_links[0].bytes_per_s == 40e9
    assert node.nics[0].speed_bytes_per_s == 25e9


@pytest.mark.parametrize(
    ("path", "kind"), [("NVL", "NVLINK"), ("PXB", "PXB"), ("NVB", "None"), ("C2C", "None")]
)
def test_paths_of_nccl_that_are_none_of_our_kinds_stay_unknown(path, kind):
    line = f"h:1:1 [0] NCCL INFO GPU/1000 :GPU/0-1000 (0/5000.0/LOC) GPU/0-2000 (2/40.0/{path})\n"
    [node] = read_text(line, source_name="log").nodes

    assert str(node.gpu_links[0].kind) == kind


def test_what_a_launcher_writes_before_the_host_is_no_part_of_its_name():
    for head in ("[1,0]<stdout>:", "0: ", "[1,0]<stdout>: ", ""):
        [node] = read_text(head + "h-1:1:1 [0] NCCL INFO Using network IB\n", source_name="l").nodes
        assert node.name == "h-1"


def test_a_cut_ring_is_completed_by_its_edges_only_if_it_closes():
    head = "h:1:1 [0] NCCL INFO "
    ring = f"{head}Channel 00/01 :    0   1\n"
    edges = "".join(
        f"h:1:1 [0] NCCL INFO Channel 00 : {a}[1000] -> {b}[2000] via P2P/IPC\n"
        for a, b in [(0, 1), (1, 2), (2, 0), (1, 0)]
    )

    def told(text):
        return [n for n in read_text(text, source_name="l").nodes[0].notes if n.startswith("ring")]

    assert told(ring + edges) == [
        "ring of ranks, channel 00: 0 1 2 (the line is cut; the rest is from its edges)"
    ]
    assert told(ring + edges.replace("2[1000] -> 0", "2[1000] -> 9")) == [
        "ring of ranks, channel 00: 0 1"
    ]


def test_masks_and_addresses_of_nccl():
    assert affinity_of_mask("ffff,f00000ff,fff00000") == "20-39,60-79"
    assert affinity_of_mask("xyz") is None
    assert affinity_of_mask("0") is None
    assert bus_address("1c000") == "0000:1c:00.0"
    assert bus_address("10001c010") == "1000:1c:01.0"
