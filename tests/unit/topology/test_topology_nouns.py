"""The rules of the nouns, their JSON and their hash."""

import hashlib
import json
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology import (
    Edge,
    Gpu,
    GpuNic,
    Link,
    LinkKind,
    Network,
    Nic,
    Node,
    Tier,
    TierKind,
    Topology,
    TopologyError,
)
from topology.nouns import _facts
from topology.record import canonical_json

SAMPLE_NODE = {
    "name": "node0",
    "gpus": [
        {
            "index": index,
            "name": "H100",
            "uuid": None,
            "pci_bus_id": None,
            "memory_bytes": None,
            "numa_node": 0,
            "cpu_affinity": "0-47",
            "mig": False,
        }
        for index in (0, 1)
    ],
    "nics": [{"name": "mlx5_0", "pci_bus_id": None, "speed_bytes_per_s": None, "numa_node": 0}],
    "gpu_links": [
        {"a": 0, "b": 1, "kind": "NVLINK", "lanes": 18, "bytes_per_s": 478e9, "p2p": True}
    ],
    "gpu_nics": [{"gpu": 0, "nic": "mlx5_0", "kind": "PIX"}],
    "islands": [[0, 1]],
    "nearest_nics": {"0": ["mlx5_0"], "1": []},
    "notes": ["odd"],
}


def sample(**changes):
    """The documented form, with no field beyond it."""
    document = {
        "schema": 1,
        "content_hash": None,
        "source": "nvml",
        "nodes": [json.loads(json.dumps(SAMPLE_NODE))],
        "network": {
            "tiers": [{"name": "leaf0", "kind": "switch", "parent": "spine0", "nodes": ["node0"]}],
            "edges": [{"a": "node0", "b": "node1", "bytes_per_s": 50e9}],
        },
    }
    return document | changes


def node_of(*, gpus=3, links=None, **fields):
    pairs = [(a, b) for a in range(gpus) for b in range(a + 1, gpus)]
    kinds = links or {}
    return Node(
        name="n",
        gpus=tuple(Gpu(index=index) for index in range(gpus)),
        gpu_links=tuple(Link(a=a, b=b, kind=kinds.get((a, b))) for a, b in pairs),
        **fields,
    )


def topology_of(node, **fields):
    return Topology(source="nvml", nodes=(node,), **fields)


def test_the_documented_json_reads_into_nouns():
    topology = Topology.from_json(sample())

    (node,) = topology.nodes
    assert node.gpus[0] == Gpu(index=0, name="H100", numa_node=0, cpu_affinity="0-47", mig=False)
    assert node.gpu_links[0].kind is LinkKind.NVLINK
    assert node.gpu_nics == (GpuNic(gpu=0, nic="mlx5_0", kind=LinkKind.PIX),)
    assert node.nics == (Nic(name="mlx5_0", numa_node=0),)
    assert topology.network == Network(
        tiers=(Tier(name="leaf0", kind=TierKind.SWITCH, parent="spine0", nodes=("node0",)),),
        edges=(Edge(a="node0", b="node1", bytes_per_s=50e9),),
    )
    assert (node.cpus, node.memory_bytes, node.driver_version) == (None, None, None)


def test_json_holds_every_documented_field_and_the_additive_ones():
    written = Topology.from_json(sample()).to_json()

    (node,) = written["nodes"]
    later = {"pcie", "nvlink", "fabric", "c2c", "mig_uuids"}
    for written_gpu, gpu in zip(node["gpus"], SAMPLE_NODE["gpus"], strict=True):
        assert written_gpu == gpu | dict.fromkeys(later)
    (nic,) = SAMPLE_NODE["nics"]
    assert node["nics"] == [nic | {"link_layer": None, "state": None}]
    for name in SAMPLE_NODE.keys() - {"gpus", "nics"}:
        assert node[name] == SAMPLE_NODE[name]
    assert set(node) - set(SAMPLE_NODE) == {"cpus", "memory_bytes", "driver_version"}
    assert list(written) == ["schema", "content_hash", "source", "nodes", "network"]


