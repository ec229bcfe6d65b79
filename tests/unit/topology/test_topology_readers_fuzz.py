"""Damaged texts: refused or read, never a traceback, never a link that the rest does not tell."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from topology import TopologyError
from topology.readers import read_text

DATA = Path(__file__).parents[3].parent / "shared" / "data" / "topologies"
MOST_S = 5.0
MATRIX = """\
$ nvidia-smi topo -m
     GPU0 GPU1 GPU2 GPU3 NIC0 NIC1 CPU Affinity NUMA Affinity
GPU0 X NV4 PIX SYS PHB SYS 0-3 0
GPU1 NV4 X SYS PIX PHB SYS 0-3 0
GPU2 PIX SYS X NV12 SYS PHB 4-7 1
GPU3 SYS PIX NV12 X SYS PHB 4-7 1
NIC0 PHB PHB SYS SYS X SYS
NIC1 SYS SYS PHB PHB SYS X

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
TRUE_CODES = {
    (0, 1): "NV4",
    (0, 2): "PIX",
    (0, 3): "SYS",
    (1, 2): "SYS",
    (1, 3): "PIX",
    (2, 3): "NV12",
}
XML = """\
<system version="1">
<cpu numaid="0" affinity="ff">
<pci busid="0000:01:00.0" class="0x060400">
<pci busid="0000:02:00.0" class="0x030200"><gpu dev="0" sm="70" rank="0">
<nvlink target="0000:03:00.0" count="2" tclass="0x030200"/>
<nvlink target="0000:04:00.0" count="1" tclass="0x030200"/>
</gpu></pci>
<pci busid="0000:03:00.0" class="0x030200"><gpu dev="1" sm="70" rank="1">
<nvlink target="0000:02:00.0" count="2" tclass="0x030200"/>
<nvlink target="0000:04:00.0" count="1" tclass="0x030200"/>
</gpu></pci>
</pci>
<pci busid="0000:04:00.0" class="0x030200"><gpu dev="2" sm="70" rank="2">
<nvlink target="0000:02:00.0" count="1" tclass="0x030200"/>
<nvlink target="0000:03:00.0" count="1" tclass="0x030200"/>
</gpu></pci>
<nic><net name="mlx5_0" speed="100000"/></nic>
</cpu>
</system>
"""
CONF = "SwitchName=l0 Nodes=n[0-3]\nSwitchName=l1 Nodes=n[4-7]\nSwitchName=s Switches=l[0-1]\n"
STATUS = "".join(
    f"GPU {gpu}: NVIDIA H100 (UUID: GPU-{gpu})\n"
    + "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(4))
    for gpu in range(2)
)
LOG = "".join(
    f"h0:1:{10 + gpu} [{gpu}] NCCL INFO {text}\n"
    for gpu in range(2)
    for text in (
        "CPU/0-0 (1/2/-1)",
        f"+ PCI[24.0] - GPU/0-{gpu + 1}000 ({gpu})",
        "              + NVL[40.0] - NVS/0-0",
        f"GPU/{gpu + 1}000 :GPU/0-1000 (2/40.0/NVL) GPU/0-2000 (2/40.0/NVL) NET/0-0 (3/12.0/PHB)",
        f"Channel 00 : {gpu}[1000] -> {1 - gpu}[2000] via P2P/IPC",
        f"Setting affinity for GPU {gpu} to ff,00000000",
    )
)
YAML = """\
- topology: a
  tree:
    switches:
      - switch: s
        children: l[0-1]
      - switch: l0
        nodes: n[0-3]
"""
MODEL = """\
switches:
  s:
    switches:
    - l
blocks:
- switch: l
  nodes:
  - n[0-3]
  annotations:
    x/domain: d
"""
TEXTS = {
    "matrix": MATRIX,
    "xml": XML,
    "conf": CONF,
    "status": STATUS,
    "log": LOG,
    "yaml": YAML,
    "model": MODEL,
}
POSTED = sorted(path for path in DATA.glob("*/*") if path.suffix != ".md") if DATA.is_dir() else []
SETTINGS = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)


@st.composite
def damage(draw):
    """Steps, each (what, place, size); places are shares, so that they fit any text."""
    what = st.sampled_from(["drop", "double", "cut", "drop cell", "double cell", "swap", "noise"])
    share = st.floats(0, 1, exclude_max=True)
    return draw(st.lists(st.tuples(what, share, share), min_size=1, max_size=4))


def damaged(text, steps):
    for what, place, size in steps:
        lines = text.split("\n")
        at = int(place * len(lines))
        cells = re.split(r"(\s+)", lines[at])
        cell = int(size * len(cells))
        if what == "cut":
            return text[: int(place * len(text))]
        if what == "drop":
            del lines[at]
        elif what == "double":
            lines.insert(at, lines[at])
        elif what == "swap":
            lines[at], lines[-1] = lines[-1], lines[at]
        elif what == "noise":
            lines[at] = lines[at][:cell] + "\x00<&[*]-,9" + lines[at][cell:]
        else:
            cells[cell : cell + 1] = [] if what == "drop cell" else [cells[cell]] * 2
            lines[at] = "".join(cells)
        text = "\n".join(lines)
    return text


