"""p2pBandwidthLatencyTest of the CUDA samples: what copies between GPUs reached, as measured.

Of its matrices one is a fact of the wiring, what a copy reaches one way with peer access on; beside
it whether two GPUs have peer access at all. The others are named and count for nothing.
"""

import re
from dataclasses import dataclass, field
from itertools import combinations

from topology.nouns import Gpu, Link
from topology.readers.reading import Draft, Reading, SourceText

KIND = "p2p test"
SIGN = re.compile(
    r"\[P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\]"
    r"|\bP2P Connectivity Matrix|\bP2P=(?:Enabled|Disabled)\b[^\n]{0,60}\bMatrix\b"
)
_DEVICE = re.compile(
    r"Device: (\d{1,4}), (.*?), pciBusID: ([0-9a-fA-F]{1,2}), pciDeviceID: ([0-9a-fA-F]{1,2}), "
    r"pciDomainID: ?([0-9a-fA-F]{1,8})\s*$"
)
_TITLE = re.compile(r"(?:(?:Uni|Bi)directional )?P2P(?:=(?:En|Dis)abled)?\b.*\bMatrix\b.*$")
_PEERS = re.compile(r"P2P Connectivity Matrix")
_ONE_WAY = re.compile(r"Unidirectional P2P=Enabled Bandwidth.*\(GB/s\)")
_HEAD = re.compile(r"(?:D\\D|GPU|CPU)((?:\s+\d{1,4})+)\s*$")
_ROW = re.compile(r"(\d{1,4})((?:\s+\d+(?:\.\d+)?)+)\s*$")
_GIGA = 1e9


@dataclass(slots=True)
class _Matrix:
    """One matrix: its columns, and its rows by GPU."""

    title: str
    columns: list[int] = field(default_factory=list)
    rows: dict[int, list[float]] = field(default_factory=dict)

    def cell(self, row: int, column: int) -> float | None:
        """What stands there; None where the text does not show it."""
        values = self.rows.get(row, [])
        if column not in self.columns or self.columns.index(column) >= len(values):
            return None
        return values[self.columns.index(column)]


def read_p2p_test(source: SourceText) -> Reading:
    """Read devices and matrices.

    Raises:
        TopologyError: A row that stands twice in a matrix, or is longer than its columns.
    """
    draft = Draft()
    matrices: list[_Matrix] = []
    for number, raw in enumerate(source.lines, start=1):
        line = raw.strip().lstrip("# ")
        if match := _DEVICE.match(line):
            index, name, bus, slot, domain = match.groups()
            address = f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(slot, 16):02x}.0"
            draft.gpus[int(index)] = Gpu(index=int(index), name=name, pci_bus_id=address)
        elif match := _TITLE.match(line):
            matrices.append(_Matrix(match.group()))
        elif matrices:
            _add_line(matrices, line, number=number, source=source)
    for index in {row for one in matrices for row in one.rows} - set(draft.gpus):
        draft.gpus[index] = Gpu(index=index)
    _add_links(draft, matrices)
    return Reading(
        source="p2pBandwidthLatencyTest", kind=KIND, nodes=(draft.build(source),), named=False
    )


def _add_line(matrices: list[_Matrix], line: str, *, number: int, source: SourceText) -> None:
    matrix = matrices[-1]
    if match := _HEAD.match(line):
        if matrix.rows:  # latencies have a second block, of the CPU, below one title
            matrices.append(_Matrix(f"{matrix.title}, second block"))
        matrices[-1].columns = [int(word) for word in match.group(1).split()]
        return
    match = _ROW.match(line)
    if match is None or not matrix.columns:
        return
    row, values = int(match.group(1)), [float(word) for word in match.group(2).split()]
    place = f"line {number}, row {row} of {matrix.title}"
    if row in matrix.rows:
        raise source.refusal(place, saw="it again", wanted="it once")
    if len(values) > len(matrix.columns):
        wanted = f"{len(matrix.columns)} cells"
        raise source.refusal(place, saw=f"{len(values)} cells", wanted=wanted)
    matrix.rows[row] = values


def _add_links(draft: Draft, matrices: list[_Matrix]) -> None:
    """The slower way of each pair, and whether both of it have peer access."""
    peers = [one for one in matrices if _PEERS.match(one.title)]
    one_way = [one for one in matrices if _ONE_WAY.match(one.title)]
    for a, b in combinations(sorted(draft.gpus), 2):
        there, back = ([one.cell(*ends) for one in one_way] for ends in ((a, b), (b, a)))
        rates = [max((rate for rate in way if rate), default=0.0) for way in (there, back)]
        access = [one.cell(*ends) for one in peers for ends in ((a, b), (b, a))]
        draft.links[a, b] = Link(
            a=a,
            b=b,
            bytes_per_s=min(rates) * _GIGA or None,
            p2p=None if None in access or not access else all(access),
        )
    if one_way:
        draft.notes.append(
            "bytes_per_s was measured by p2pBandwidthLatencyTest, one way with peer access on: the "
            "slower way of each pair; what joins GPUs is not told"
        )
    others = [one.title for one in matrices if one not in peers + one_way and one.rows]
    if others:
        draft.notes.append(f"no fact here, and in no hash: {'; '.join(dict.fromkeys(others))}")
    draft.notes.append(
        "GPUs are numbered as CUDA numbers them; nvidia-smi does so too under "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID"
    )