def test_round_trip_through_json_text_is_exact():
    topology = Topology.from_json(sample())

    text = json.dumps(topology.to_json())
    again = Topology.from_json(json.loads(text))

    assert again == topology
    assert json.dumps(again.to_json()) == text


maybe_whole = st.none() | st.integers(1, 2**53)


@settings(deadline=None)
@given(
    memory_bytes=maybe_whole,
    numa_node=st.none() | st.integers(0, 64),
    name=st.none() | st.text(),
    mig=st.none() | st.booleans(),
    kind=st.none() | st.sampled_from(LinkKind),
    rate=st.none() | st.floats(1, 1e15) | st.integers(1, 10**12),
)
def test_round_trip_is_exact_for_any_facts(memory_bytes, numa_node, name, mig, kind, rate):
    gpus = (
        Gpu(index=0, name=name, memory_bytes=memory_bytes, numa_node=numa_node, mig=mig),
        Gpu(index=7),
    )
    link = Link(a=0, b=7, kind=kind, bytes_per_s=rate, p2p=mig)
    topology = topology_of(Node(name="n", gpus=gpus, gpu_links=(link,), cpus=memory_bytes))

    again = Topology.from_json(json.loads(json.dumps(topology.to_json())))

    assert again == topology
    assert again.to_json() == topology.to_json()


def test_the_hash_is_pinned():
    topology = topology_of(node_of(gpus=0, cpus=2))

    assert topology.content_hash == (
        "ae1248ddb435869c9bb727c7d3d104c0ead8bfd07b2f4fa47996b5dcaecd1d6d"
    )


def test_the_hash_ignores_notes_source_and_driver():
    node = node_of(cpus=2)
    first = topology_of(node)

    same = Topology(source="slurm", nodes=(replace(node, notes=("odd",), driver_version="1"),))

    assert same.content_hash == first.content_hash


@pytest.mark.parametrize(
    "change",
    [
        {"cpus": 4},
        {"name": "m"},
        {"nics": (Nic(name="mlx5_0"),)},
        {"gpus": (Gpu(index=0, uuid="GPU-1"), Gpu(index=1), Gpu(index=2))},
    ],
)
def test_the_hash_changes_with_every_fact_of_a_node(change):
    node = node_of(cpus=2)

    assert topology_of(replace(node, **change)).content_hash != topology_of(node).content_hash


def test_the_memory_of_a_host_is_no_part_of_the_hash_and_an_old_hash_that_held_it_is_read():
    """A new kernel changes MemTotal by megabytes, and nothing is placed or wired otherwise."""
    bare, before, after = (
        topology_of(replace(node_of(cpus=2), memory_bytes=size)) for size in (None, 1 << 30, 9)
    )
    assert bare.content_hash == before.content_hash == after.content_hash

    nodes = [_facts(node) for node in before.nodes]
    text = canonical_json({"nodes": nodes, "network": {"edges": [], "tiers": []}})
    old = before.to_json() | {"content_hash": hashlib.sha256(text.encode()).hexdigest()}

    assert old["content_hash"] != before.content_hash
    assert Topology.from_json(old) == before


def test_the_hash_changes_with_the_network():
    node = node_of()
    network = Network(edges=(Edge(a="n", b="m", bytes_per_s=1e9),))

    assert topology_of(node, network=network).content_hash != topology_of(node).content_hash


def test_whole_and_fractional_rates_of_equal_value_are_one_fact():
    whole = Network(edges=(Edge(a="n", b="m", bytes_per_s=50_000_000_000),))
    fraction = Network(edges=(Edge(a="n", b="m", bytes_per_s=50e9),))

    assert (
        topology_of(node_of(), network=whole).content_hash
        == topology_of(node_of(), network=fraction).content_hash
    )


def test_gpus_and_links_are_kept_by_index():
    gpus = (Gpu(index=2), Gpu(index=0), Gpu(index=1))
    links = (Link(a=1, b=2), Link(a=0, b=2), Link(a=0, b=1))

    node = Node(name="n", gpus=gpus, gpu_links=links)

    assert [gpu.index for gpu in node.gpus] == [0, 1, 2]
    assert [(link.a, link.b) for link in node.gpu_links] == [(0, 1), (0, 2), (1, 2)]


