"""Reading pasted texts: exact small tables for each kind and each way people damage them."""

import pytest

from topology import TopologyError
from topology.readers import read_text


def node_of(text):
    [node] = read_text(text, source_name="paste").nodes
    return node


def codes(node):
    return {
        f"{link.a}-{link.b}": f"NV{link.lanes}" if link.lanes else str(link.kind or "?")
        for link in node.gpu_links
    }


def refusal(text):
    with pytest.raises(TopologyError) as caught:
        read_text(text, source_name="paste")
    return str(caught.value)


PAIR = """\
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
GPU0     X      NV4     PIX     0-15            0
GPU1    NV4      X      SYS     16-31           1
NIC0    PIX     SYS      X

Legend:
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_3
"""
FOUR = """\
     GPU0 GPU1 GPU2 GPU3 NIC0 NIC1 CPU Affinity NUMA Affinity
GPU0 X NV4 PIX SYS PHB SYS 0-3 0
GPU1 NV4 X SYS PIX PHB SYS 0-3 0
GPU2 PIX SYS X NV4 SYS PHB 4-7 1
GPU3 SYS PIX NV4 X SYS PHB 4-7 1
NIC0 PHB PHB SYS SYS X SYS
NIC1 SYS SYS PHB PHB SYS X
"""
FOUR_CODES = {"0-1": "NV4", "0-2": "PIX", "0-3": "SYS", "1-2": "SYS", "1-3": "PIX", "2-3": "NV4"}


def test_a_matrix_gives_links_nics_numa_and_affinity():
    node = node_of(PAIR)

    assert codes(node) == {"0-1": "NV4"}
    assert [nic.name for nic in node.nics] == ["mlx5_3"]
    assert node.nearest_nics == {0: ("mlx5_3",), 1: ("mlx5_3",)}
    assert [gpu.numa_node for gpu in node.gpus] == [0, 1]
    assert [gpu.cpu_affinity for gpu in node.gpus] == ["0-15", "16-31"]
    assert node.notes == ()


@pytest.mark.parametrize(
    "text",
    [
        PAIR.replace("\n", "\r\n"),
        "\ufeff" + PAIR,
        "```\n" + PAIR + "```\n",
        "$ nvidia-smi topo -m\n" + PAIR,
        "$ nvidia-smi topo -m " + PAIR.lstrip(),
        PAIR.lstrip(),
        PAIR.replace("        GPU0    GPU1", "        \x1b[4mGPU0    GPU1").replace(
            "NUMA Affinity\n", "NUMA Affinity\x1b[0m\n"
        ),
        "\n".join(" > "[:0] + "    " + line for line in PAIR.splitlines()),
    ],
    ids=["crlf", "bom", "fence", "prompt", "one-line", "flush-left", "ansi", "indented"],
)
def test_the_same_table_in_another_dress_reads_the_same(text):
    assert codes(node_of(text)) == {"0-1": "NV4"}
    assert node_of(text).gpus == node_of(PAIR).gpus
    assert node_of(text).gpu_nics == node_of(PAIR).gpu_nics


def test_a_markdown_table_with_affinity_first_is_read():
    text = """\
| | CPU Affinity | NUMA Affinity | GPU0 | GPU1 | NIC0 |
|---|:---:|---|---|---|---|
| GPU0 | 0-15 | 0 | X | NV4 | PIX |
| GPU1 | | 1 | NV4 | X | SYS |
"""
    node = node_of(text)

    assert codes(node) == {"0-1": "NV4"}
    assert [gpu.numa_node for gpu in node.gpus] == [0, 1]
    assert [gpu.cpu_affinity for gpu in node.gpus] == ["0-15", None]
    assert node.notes[0] == "read from a Markdown table"


@pytest.mark.parametrize("width", [40, 48, 80])
def test_a_table_wrapped_by_a_terminal_is_joined(width):
    wide = FOUR.replace(" ", "     ")
    wrapped = "\n".join(
        line[start : start + width]
        for line in wide.splitlines()
        for start in range(0, len(line), width)
    )

    assert codes(node_of(wrapped)) == FOUR_CODES
    assert [gpu.numa_node for gpu in node_of(wrapped).gpus] == [0, 0, 1, 1]


def test_labels_and_cells_that_ran_together_are_split_and_told():
    text = FOUR.replace("NIC0 NIC1 CPU", "NIC0NIC1 CPU").replace("SYS PHB 4-7", "SYSPHB 4-7")
    node = node_of(text)

    assert codes(node) == FOUR_CODES
    assert [nic.name for nic in node.nics] == ["NIC0", "NIC1"]
    assert any("ran together" in note for note in node.notes)


