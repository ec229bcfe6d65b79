"""The table for people."""

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
)
from topology.cli import render_table

NODE = Node(
    name="node0",
    gpus=(Gpu(index=0, name="H100", memory_bytes=80 * 2**30, mig=False), Gpu(index=3, mig=True)),
    nics=(Nic(name="mlx5_0", speed_bytes_per_s=50e9), Nic(name="mlx5_1")),
    gpu_links=(Link(a=0, b=3, kind=LinkKind.NVLINK, lanes=18, bytes_per_s=478e9),),
    gpu_nics=(GpuNic(gpu=0, nic="mlx5_0", kind=LinkKind.PIX), GpuNic(gpu=3, nic="mlx5_1")),
    cpus=96,
    notes=("something odd",),
)


def table_of(*nodes, network=None):
    return render_table(Topology(source="nvml", nodes=nodes, network=network or Network()))


def rows(text):
    return [line.split() for line in text.splitlines()]


def test_the_matrix_shows_lanes_distances_and_unknowns():
    text = rows(table_of(NODE))

    assert ["link", "GPU0", "GPU3", "mlx5_0", "mlx5_1"] in text
    assert ["GPU0", "X", "NV18", "PIX", "?"] in text
    assert ["GPU3", "NV18", "X", "?", "?"] in text


def test_facts_are_shown_in_units_for_people():
    text = table_of(NODE)

    assert "node node0: 2 GPUs, 2 NICs, 96 CPUs usable, ? memory, driver ?" in text
    assert ["0", "H100", "80.0", "GiB", "?", "?", "?", "off", "mlx5_0", "?"] in rows(text)
    assert ["3", "?", "?", "?", "?", "?", "on", "?", "?"] in rows(text)
    assert ["mlx5_0", "50.0", "?", "?"] in rows(text)
    assert "islands: {0,3}; NVLink GB/s between two GPUs, one direction: 478.0" in text
    assert "  - something odd" in text


def test_an_unknown_number_of_lanes_is_no_number():
    node = Node(
        name="n",
        gpus=(Gpu(index=0), Gpu(index=1)),
        gpu_links=(Link(a=0, b=1, kind=LinkKind.NVLINK),),
    )

    text = table_of(node)

    assert ["GPU0", "X", "NVLINK"] in rows(text)
    assert "one direction: ?" in text


def test_a_machine_without_gpus_shows_its_note_and_no_empty_tables():
    text = table_of(Node(name="laptop", notes=("no GPUs listed: why",)))

    assert text.startswith("node laptop: 0 GPUs, 0 NICs")
    assert "no GPUs listed: why" in text
    assert "link" not in text
    assert "islands" not in text


def test_gpus_without_nvlink_are_islands_of_one():
    node = Node(
        name="n",
        gpus=(Gpu(index=0), Gpu(index=1)),
        gpu_links=(Link(a=0, b=1, kind=LinkKind.PHB),),
    )

    assert "islands: {0} {1}\n" in table_of(node)


def test_the_network_is_shown_where_there_is_one():
    network = Network(
        tiers=(Tier(name="leaf0", kind=TierKind.SWITCH, nodes=("node0", "node1")),),
        edges=(Edge(a="node0", b="node1", bytes_per_s=50e9), Edge(a="node1", b="node2")),
    )

    text = rows(table_of(NODE, network=network))

    assert ["leaf0", "switch", "-", "node0,node1"] in text
    assert ["node0", "node1", "50.0"] in text
    assert ["node1", "node2", "?"] in text


def test_the_table_is_ascii_and_ends_in_one_newline():
    text = table_of(NODE)

    assert text.isascii()
    assert text.endswith(text.rstrip("\n") + "\n")
    assert not any(line != line.rstrip() for line in text.splitlines())