def test_islands_are_connected_parts_of_nvlink_only():
    nvlink, pix = LinkKind.NVLINK, LinkKind.PIX
    node = node_of(gpus=6, links={(0, 4): nvlink, (2, 4): nvlink, (1, 3): nvlink, (0, 1): pix})

    assert node.islands == ((0, 2, 4), (1, 3), (5,))


def test_nearest_nics_are_all_at_the_smallest_known_distance():
    kinds = {"a": LinkKind.NODE, "b": LinkKind.PXB, "c": LinkKind.PXB, "d": None}
    node = node_of(
        gpus=2,
        nics=tuple(Nic(name=name) for name in kinds),
        gpu_nics=tuple(GpuNic(gpu=0, nic=name, kind=kind) for name, kind in kinds.items()),
    )

    assert node.nearest_nics == {0: ("b", "c"), 1: ()}


def test_link_kinds_are_ordered_by_distance():
    names = ["NVLINK", "PIX", "PXB", "PHB", "NODE", "SYS"]

    assert sorted(LinkKind, key=lambda kind: kind.distance) == names
    assert [LinkKind(name).distance for name in names] == [0, 1, 2, 3, 4, 5]


def test_nouns_are_frozen():
    with pytest.raises(FrozenInstanceError):
        Gpu(index=0).index = 1


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Gpu(index=-1), "index: saw -1, wanted 0 or more"),
        (lambda: Gpu(index=0, memory_bytes=0), "memory_bytes: saw 0, wanted 1 or more"),
        (lambda: Gpu(index=0, numa_node=-1), "numa_node: saw -1"),
        (lambda: Nic(name="a", speed_bytes_per_s=float("nan")), "speed_bytes_per_s: saw nan"),
        (lambda: Link(a=1, b=0), "saw 1, 0, wanted a < b"),
        (lambda: Link(a=1, b=1), "saw 1, 1, wanted a < b"),
        (lambda: Link(a=0, b=1, kind=LinkKind.PIX, lanes=2), "lanes: saw 2 on PIX"),
        (lambda: Link(a=0, b=1, kind=LinkKind.NVLINK, lanes=0), "lanes: saw 0"),
        (lambda: Link(a=0, b=1, bytes_per_s=float("inf")), "bytes_per_s: saw inf"),
        (lambda: Edge(a="a", b="b", bytes_per_s=0.0), "bytes_per_s: saw 0.0"),
        (lambda: GpuNic(gpu=0, nic="a", kind=LinkKind.NVLINK), "a NIC is not on NVLink"),
        (lambda: Node(name="n", cpus=0), "cpus: saw 0"),
        (lambda: node_of(gpus=1, nics=(Nic(name="a"), Nic(name="a"))), "NIC name: saw 'a' twice"),
        (lambda: Node(name="n", gpus=(Gpu(index=0), Gpu(index=0))), "GPU index: saw 0 twice"),
        (lambda: Node(name="n", gpus=(Gpu(index=0), Gpu(index=3))), r"\(0, 3\) are missing"),
        (lambda: Node(name="n", gpu_links=(Link(a=0, b=1),)), r"\(0, 1\) are missing or unknown"),
        (lambda: node_of(gpu_nics=(GpuNic(gpu=0, nic="x"),)), "gpu_nics: saw GPU 0 and NIC 'x'"),
        (
            lambda: node_of(nics=(Nic(name="x"),), gpu_nics=(GpuNic(gpu=9, nic="x"),)),
            "gpu_nics: saw GPU 9",
        ),
        (
            lambda: node_of(nics=(Nic(name="x"),), gpu_nics=(GpuNic(gpu=0, nic="x"),) * 2),
            "pair of GPU and NIC",
        ),
        (
            lambda: Node(
                name="n", gpus=(Gpu(index=0), Gpu(index=1)), gpu_links=(Link(a=0, b=1),) * 2
            ),
            "link of GPUs",
        ),
        (
            lambda: Topology(source="x", nodes=(Node(name="n"), Node(name="n"))),
            "node name: saw 'n' twice",
        ),
    ],
)
def test_a_noun_refuses_what_breaks_its_rule(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def changed(path, value):
    """The sample with one field, at a path of names and positions, set or (...) removed."""
    document = sample()
    *way, last = path
    at = document
    for step in way:
        at = at[step]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["schema"], 2, ["schema", "saw 2", "wanted 1"]),
        (["schema"], True, ["schema", "saw True", "wanted 1"]),
        (["schema"], ..., ["schema is missing"]),
        (["extra"], 1, ["unknown field extra", "content_hash"]),
        (["source"], None, ["source: saw None, wanted text"]),
        (["nodes"], {}, ["nodes: saw {}, wanted a list"]),
        (["nodes", 0], 5, ["nodes[0]: saw 5, wanted an object"]),
        (["nodes", 0, "gpu_link"], [], ["nodes[0]", "unknown field nodes[0].gpu_link"]),
        (["nodes", 0, "islands"], ..., ["nodes[0].islands is missing"]),
        (["nodes", 0, "islands"], [[0], [1]], ["nodes[0].islands: saw [[0], [1]]", "[[0, 1]]"]),
        (["nodes", 0, "nearest_nics"], {}, ["nodes[0].nearest_nics: saw {}", "mlx5_0"]),
        (["nodes", 0, "notes"], [1], ["nodes[0].notes[0]: saw 1, wanted text"]),
        (["nodes", 0, "cpus"], "8", ["nodes[0].cpus: saw '8', wanted a whole number or null"]),
        (["nodes", 0, "gpus", 1, "index"], True, ["nodes[0].gpus[1].index: saw True"]),
        (["nodes", 0, "gpus", 1, "index"], 1.0, ["saw 1.0, wanted a whole number"]),
        (["nodes", 0, "gpus", 1, "index"], -1, ["nodes[0].gpus[1]: index: saw -1"]),
        (["nodes", 0, "gpus", 1, "mig"], 0, ["mig: saw 0, wanted true or false or null"]),
        (["nodes", 0, "gpus", 1, "uuid"], ..., ["nodes[0].gpus[1].uuid is missing"]),
        (["nodes", 0, "gpu_links", 0, "kind"], "NV18", ["saw 'NV18'", "NVLINK, PIX", "or null"]),
        (["nodes", 0, "gpu_links", 0, "kind"], [], ["gpu_links[0].kind: saw []"]),
        (["nodes", 0, "gpu_links", 0, "bytes_per_s"], "x", ["wanted a finite number or null"]),
        (["nodes", 0, "gpu_links", 0, "bytes_per_s"], float("nan"), ["saw nan", "finite"]),
        (["nodes", 0, "gpu_links", 0, "bytes_per_s"], True, ["saw True", "finite"]),
        (["nodes", 0, "gpu_links"], [], ["nodes[0]: gpu_links", "(0, 1)"]),
        (["network", "tiers", 0, "kind"], "rack", ["network.tiers[0].kind: saw 'rack'"]),
        (["network", "tiers", 0, "kind"], None, ["wanted one of switch, block, nvlink_domain"]),
        (["network"], None, ["network: saw None, wanted an object"]),
        (["content_hash"], "abc", ["content_hash: saw 'abc'"]),
    ],
)
def test_reading_refuses_with_path_value_and_wish(path, value, words):
    with pytest.raises(TopologyError) as caught:
        Topology.from_json(changed(path, value))

    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_a_document_that_is_no_object_is_refused(value):
    with pytest.raises(TopologyError, match=r"document: saw .* wanted an object"):
        Topology.from_json(value)


def test_two_nodes_of_one_name_are_refused_in_json_too():
    with pytest.raises(TopologyError, match="document: node name: saw 'node0' twice"):
        Topology.from_json(sample(nodes=[SAMPLE_NODE, SAMPLE_NODE]))


def test_a_wrong_hash_says_what_to_do():
    with pytest.raises(TopologyError) as caught:
        Topology.from_json(sample(content_hash=""))

    assert "set content_hash to null" in caught.value.hint


def test_a_long_value_is_shortened_in_the_message():
    with pytest.raises(TopologyError) as caught:
        Topology.from_json(sample(source=["x" * 10_000]))

    assert len(str(caught.value)) < 300