def test_rows_left_out_are_unknown_not_absent():
    lines = FOUR.splitlines()
    node = node_of("\n".join([*lines[:2], "...", *lines[5:]]))

    assert [gpu.index for gpu in node.gpus] == [0, 1, 2, 3]
    assert codes(node) == {
        "0-1": "NV4", "0-2": "PIX", "0-3": "SYS", "1-2": "?", "1-3": "?", "2-3": "?"
    }  # fmt: skip
    assert "no row for GPUs 1, 2, 3" in node.notes
    assert node.nearest_nics[3] == ("NIC1",)  # from the row of the NIC


@pytest.mark.parametrize("kept", ["GPU3 SYS PIX N", "GPU3 SYS PIX", "GPU3 SYS", "GPU3 S", "GPU3"])
def test_a_last_row_that_is_cut_is_left_out(kept):
    lines = FOUR.splitlines()[:4]
    node = node_of("\n".join([*lines, kept]))

    assert codes(node) == FOUR_CODES  # each pair stands in another row too
    assert node.gpus[3].numa_node is None


def test_a_header_that_is_cut_is_rebuilt_from_the_rows():
    lines = FOUR.splitlines()

    for header in (
        "PU0 GPU1 GPU2 GPU3 NIC0 NIC1 CPU Affinity NUMA Affinity",
        "GPU2 GPU3 NIC0 NIC1",
    ):
        node = node_of("\n".join([header, *lines[1:]]))
        assert codes(node) == FOUR_CODES
        assert [nic.name for nic in node.nics] == ["NIC0", "NIC1"]


def test_several_numa_nodes_of_one_gpu_leave_its_own_unknown():
    node = node_of(PAIR.replace("0-15            0", "0-15            0,3-9"))

    assert [gpu.numa_node for gpu in node.gpus] == [None, 1]
    assert "GPU 0: several NUMA nodes (0,3-9): its own is unknown" in node.notes


def test_a_gpu_numa_id_is_not_the_numa_node_of_the_host():
    text = " \tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-71\t0\t\t1\n"

    assert node_of(text).gpus[0].numa_node == 0


def test_an_empty_affinity_cell_does_not_shift_the_next():
    text = (
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNV4\t\t1\t\tN/A\nGPU1\tNV4\t X \t0-7\t\t\tN/A\n"
    )
    node = node_of(text)

    assert [(gpu.cpu_affinity, gpu.numa_node) for gpu in node.gpus] == [(None, 1), ("0-7", None)]


def test_rows_that_disagree_leave_the_pair_unknown():
    node = node_of(PAIR.replace("GPU1    NV4 ", "GPU1    SYS "))

    assert codes(node) == {"0-1": "?"}
    assert "GPUs 0-1: the two rows disagree (NV4, SYS): unknown" in node.notes


def test_rows_that_count_other_lanes_leave_the_number_unknown():
    node = node_of(PAIR.replace("GPU1    NV4 ", "GPU1    NV3 "))

    assert codes(node) == {"0-1": "NVLINK"}
    assert "GPUs 0-1: the two rows see NV3, NV4: number of NVLinks unknown" in node.notes


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("GPU1    NV4 ", "GPU1    NV4. ", ["line 3, row GPU1, column GPU0", "'NV4.'"]),
        ("GPU1    NV4 ", "GPU1    ", ["line 3, row GPU1"]),
        ("NV4     PIX     0-15", "PIX     0-15", ["line 2, row GPU0, column NIC0", "'0-15'"]),
        ("PIX     0-15", "PIX     PIX     0-15", ["line 2, row GPU0", "4 cells", "wanted 3"]),
        ("PIX     0-15", "PIX     zero", ["line 2, row GPU0, column 4", "'zero'"]),
        ("GPU1    NIC0    CPU", "GPU1    CPU     CPU", ["line 1, header column 3", "'CPU'"]),
        ("GPU1    NV4      X ", "GPUx    NV4      X ", ["line 3, row label", "GPU<n>"]),
        ("GPU1    NV4      X ", "GP1    NV4      X ", ["line 3, row GP1", "GPU<n>"]),
        ("GPU1    NV4      X ", "GPU7    NV4      X ", ["line 3, row GPU7", "GPU0, GPU1, NIC0"]),
        ("X      NV4     PIX", "NV4     X      PIX", ["line 2, row GPU0, column GPU0", "'NV4'"]),
    ],
)
def test_what_is_wrong_is_refused_with_row_and_column(old, new, told):
    assert old in PAIR
    message = refusal(PAIR.replace(old, new))

    assert message.startswith("paste: ")
    for text in told:
        assert text in message


def test_two_tables_in_one_text_are_refused():
    assert "a second table" in refusal(FOUR + FOUR)


def test_mp_hides_nvlink_and_says_so():
    reading = read_text("$ nvidia-smi topo -mp\n" + FOUR.replace("NV4", "PXB"), source_name="x")

    assert reading.kind == "topo -mp"
    assert any("hidden, not absent" in note for note in reading.nodes[0].notes)


