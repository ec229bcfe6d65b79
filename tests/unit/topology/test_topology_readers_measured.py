"""What was measured between GPUs: which of it is a fact, which counts for nothing, and who says."""

import pytest

from topology import TopologyError
from topology.readers import read_text, read_topology

TOPO = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-3\nGPU1\tNV4\t X \t0-3\n"
STATUS = "".join(
    f"GPU {gpu}: NVIDIA H100 (UUID: GPU-{gpu})\n"
    + "".join(f"\t Link {link}: 26.5 GB/s\n" for link in range(4))
    for gpu in range(2)
)


def p2p_test(there=270.83, back=270.19, *, off=16.69, both=510.0, peers=(1, 1)):
    """The text of the sample for two GPUs, with what it measured between them."""

    def matrix(title, one, other, own=1524.39):
        return (
            f"{title}\n   D\\D     0      1 \n     0 {own:.2f} {one:.2f} \n"
            f"     1 {other:.2f} {own:.2f} \n"
        )

    return (
        "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n"
        "Device: 0, NVIDIA H100 PCIe, pciBusID: c2, pciDeviceID: 0, pciDomainID:0\n"
        "Device: 1, NVIDIA H100 PCIe, pciBusID: 7, pciDeviceID: 0, pciDomainID:0\n"
        "Device=0 CAN Access Peer Device=1\nDevice=1 CAN Access Peer Device=0\n\n"
        "***NOTE: In case a device doesn't have P2P access to other one, it falls back.\n\n"
        "P2P Connectivity Matrix\n     D\\D     0     1\n"
        f"     0\t     1     {peers[0]}\n     1\t     {peers[1]}     1\n"
        + matrix("Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)", off, off)
        + matrix("Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)", there, back)
        + matrix("Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)", both, both)
        + "P2P=Enabled Latency (P2P Writes) Matrix (us)\n   GPU     0      1 \n"
        "     0   2.35   2.56 \n     1   2.52   2.31 \n\n   CPU     0      1 \n"
        "     0   2.24   1.72 \n     1   1.75   2.18 \n"
    )


def nvbandwidth(there, back, *, by_kernels=100.0):
    def matrix(name, unit, one, other):
        return (
            f"Running {name}.\nmemcpy {unit} GPU(row) -> GPU(column) bandwidth (GB/s)\n"
            f"           0         1\n 0       N/A    {one:.2f}\n 1    {other:.2f}       N/A\n\n"
        )

    return (
        "nvbandwidth Version: v0.6\nDevice 0: NVIDIA H100 (00000000:C2:00)\n"
        "Device 1: NVIDIA H100 (00000000:07:00)\n"
        + matrix("device_to_device_memcpy_read_ce", "CE", there, back)
        + matrix("device_to_device_memcpy_read_sm", "SM", by_kernels, by_kernels)
    )


@pytest.fixture
def read(tmp_path):
    """The topology of texts about one node, by file name."""

    def read_files(**texts):
        paths = []
        for name, text in texts.items():
            paths.append(tmp_path / f"{name}.txt")
            paths[-1].write_text(text)
        return read_topology(paths)

    return read_files


def link_of(topology):
    [node] = topology.nodes
    [link] = node.gpu_links
    return link


def notes_of(topology):
    return " | ".join(note for node in topology.nodes for note in node.notes)


def test_the_sample_tells_devices_peer_access_and_the_slower_way(read):
    found = read(a=p2p_test(270.83, 256.5))

    link, (node,) = link_of(found), found.nodes
    assert (link.bytes_per_s, link.p2p, link.kind) == (256.5e9, True, None)
    assert [(gpu.name, gpu.pci_bus_id) for gpu in node.gpus] == [
        ("NVIDIA H100 PCIe", "0000:c2:00.0"),
        ("NVIDIA H100 PCIe", "0000:07:00.0"),
    ]
    assert found.source == "p2pBandwidthLatencyTest"


@pytest.mark.parametrize("peers", [(0, 0), (1, 0), (0, 1)])
def test_one_gpu_without_access_is_no_peer_access(read, peers):
    assert link_of(read(a=p2p_test(peers=peers))).p2p is False


def test_a_matrix_alone_tells_its_rates_and_nothing_of_peers(read):
    text = p2p_test()
    alone = text[text.index("Unidirectional P2P=Enabled") : text.index("Bidirectional")]

    link = link_of(read(a=alone))

    assert (link.bytes_per_s, link.p2p) == (270.19e9, None)


