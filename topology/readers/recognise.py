"""Which kind of text is it? Decided by content alone: people rename files and paste."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from topology.errors import TopologyError
from topology.readers.hwloc import read_hwloc
from topology.readers.infiniband import read_host_guids, read_ibnetdiscover, read_sysfs_table
from topology.readers.inventory import read_inventory
from topology.readers.nccl_log import read_nccl_log
from topology.readers.nccl_xml import read_nccl_xml
from topology.readers.nvbandwidth import read_nvbandwidth
from topology.readers.nvidia_smi import read_nvidia_smi
from topology.readers.nvlink_status import read_nvlink_status
from topology.readers.p2p_test import SIGN, read_p2p_test
from topology.readers.reading import Reading, SourceText
from topology.readers.slurm import read_slurm_conf, read_slurm_yaml
from topology.readers.topograph import read_compute_nodes, read_instances, read_model

_Reader = Callable[[SourceText], Reading]
_VENDORS = (
    (r"ROCm System Management|rocm-smi|amd-smi|\bXGMI\b|<xgmi\b|gcn=\"gfx|\bRCCL\b", "AMD (ROCm)"),
    (r"Moore Threads|mthreads-gmi|MTLink|\bMTT S\d", "Moore Threads"),
    (r"npu-smi|Ascend|\bHCCS\b", "Huawei (Ascend)"),
    (r"xpu-smi|\bXeLink\b|Xe Link", "Intel"),
    (r"\bcnmon\b|\bMLU\d", "Cambricon"),
    (r"\bhy-smi\b|\bhl-smi\b|\bmx-smi\b|\bixsmi\b|\bMetaXLink\b", "another vendor"),
)
_ROOT = re.compile(r"<([A-Za-z_]\w*)")
_JSON_KEYS = (
    ('"schema"', read_inventory),
    ('"network_layers"', read_instances),
    ('"instances"', read_instances),
    ('"DomainUUID"', read_compute_nodes),
)
_M = re.MULTILINE
_MATRIX = re.compile(
    r"(^|\s)GPU\d+[ \t]*(CPU|GPU|X|NV\d|$)"
    r"|^[| \t]*G\S+[| \t]+(X|NV\d+|SYS|PHB)[| \t]"
    r"|^[ \t]*\|.*\bGPU\d+\b",
    _M,
)
_NVBANDWIDTH = re.compile(r"nvbandwidth Version|memcpy (CE|SM) ", _M)
#: Tables that people paste below each other; one text gives one of them.
_TABLES: Mapping[_Reader, tuple[re.Pattern[str], str]] = {
    read_nvidia_smi: (_MATRIX, "a matrix of nvidia-smi topo"),
    read_nvbandwidth: (_NVBANDWIDTH, "what nvbandwidth measured"),
    read_p2p_test: (SIGN, "what p2pBandwidthLatencyTest measured"),
}
_SIGNS: tuple[tuple[re.Pattern[str], _Reader], ...] = (
    (re.compile(r"NCCL (INFO|WARN|TRACE) |^NCCL version ", _M), read_nccl_log),
    (re.compile(r"^Switch\s+\d+\s+\"S-|^switchguid=", _M), read_ibnetdiscover),
    (re.compile(r"^VM_hostname\s", _M), read_host_guids),
    (re.compile(r"^/sys/\S+\s", _M), read_sysfs_table),
    (re.compile(r"^[# \t]*(SwitchName|BlockName)\s*=", _M | re.I), read_slurm_conf),
    (_NVBANDWIDTH, read_nvbandwidth),
    (re.compile(r"^-\s*topology\s*:", _M), read_slurm_yaml),
    (re.compile(r"^(switches|blocks)\s*:", _M), read_model),
    (_MATRIX, read_nvidia_smi),
    (SIGN, read_p2p_test),
    (re.compile(r"^[ \t]*GPU \d+:\s", _M), read_nvlink_status),
)
_WANTED = (
    "nvidia-smi topo -m, -mp or -p2p, nvidia-smi nvlink -s, NCCL topology XML, an NCCL INFO log, "
    "Slurm topology.conf or .yaml, topograph, ibnetdiscover, nvbandwidth, p2pBandwidthLatencyTest, "
    "hwloc XML or our own JSON"
)


def read_text(text: str, *, source_name: str) -> Reading:
    """Recognise a text by its content and read it.

    Args:
        text: The whole text.
        source_name: What to call it in messages.

    Returns:
        What it told; nodes have names only where `named`.

    Raises:
        TopologyError: It cannot be read; the message names the text, the place, what stands
            there and what was wanted.
    """
    source = SourceText(source_name, text.removeprefix("\ufeff").replace("\r\n", "\n"))
    if not source.text:
        raise TopologyError(
            f"{source.name}: the input is empty; wanted one of {_WANTED}",
            hint="did the command that should have written it fail?",
        )
    reader = _choose(source)
    try:
        return _with_passed_over(reader(source), reader=reader, text=source.text)
    except ValueError as exc:  # a fact that breaks a rule of its noun, as a speed of 0
        raise TopologyError(f"{source.name}: {exc}") from exc


def _with_passed_over(reading: Reading, *, reader: _Reader, text: str) -> Reading:
    """The reading, whose nodes say which other tables of the text count for nothing."""
    if reader not in _TABLES:
        return reading
    notes = [
        f"{what} was passed over and is in no fact: put it into a file of its own"
        for other, (sign, what) in _TABLES.items()
        if other is not reader and sign.search(text)
    ]
    nodes = tuple(replace(node, notes=(*node.notes, *notes)) for node in reading.nodes)
    return replace(reading, nodes=nodes) if notes else reading


def _choose(source: SourceText) -> _Reader:
    text = source.text
    start = text.lstrip()[:1]
    if not start:  # a line without a word, and not what a command that failed leaves: nothing
        return read_nvlink_status
    if start in "{[":
        found = next((reader for key, reader in _JSON_KEYS if key in text), None)
        if found is not None or start == "{":
            return found or read_inventory
    _check_vendor(source)
    if start == "<":
        return _choose_xml(source)
    found = next((reader for sign, reader in _SIGNS if sign.search(text)), None)
    if found is None:
        first = next((line.strip() for line in source.lines if line.strip()), "")
        raise source.refusal("line 1", saw=first, wanted=f"one of {_WANTED}")
    return found


def _choose_xml(source: SourceText) -> _Reader:
    root = _root_name(source.text.lstrip())
    readers: dict[str, _Reader] = {"system": read_nccl_xml, "topology": read_hwloc}
    if root not in readers:
        wanted = "<system> (NCCL) or <topology> (hwloc)"
        raise source.refusal("root element", saw=root or source.text[:40], wanted=wanted)
    return readers[root]


def _root_name(text: str) -> str:
    """The first element's name behind declarations and comments; empty if there is none."""
    at = 0
    while text.startswith(("<?", "<!"), at):
        is_comment = text.startswith("<!--", at)
        inner, close = text.find("[", at), text.find("-->" if is_comment else ">", at)
        if not is_comment and 0 <= inner < close:
            close = text.find("]>", inner)  # a document type with entities, refused when read
        if close < 0:
            return ""
        at = text.find("<", close + 1)
    match = _ROOT.match(text, max(at, 0))
    return match.group(1) if match else ""


def _check_vendor(source: SourceText) -> None:
    for sign, vendor in _VENDORS:
        if match := re.search(sign, source.text):
            line = source.text.count("\n", 0, match.start()) + 1
            wanted = f"an NVIDIA topology; this is one of {vendor}, not NVIDIA"
            raise source.refusal(f"line {line}", saw=match.group(), wanted=wanted)