def p2p(capability, there, back):
    prompt = f"$ nvidia-smi topo -p2p {capability}\n" if capability else ""
    table = f"{prompt} \tGPU0\tGPU1\t\n GPU0\tX\t{there}\t\n GPU1\t{back}\tX\t\n"
    [link] = node_of(table).gpu_links
    return link.p2p, link.kind and str(link.kind)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("r", "OK", "OK"), (True, None)),
        (("w", "OK", "OK"), (True, None)),
        ((None, "OK", "OK"), (True, None)),
        (("r", "OK", "CNS"), (False, None)),
        (("r", "U", "U"), (None, None)),
        (("n", "OK", "OK"), (True, "NVLINK")),
        (("n", "NS", "NS"), (None, None)),  # no NVLink does not mean no peer access
        (("a", "OK", "OK"), (None, None)),
        (("p", "NS", "NS"), (None, None)),
    ],
)
def test_peer_codes_say_what_was_asked_and_no_more(asked, told):
    assert p2p(*asked) == told


def test_links_and_peer_codes_in_one_table_are_refused():
    assert "links (topo -m) or peer codes" in refusal(PAIR.replace("GPU1    NV4", "GPU1    OK"))


STATUS = "GPU 0: NVIDIA H100 (UUID: GPU-a)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"


def test_link_states_are_counted_and_pairs_stay_unknown():
    node = node_of(STATUS + STATUS.replace("GPU 0", "GPU 1").replace("GPU-a", "GPU-b"))

    assert [(gpu.name, gpu.uuid) for gpu in node.gpus] == [
        ("NVIDIA H100", "GPU-a"),
        ("NVIDIA H100", "GPU-b"),
    ]
    assert codes(node) == {"0-1": "?"}
    assert "GPU 0: 1 of 2 NVLinks active at 26.562 GB/s" in node.notes


@pytest.mark.parametrize("end", ["\t [...]\n", "\t ...\n", "\t Link 2: 26.5\n", "\t Li\n"])
def test_a_block_that_is_cut_is_not_counted(end):
    assert node_of(STATUS + end).notes == (
        "GPU 0: its links are not all shown, so they are not counted",
    )


def test_capabilities_tell_no_link():
    text = "GPU 0: NVIDIA H100 (UUID: GPU-a)\n\t Link 0, P2P is supported: true\n"

    assert node_of(text).notes == ("GPU 0: capabilities or counters only, no link states",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (STATUS + STATUS, ["line 4", "GPU 0 again"]),
        (STATUS + "\t Link 1: 26 GB/s\n", ["line 4", "Link 1 again"]),
        (STATUS + "\t Link 2: fast\n" + "\t Link 3: 26 GB/s\n", ["line 4, Link 2", "'fast'"]),
        (STATUS + "hello\n\t Link 3: 26 GB/s\n", ["line 4", "'hello'"]),
    ],
)
def test_a_status_line_that_is_wrong_is_refused(text, told):
    message = refusal(text)

    for word in told:
        assert word in message


@pytest.mark.parametrize(
    ("text", "vendor"),
    [
        ("==== ROCm System Management Interface ====\n", "AMD"),
        ("GPU0 GPU1\nGPU0 X XGMI\n", "AMD"),
        ("mthreads-gmi topo -m\n GPU0 GPU1\nGPU0 X PIX\n", "Moore Threads"),
        ("$ npu-smi info -t topo\n", "Huawei"),
        ("$ xpu-smi topology -m\n", "Intel"),
    ],
)
def test_another_vendor_is_named(text, vendor):
    message = refusal(text)

    assert vendor in message
    assert "not NVIDIA" in message


@pytest.mark.parametrize("text", ["hello\n", "[1, 2]\n", "<html></html>", "GPU0\n", "a = b\n"])
def test_what_is_no_topology_is_refused(text):
    assert refusal(text).startswith("paste: ")


def test_more_gpus_than_a_node_has_are_refused():
    labels = " ".join(f"GPU{n}" for n in range(1100))

    assert "at most 1024 GPUs" in refusal(f"{labels}\nGPU0 X {'SYS ' * 1099}\n")


def test_what_nvbandwidth_measured_between_gpus_is_the_slower_way():
    text = """\
nvbandwidth Version: v0.6
Driver Version: 550.54.15
Device 0: NVIDIA H100 (00000000:1B:00)
Device 1: NVIDIA H100 (00000000:43:00)
Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    390.00
 1    380.50       N/A

SUM device_to_device_memcpy_read_ce 770.50
"""
    node = node_of(text)

    assert node.gpu_links[0].bytes_per_s == 380.5e9
    assert node.gpu_links[0].kind is None
    assert node.driver_version == "550.54.15"
    assert node.gpus[1].pci_bus_id == "0000:43:00.0"
