"""NCCL topology XML and hwloc XML: distances from the tree, NVLinks told or not, hostile files."""

import pytest

from topology import TopologyError
from topology.readers import read_text


def node_of(text):
    [node] = read_text(text, source_name="x.xml").nodes
    return node


def kinds(node):
    return {
        f"{link.a}-{link.b}": f"NV{link.lanes}" if link.lanes else str(link.kind or "?")
        for link in node.gpu_links
    }


def refusal(text):
    with pytest.raises(TopologyError) as caught:
        read_text(text, source_name="x.xml")
    return str(caught.value)


def gpu(bus, *inner, dev="0", facts='sm="90" rank="0"'):
    links = "".join(inner)
    inside = f'<gpu dev="{dev}" {facts}>{links}</gpu>'
    return f'<pci busid="0000:{bus}:00.0" class="0x030200">{inside}</pci>'


def link(target, count, tclass="0x030200"):
    return f'<nvlink target="{target}" count="{count}" tclass="{tclass}"/>'


def nic(bus, name):
    net = f'<nic><net name="{name}" speed="400000"/></nic>'
    return f'<pci busid="0000:{bus}:00.0" class="0x020700">{net}</pci>'


def switch(bus, *inner):
    return f'<pci busid="0000:{bus}:00.0" class="0x060400">{"".join(inner)}</pci>'


def cpu(*inner, numa="0", affinity="ff"):
    return f'<cpu numaid="{numa}" affinity="{affinity}">{"".join(inner)}</cpu>'


def system(*cpus):
    return f'<system version="1">\n{"".join(cpus)}</system>'


def test_distances_come_from_the_tree():
    node = node_of(
        system(
            cpu(
                switch("01", gpu("02", dev="0"), nic("03", "mlx5_0")),
                switch("10", switch("11", gpu("12", dev="1")), switch("13", nic("14", "mlx5_1"))),
                gpu("20", dev="2"),
            ),
            cpu(gpu("81", dev="3"), numa="1", affinity="ff,00000000"),
        )
    )
    near = {(pair.gpu, pair.nic): str(pair.kind) for pair in node.gpu_nics}

    assert near[0, "mlx5_0"] == "PIX"
    assert near[1, "mlx5_1"] == "PXB"
    assert near[0, "mlx5_1"] == near[2, "mlx5_0"] == "PHB"
    assert near[3, "mlx5_0"] == "SYS"
    assert [gpu.cpu_affinity for gpu in node.gpus] == ["0-7", "0-7", "0-7", "32-39"]
    assert node.nics[0].speed_bytes_per_s == 50e9
    assert node.nics[0].pci_bus_id == "0000:03:00.0"
    assert kinds(node)["0-1"] == "PHB"  # a dump without any NVLink: NCCL had looked
    assert "the dump lists no NVLink: GPUs are joined by PCIe" in node.notes


def test_a_file_without_gpu_elements_tells_nothing_about_nvlink():
    bare = '<pci busid="0000:{}:00.0" class="0x030200"/>'
    node = node_of(system(cpu(switch("01", bare.format("02"), bare.format("03")))))

    assert kinds(node) == {"0-1": "?"}


def test_nvlinks_are_told_from_both_sides():
    pair = [
        gpu("02", link("0000:03:00.0", 4), dev="0"),
        gpu("03", link("0000:02:00.0", 4), dev="1"),
    ]

    assert kinds(node_of(system(cpu(*pair)))) == {"0-1": "NV4"}
    one_sided = [pair[0], gpu("03", dev="1")]
    assert kinds(node_of(system(cpu(*one_sided)))) == {"0-1": "?"}


def test_switches_join_the_gpus_they_share_with_the_links_they_share():
    ends = [link("0000:1a:00.0", 4, "0x068000"), link("0000:1b:00.0", 5, "0x068000")]
    node = node_of(system(cpu(gpu("02", *ends, dev="0"), gpu("03", *ends, dev="1"))))

    assert kinds(node) == {"0-1": "NV9"}


def test_a_pair_no_nvlink_names_is_pcie_only_if_both_name_all_theirs():
    mesh = {
        "02": [("03", 2), ("04", 1)],
        "03": [("02", 2), ("05", 1)],
        "04": [("02", 1), ("05", 2)],
        "05": [("03", 1), ("04", 2)],
    }

    def read(graph):
        gpus = [
            gpu(bus, *(link(f"0000:{far}:00.0", n) for far, n in ends), dev=str(index))
            for index, (bus, ends) in enumerate(graph.items())
        ]
        return kinds(node_of(system(cpu(*gpus))))

    assert read(mesh)["0-3"] == "PHB"
    assert read({**mesh, "05": [("04", 2)]})["0-3"] == "?"  # one link was not written down