@pytest.mark.parametrize(
    "changes",
    [{"there": 11.0}, {"back": 11.0}, {"there": 11.0, "back": 11.0}, {"peers": (1, 0)}],
)
def test_two_measurements_of_which_placement_uses_the_difference_have_two_hashes(read, changes):
    assert read(a=p2p_test()).content_hash != read(a=p2p_test(**changes)).content_hash


@pytest.mark.parametrize("changes", [{"off": 3.0}, {"both": 99.0}, {"there": 290.0}])
def test_what_nothing_uses_changes_no_hash_and_is_said_to_count_for_nothing(read, changes):
    """Another host path, both ways at once, and the faster way of a pair."""
    found = read(a=p2p_test(**changes))

    assert found.content_hash == read(a=p2p_test()).content_hash
    said = notes_of(found)
    assert "the slower way of each pair" in said
    for title in ("Unidirectional P2P=Disabled", "Bidirectional P2P=Enabled", "P2P=Enabled Lat"):
        assert title in said.partition("no fact here, and in no hash: ")[2]


@pytest.mark.parametrize("text", [nvbandwidth(390.0, 380.5), p2p_test(390.0, 380.5)])
def test_a_measured_rate_stands_above_a_promised_one_in_any_order(read, text):
    promised, measured = {"t": TOPO, "s": STATUS}, {"m": text}

    found = [read(**one) for one in (promised | measured, measured | promised)]

    assert [link_of(one).bytes_per_s for one in found] == [380.5e9] * 2
    assert [(str(link_of(one).kind), link_of(one).lanes) for one in found] == [("NVLINK", 4)] * 2
    assert found[0].content_hash == found[1].content_hash
    assert link_of(read(**promised)).bytes_per_s == 106e9


def test_of_two_measurements_the_slower_stands_in_any_order_and_both_are_named(read, tmp_path):
    fast, slow = nvbandwidth(390.0, 380.5), p2p_test(210.0, 190.25)

    found = [read(f=fast, s=slow), read(s=slow, f=fast)]

    assert [link_of(one).bytes_per_s for one in found] == [190.25e9] * 2
    assert found[0].content_hash == found[1].content_hash
    for one in found:
        said = notes_of(one)
        assert "measured rates that differ by up to 50%: the slower of each pair stands" in said
        assert f"{tmp_path / 'f.txt'} and {tmp_path / 's.txt'} measured" in said
    assert "differ by" not in notes_of(read(f=fast, t=TOPO))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (TOPO + "\n" + p2p_test(), "what p2pBandwidthLatencyTest measured was passed over"),
        (p2p_test() + "\n" + TOPO, "what p2pBandwidthLatencyTest measured was passed over"),
        (TOPO + "\n" + nvbandwidth(9, 9), "a matrix of nvidia-smi topo was passed over"),
    ],
)
def test_a_second_table_of_a_text_is_said_to_count_for_nothing(read, text, what):
    found = read(a=text)

    assert f"{what} and is in no fact: put it into a file of its own" in notes_of(found)
    assert "passed over" not in notes_of(read(a=TOPO))
    assert "passed over" not in notes_of(read(a=p2p_test()))


def test_peer_atomics_change_no_hash_and_are_said_to_count_for_nothing(read):
    table = "$ nvidia-smi topo -p2p a\n \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n"

    yes, no = read(a=table), read(a=table.replace("OK", "NS"))

    assert yes.content_hash == no.content_hash
    for found in (yes, no):
        assert "peer atomics are no fact here, and in no hash" in notes_of(found)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("     1 270.19 1524.39", "     0 270.19 1524.39", "saw 'it again', wanted 'it once'"),
        ("     1 270.19 1524.39", "     1 270.19 1524.39 3.00", "saw '3 cells', wanted 2 cells"),
    ],
)
def test_a_damaged_matrix_is_refused_with_its_line(before, after, told):
    text = p2p_test()
    assert before in text

    with pytest.raises(TopologyError) as caught:
        read_text(text.replace(before, after), source_name="paste")

    assert told.replace("'it once'", "it once") in str(caught.value)
    assert "of Unidirectional P2P=Enabled" in str(caught.value)
