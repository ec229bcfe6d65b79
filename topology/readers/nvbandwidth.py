"""nvbandwidth logs: bandwidth between GPUs as it was measured."""

import re
from dataclasses import dataclass, field
from itertools import combinations

from topology.nouns import Gpu, Link
from topology.readers.reading import Draft, Reading, SourceText
from topology.sysfs import normal_bus_id

_DEVICE = re.compile(
    r"Device (\d{1,4}): (.*?)\s*(?:\(([0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+)\))?:?\s*$"
)
_DRIVER = re.compile(r"Driver Version: (\S+)")
_RUNNING = re.compile(r"Running (\w+)\.")
_SUM = re.compile(r"SUM (\w+) ([0-9.]+)")
_TITLE = re.compile(r"mem(?:cpy|ory) .*\(([\w/]+)\)")  # bandwidth (GB/s) | latency (ns)
_HEAD = re.compile(r"\s*\d+(\s+\d+)*\s*$")
_ROW = re.compile(r"\s*(\d+)((?:\s+(?:[0-9]+\.[0-9]+|N/A))+)\s*$")
_GIGA = 1e9


@dataclass(slots=True)
class _Test:
    """One matrix."""

    unit: str = ""
    rows: dict[int, list[float | None]] = field(default_factory=dict)
    total: str = ""


def read_nvbandwidth(source: SourceText) -> Reading:
    """Read devices and matrices.

    Raises:
        TopologyError: A device that stands twice with other facts, or a matrix row too long.
    """
    draft = Draft()
    tests: dict[str, _Test] = {}
    name = ""
    for number, raw in enumerate(source.lines, start=1):
        line = " ".join(raw.split())
        if match := _DEVICE.match(line):
            bus = f"{match.group(3)}.0" if match.group(3) else ""
            index = int(match.group(1))
            draft.gpus[index] = Gpu(
                index=index, name=match.group(2) or None, pci_bus_id=normal_bus_id(bus)
            )
        elif match := _RUNNING.match(line):
            name = match.group(1)
            tests[name] = _Test()
        elif match := _SUM.match(line):
            tests.setdefault(match.group(1), _Test()).total = match.group(2)
        elif (match := _DRIVER.match(line)) and not line.startswith("CUDA"):
            draft.driver_version = match.group(1)
        elif name:
            _add_line(tests[name], line=line, number=number, source=source)
    draft.notes += [_told(name, test) for name, test in tests.items() if test.rows or test.total]
    _add_links(draft, tests=tests)
    return Reading(
        source="nvbandwidth", kind="nvbandwidth", nodes=(draft.build(source),), named=False
    )


def _add_line(test: _Test, *, line: str, number: int, source: SourceText) -> None:
    if match := _TITLE.match(line):
        test.unit = match.group(1)
    elif (match := _ROW.match(line)) and not _HEAD.match(line):
        row = int(match.group(1))
        if row in test.rows:
            raise source.refusal(f"line {number}, row {row}", saw="it again", wanted="it once")
        words = match.group(2).split()
        test.rows[row] = [None if word == "N/A" else float(word) for word in words]


def _told(name: str, test: _Test) -> str:
    rows = " / ".join(
        " ".join("N/A" if value is None else f"{value:.2f}" for value in values)
        for values in test.rows.values()
    )
    return (
        f"{name} ({test.unit or 'unit not told'}, measured): {rows}; SUM {test.total or 'not told'}"
    )


def _add_links(draft: Draft, *, tests: dict[str, _Test]) -> None:
    """The slower direction of a one-way copy between two GPUs, whichever side drives it."""
    one_way = [
        test
        for name, test in tests.items()
        if name.startswith("device_to_device") and "bidirectional" not in name and "_ce" in name
    ]
    for a, b in combinations(sorted(draft.gpus), 2):
        speeds = [
            [speed for test in one_way if (speed := _cell(test, row, column)) is not None]
            for row, column in ((a, b), (b, a))
        ]
        if all(speeds):
            slower = min(max(found) for found in speeds)
            if slower > 0:
                draft.links[a, b] = Link(a=a, b=b, bytes_per_s=slower * _GIGA)
    if draft.links:
        draft.notes.append(
            "bytes_per_s was measured by nvbandwidth, one way by copy engines: the slower way of "
            "each pair; what joins GPUs is not told"
        )


def _cell(test: _Test, row: int, column: int) -> float | None:
    values = test.rows.get(row, [])
    return values[column] if column < len(values) else None