@pytest.mark.parametrize(
    ("target", "told"),
    [("0000:02:00.0", "NVLink to itself"), ("0000:77:00.0", "which is not in the file")],
)
def test_a_link_to_itself_or_to_nowhere_is_flagged(target, told):
    node = node_of(system(cpu(gpu("02", link(target, 4), dev="0"), gpu("03", dev="1"))))

    assert kinds(node) == {"0-1": "?"}
    assert any(told in note for note in node.notes)


def test_numbers_of_the_file_are_kept_with_their_gaps():
    node = node_of(system(cpu(gpu("02", dev="3"), gpu("03", dev="1"))))

    assert [(gpu.index, gpu.pci_bus_id) for gpu in node.gpus] == [
        (1, "0000:03:00.0"),
        (3, "0000:02:00.0"),
    ]


def test_a_numa_node_of_minus_one_is_unknown():
    node = node_of(system(cpu(gpu("02", dev="0"), numa="-1"), cpu(gpu("03", dev="1"), numa="0")))

    assert [gpu.numa_node for gpu in node.gpus] == [None, 0]
    assert kinds(node) == {"0-1": "?"}


def test_virtual_interfaces_are_no_nics():
    node = node_of(system(cpu(gpu("02"), nic("03", "veth12ab"), nic("04", "mlx5_0"))))

    assert [nic.name for nic in node.nics] == ["mlx5_0"]
    assert "1 virtual network interfaces left out: veth12ab, ..." in node.notes


def test_hosts_of_one_file_are_told_apart():
    text = system(cpu(gpu("02")), cpu(gpu("02")))
    text = text.replace("<cpu", '<cpu host_hash="0x1"', 1).replace(
        "<cpu n", '<cpu host_hash="0x2" n'
    )

    assert [len(node.gpus) for node in read_text(text, source_name="x").nodes] == [1, 1]


BOMB = """<?xml version="1.0"?>
<!DOCTYPE system [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>
<system><cpu numaid="&b;"/></system>
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BOMB, ["line 2", "DOCTYPE"]),
        ('<!DOCTYPE system SYSTEM "x.dtd"><system/>', ["line 1", "DOCTYPE"]),
        ('<!DOCTYPE topology SYSTEM "http://x/y.dtd"><topology/>', ["DOCTYPE"]),
        ('<!DOCTYPE topology SYSTEM "hwloc2.dtd" [<!ENTITY a "b">]><topology/>', ["DOCTYPE"]),
        ("<system>\n" + "<cpu>" * 100, ["line 2", "64 deep"]),
        ("<system>\n<cpu></system>", ["line 2", "well-formed XML"]),
        ("<system/>", ["no <cpu>"]),
        (system(cpu(numa="one")), ["line 2, <cpu> numaid", "'one'"]),
        (system(cpu(gpu("02", link("0000:03:00.0", 0)))), ["<nvlink> count", "'0'"]),
        (system(cpu(gpu("02", link("0000:03:00.0", "x")))), ["<nvlink> count", "'x'"]),
        (system(cpu(gpu("02", facts='gcn="908"'))), ["AMD", "not NVIDIA"]),
        (system(cpu("<pci><nic><net/></nic></pci>")), ["<net> name"]),
    ],
)
def test_hostile_or_wrong_xml_is_refused_with_its_line(text, told):
    message = refusal(text)

    for word in told:
        assert word in message


HWLOC = """<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology><object type="Machine">
<object type="Package"><object type="NUMANode" os_index="1"/>
<object type="PCIDev" pci_busid="0000:02:00.0"><object type="OSDev" gp_index="7" name="nvml0">
<info name="GPUModel" value="H100"/><info name="NVIDIAUUID" value="GPU-a"/></object></object>
<object type="PCIDev" pci_busid="0000:03:00.0"><object type="OSDev" gp_index="8" name="nvml1"/>
</object>
<object type="PCIDev" pci_busid="0000:04:00.0">
<object type="OSDev" name="mlx5_0" osdev_type="3"/></object>
</object></object>
<distances2hetero nbobjs="2" name="NVLinkBandwidth">
<indexes>OSDev:7 OSDev:8 </indexes><u64values>0 50000 50000 0 </u64values>
</distances2hetero></topology>
"""


def test_an_hwloc_export_gives_devices_and_nvlink_bandwidth():
    node = node_of(HWLOC)

    assert [(gpu.name, gpu.uuid, gpu.numa_node) for gpu in node.gpus] == [
        ("H100", "GPU-a", 1),
        (None, None, 1),
    ]
    assert kinds(node) == {"0-1": "NVLINK"}
    assert node.gpu_links[0].bytes_per_s == 50e9
    assert [(nic.name, nic.pci_bus_id) for nic in node.nics] == [("mlx5_0", "0000:04:00.0")]


def test_an_hwloc_matrix_that_is_not_square_is_refused():
    assert "2 x 2" in refusal(HWLOC.replace("0 50000 50000 0", "0 50000 50000"))
