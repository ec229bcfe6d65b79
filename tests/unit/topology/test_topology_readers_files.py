"""Several files become one topology: which are about one node, and what it is called."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from topology import Topology, TopologyError
from topology.cli import render_json
from topology.readers import read_topology

MATRIX = (
    "     GPU0 GPU1 NIC0 CPU Affinity NUMA Affinity\nGPU0 X NV4 PIX 0-3 0\nGPU1 NV4 X SYS 4-7 1\n"
)
HIDDEN = "$ nvidia-smi topo -mp\n" + MATRIX.replace("NV4", "NODE")
STATUS = "".join(
    f"GPU {gpu}: NVIDIA H100 (UUID: GPU-{gpu})\n"
    + "".join(f"\t Link {link}: 26.5 GB/s\n" for link in range(4))
    for gpu in range(2)
)
PEERS = "$ nvidia-smi topo -p2p r\n     GPU0 GPU1\nGPU0 X OK\nGPU1 OK X\n"
CONF = "SwitchName=leaf Nodes=node[0-1]\n"
YAML = "- topology: t\n  tree:\n    switches:\n      - switch: top\n        nodes: node[0-1]\n"


@pytest.fixture
def read(tmp_path):
    def read_files(**texts):
        paths = []
        for name, text in texts.items():
            path = tmp_path / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            paths.append(path)
        return read_topology(paths)

    return read_files


def test_one_file_is_node0(read):
    topology = read(paste_txt=MATRIX)

    assert [node.name for node in topology.nodes] == ["node0"]
    assert topology.source == "nvidia-smi"


def test_texts_of_different_kinds_about_one_node_are_joined(read):
    topology = read(a_txt=MATRIX, b_txt=STATUS, c_txt=PEERS, d_txt=HIDDEN)
    [node] = topology.nodes
    [link] = node.gpu_links

    assert node.name == "node0"
    assert [(gpu.name, gpu.uuid, gpu.numa_node) for gpu in node.gpus] == [
        ("NVIDIA H100", "GPU-0", 0),
        ("NVIDIA H100", "GPU-1", 1),
    ]
    assert (str(link.kind), link.lanes, link.bytes_per_s, link.p2p) == ("NVLINK", 4, 106e9, True)
    assert "bytes_per_s of NVLinks: their number from the matrix, rate from nvlink -s" in node.notes
    assert topology.source == "nvidia-smi"


def test_the_order_of_the_files_does_not_change_the_facts(read):
    one = read(a_txt=MATRIX, b_txt=STATUS, d_txt=HIDDEN)
    other = read(d_txt=HIDDEN, b_txt=STATUS, a_txt=MATRIX)

    assert one.content_hash == other.content_hash


def test_many_nodes_are_called_after_their_files(read):
    topology = read(alpha_txt=MATRIX, beta_txt=MATRIX, beta_nvlink_txt=STATUS)

    assert [node.name for node in topology.nodes] == ["alpha", "beta"]
    assert [node.gpus[0].name for node in topology.nodes] == [None, "NVIDIA H100"]


def test_files_of_one_name_in_several_folders_are_called_after_the_folders(read):
    topology = read(n1__topo_txt=MATRIX, n2__topo_txt=MATRIX)

    assert [node.name for node in topology.nodes] == ["n1", "n2"]


def test_an_inventory_and_a_slurm_tree_stand_together(read):
    topology = read(node1_txt=MATRIX, topology_conf=CONF)

    assert [node.name for node in topology.nodes] == ["node1"]  # the tree knows that name
    assert [tier.nodes for tier in topology.network.tiers] == [("node0", "node1")]
    assert topology.source == "nvidia-smi+slurm"


def test_yaml_stands_above_conf_as_in_slurm(read):
    network = read(topology_conf=CONF, topology_yaml=YAML).network

    assert [tier.name for tier in network.tiers] == ["top"]
    assert network.notes == ("topology.yaml stands above topology.conf, which was left out",)


def test_our_own_json_reads_back_equal_and_is_joined_by_name(read, tmp_path):
    first = read(a_txt=MATRIX)
    (tmp_path / "one.json").write_text(render_json(first))

    assert read_topology([tmp_path / "one.json"]) == first
    named = replace(first.nodes[0], name="other")
    (tmp_path / "two.json").write_text(render_json(replace(first, nodes=(named,))))
    both = read_topology([tmp_path / "one.json", tmp_path / "two.json"])
    assert [node.name for node in both.nodes] == ["node0", "other"]


def test_network_notes_are_recorded_but_no_fact(read, tmp_path):
    topology = read(topology_conf="SwitchName=a Switches=b\n")
    (tmp_path / "net.json").write_text(render_json(topology))

    assert topology.network.notes
    assert read_topology([tmp_path / "net.json"]) == topology
    silent = replace(topology, network=replace(topology.network, notes=()))
    assert silent.content_hash == topology.content_hash
    assert "notes" not in json.loads(render_json(silent))["network"]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (MATRIX.replace("NV4", "SYS"), "GPUs 0-1: kind: saw SYS, wanted NVLINK"),
        (MATRIX.replace("NV4", "NV2"), "GPUs 0-1: lanes: saw 2, wanted 4"),
        (MATRIX.replace("SYS 4-7 1", "SYS 4-7 0"), "GPU 1: numa_node: saw 0, wanted 1"),
        (MATRIX.replace("X NV4 PIX", "X NV4 PHB"), "GPU 0 to NIC NIC0: saw PHB, wanted PIX"),
    ],
)
def test_files_that_contradict_each_other_are_refused_with_both_sides(other, told, read, tmp_path):
    first = read(a_txt=MATRIX)
    second = replace(read(b_txt=other), source="again")
    (tmp_path / "one.json").write_text(render_json(first))
    (tmp_path / "two.json").write_text(render_json(second))

    with pytest.raises(TopologyError) as caught:
        read_topology([tmp_path / "one.json", tmp_path / "two.json"])

    assert told in str(caught.value)
    assert all(name in str(caught.value) for name in ("one.json", "two.json"))


def test_the_same_file_twice_is_one(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(MATRIX)

    assert len(read_topology([path, path]).nodes) == 1


def test_two_tiers_of_one_name_that_differ_are_refused(read):
    with pytest.raises(TopologyError, match="two tiers named 'leaf'"):
        read(a_json=NETWORK.replace("n0", "n1"), b_json=NETWORK)


NETWORK = json.dumps({"instances": [{"id": "n0", "network_layers": ["leaf"], "labels": {}}]})


def test_a_damaged_json_is_refused_with_its_line(read):
    with pytest.raises(TopologyError, match=r"line 2, column 1: .*wanted JSON"):
        read(a_json='{"schema": 1,\n')


def test_no_file_is_an_error():
    with pytest.raises(TopologyError, match="no file"):
        read_topology([])


def test_text_of_other_encodings_is_read(tmp_path):
    (tmp_path / "wide.txt").write_bytes(MATRIX.encode("utf-16"))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n" + MATRIX.encode())

    for name in ("wide.txt", "latin.txt"):
        [node] = read_topology([tmp_path / name]).nodes
        assert node.gpu_links[0].lanes == 4


@pytest.mark.parametrize("text", ["", "\ufeff"])
def test_an_empty_text_is_refused_and_says_what_was_wanted(read, text):
    with pytest.raises(
        TopologyError, match=r"a.txt: the input is empty; wanted one of .*topo -m"
    ) as caught:
        read(a_txt=text)
    assert "did the command" in caught.value.hint
    with pytest.raises(TopologyError, match=r"b.txt: the input is empty"):
        read(a_txt=MATRIX, b_txt=text)


def test_a_document_that_says_that_there_are_no_gpus_is_read(read):
    node = replace(read(a_txt=MATRIX).nodes[0], gpus=(), gpu_links=(), gpu_nics=(), name="bare")
    bare = Topology(source="sysfs", nodes=(node,))

    assert read(b_json=render_json(bare)).nodes == (node,)


@pytest.fixture
def piped(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MATRIX.encode())))


@pytest.mark.usefixtures("piped")
def test_a_second_machine_on_standard_input_is_called_stdin(tmp_path):
    (tmp_path / "a.txt").write_text(MATRIX)

    topology = read_topology([tmp_path / "a.txt", Path("-"), Path("-")])

    assert [node.name for node in topology.nodes] == ["a", "stdin"]


@pytest.mark.usefixtures("piped")
def test_another_kind_of_text_on_standard_input_is_about_the_same_machine(tmp_path):
    (tmp_path / "a.txt").write_text(STATUS)

    [node] = read_topology([tmp_path / "a.txt", Path("-")]).nodes

    assert (node.name, node.gpus[0].uuid, node.gpus[0].numa_node) == ("node0", "GPU-0", 0)


def test_two_machines_of_one_name_are_refused_and_both_named(read, tmp_path):
    first = read(a_txt=MATRIX)
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text(render_json(first))

    with pytest.raises(
        TopologyError, match=r"one.json and .*two.json are both inventory of a node"
    ):
        read_topology([tmp_path / "one.json", tmp_path / "two.json"])
    paths = [tmp_path / "x" / "a" / "topo.txt", tmp_path / "a" / "topo.txt"]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_text(MATRIX)
    with pytest.raises(TopologyError, match=r"a/topo.txt and .*a/topo.txt are both topo -m of"):
        read_topology(paths)


def test_one_machine_recorded_twice_is_one_where_its_uuids_prove_it(read, tmp_path):
    known = read(a_txt=MATRIX, b_txt=STATUS)
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_text(render_json(known))

    assert read_topology([tmp_path / "one.json", tmp_path / "two.json"]).nodes == known.nodes
    gpus = tuple(replace(gpu, uuid=f"other-{gpu.uuid}") for gpu in known.nodes[0].gpus)
    other = replace(known, nodes=(replace(known.nodes[0], gpus=gpus),))
    (tmp_path / "two.json").write_text(render_json(other))
    with pytest.raises(TopologyError, match=r"two.json: GPU 0: uuid: saw other-GPU-0.*one.json"):
        read_topology([tmp_path / "one.json", tmp_path / "two.json"])


def test_one_file_under_two_names_is_read_once(tmp_path):
    (tmp_path / "a.txt").write_text(MATRIX)
    (tmp_path / "b.txt").symlink_to(tmp_path / "a.txt")

    assert len(read_topology([tmp_path / "a.txt", tmp_path / "b.txt"]).nodes) == 1