def read(text):
    """The reading, or None where it is refused with a message that names the text."""
    begun = time.perf_counter()
    message, reading = "fuzzed: ", None
    try:
        reading = read_text(text, source_name="fuzzed")
    except TopologyError as exc:
        message = str(exc)
    assert message.startswith("fuzzed: ")
    assert time.perf_counter() - begun < MOST_S
    return reading


@SETTINGS
@given(steps=damage())
@example(steps=[("drop cell", 0.3, 0.4)])
def test_a_damaged_matrix_gives_no_link_that_it_does_not_tell(steps):
    reading = read(damaged(MATRIX, steps))

    for link in reading.nodes[0].gpu_links if reading else ():
        true = TRUE_CODES.get((link.a, link.b))
        if link.kind is not None:
            told = f"NV{link.lanes}" if link.lanes else str(link.kind)
            assert told == true or (told == "NVLINK" and true.startswith("NV")), (link, true)


@SETTINGS
@given(steps=damage())
def test_a_damaged_dump_gives_no_link_that_it_does_not_tell(steps):
    reading = read(damaged(XML, steps))
    true = {(0, 1): 2, (0, 2): 1, (1, 2): 1}

    for node in reading.nodes if reading else ():
        for link in node.gpu_links:
            if link.lanes:
                assert link.lanes <= true[link.a, link.b] * 2  # a line may stand twice


@SETTINGS
@given(steps=damage(), name=st.sampled_from(sorted(TEXTS)))
def test_a_damaged_text_is_read_or_refused(steps, name):
    read(damaged(TEXTS[name], steps))


@SETTINGS
@given(steps=damage())
def test_a_damaged_tree_names_no_host_it_does_not_tell(steps):
    text = damaged(CONF, steps)
    reading = read(text)

    hosts = {host for tier in reading.network.tiers for host in tier.nodes} if reading else set()
    if reading and reading.kind == "slurm topology.conf" and "\x00" not in text:
        cut = {host for host in hosts if text.endswith(host)}  # Nodes=n[4-7] cut behind the n
        assert all(re.match("n[0-7]", host) for host in hosts - cut)


@pytest.mark.skipif(not POSTED, reason="the posted texts are not beside the project")
@settings(SETTINGS, max_examples=300)
@given(steps=damage(), number=st.integers(0, max(len(POSTED) - 1, 0)))
def test_a_damaged_posted_text_is_read_or_refused(steps, number):
    read(damaged(POSTED[number].read_text(encoding="utf-8"), steps))


@pytest.mark.skipif(not POSTED, reason="the posted texts are not beside the project")
@settings(SETTINGS, max_examples=300)
@given(steps=damage(), number=st.integers(0, max(len(POSTED) - 1, 0)))
def test_a_damaged_posted_matrix_gives_no_link_that_the_whole_does_not_tell(steps, number):
    path = POSTED[number]
    text = path.read_text(encoding="utf-8")
    whole, reading = read(text), read(damaged(text, steps))

    if whole is None or reading is None or whole.kind != "topo -m" or not reading.nodes:
        return
    told = {(link.a, link.b): link for link in whole.nodes[0].gpu_links}
    for link in reading.nodes[0].gpu_links:
        true = told.get((link.a, link.b))
        if link.kind is not None and true is not None and true.kind is not None:
            assert link.kind == true.kind
            assert link.lanes in (None, true.lanes)


@pytest.mark.parametrize(
    "text",
    [
        "GPU0 " * 20_000,
        "\n" * 300_000,
        " \t" * 200_000 + "x",
        "<" * 100_000,
        "<!--a-->" * 20_000,
        "<!-- " * 50_000,
        "[" * 100_000,
        '{"schema": ' + "[" * 100_000,
        "SwitchName=" + "a[0-9]" * 50,
        "GPU 0: " + " " * 200_000 + "x",
        "Device 0: " + " " * 200_000 + "x\nnvbandwidth Version",
        "h:1:1 [0] NCCL INFO " + "GPU/1 :" * 30_000,
        "- topology: " + "[" * 50_000,
        "switches:\n" + "".join(" " * n + "a:\n" for n in range(1, 400)),
        "/sys/class/infiniband/a/ports/1/rate " + "9" * 5000 + " Gb/sec\n",
        "GPU0 X\nGPU" + "9" * 5000 + " X NV4",
    ],
    ids=range(16),
)
def test_hostile_texts_end_soon(text):
    read(text)
