"""`nvidia-smi topo -m`, `-mp` and `-p2p`: how GPUs and NICs reach each other in one node."""

import re
from collections.abc import Mapping
from itertools import combinations

from topology.nouns import Gpu, Link, LinkKind, Nic
from topology.readers.matrix import Matrix, read_matrix
from topology.readers.matrix_tail import Tail
from topology.readers.reading import Draft, Reach, Reading, SourceText
from topology.wiring import fold_notes

_KINDS = {
    "PIX": LinkKind.PIX,
    "PSB": LinkKind.PIX,  # one switch on the board
    "PXB": LinkKind.PXB,
    "PHB": LinkKind.PHB,
    "NODE": LinkKind.NODE,
    "SYS": LinkKind.SYS,
    "SOC": LinkKind.SYS,  # its name in old drivers
}
_P2P = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})
_ODD_LANES = 3  # only POWER9 boards are built so
_OTHER = re.compile(r"^[ \t]*GPU \d+: ", re.MULTILINE)  # of nvidia-smi -L or nvlink -s
_COMMAND = re.compile(r"topo\s+(?:-i\s+\S+\s+)?(-p2p\s+(\w+)|-mp|-m)")
_MAYBE_HIDDEN = "the legend has no NV#: NVLink may be hidden, as by topo -mp"
_HIDDEN = "topo -mp shows PCIe only: NVLink is hidden, not absent"


def read_nvidia_smi(source: SourceText) -> Reading:
    """Read one table of `nvidia-smi topo`.

    Raises:
        TopologyError: See `read_matrix`; also a table that mixes link and peer codes.
    """
    matrix = read_matrix(source)
    if _OTHER.search(source.text):
        matrix.notes.append(
            "lines `GPU <n>: ...` were passed over: put them into a file of their own"
        )
    command = _COMMAND.search(source.text)
    codes = {cell for row in matrix.rows for cell in row.cells} - {"X", "..."}
    if codes & _P2P and codes - _P2P:
        seen = ", ".join(sorted(codes))
        raise source.refusal("table", saw=seen, wanted="links (topo -m) or peer codes (-p2p)")
    if codes & _P2P:
        return _read_p2p(matrix, capability=command.group(2) if command else None, source=source)
    return _read_links(matrix, command=command.group(1) if command else "", source=source)


def _read_links(matrix: Matrix, *, command: str, source: SourceText) -> Reading:
    draft = _devices(matrix)
    cells = _cells(matrix)
    odd: list[tuple[str, str]] = []
    for a, b in combinations(sorted(draft.gpus), 2):
        there, back = cells.get((f"GPU{a}", f"GPU{b}")), cells.get((f"GPU{b}", f"GPU{a}"))
        link, remark = _link(a, b, codes={code for code in (there, back) if code})
        draft.links[a, b] = link
        odd += [(f"{a}-{b}", remark)] if remark else []
    _place_nics(draft, cells=cells, names=matrix.names, odd=odd)
    hidden = command == "-mp"
    nvlink = any(link.kind is LinkKind.NVLINK for link in draft.links.values())
    legend = "PIX  =" in source.text and "NV#" not in source.text
    draft.notes += fold_notes("GPUs", odd)
    draft.notes += [_HIDDEN] if hidden else [_MAYBE_HIDDEN] if legend and not nvlink else []
    return Reading(
        source="nvidia-smi",
        kind="topo -mp" if hidden else "topo -m",
        nodes=(draft.build(source),),
        named=False,
        reach=Reach.PCIE_ONLY if hidden else Reach.ALL,
    )


def _devices(matrix: Matrix) -> Draft:
    labels = [label for label in matrix.columns if label != "..."]
    labels += [row.label for row in matrix.rows if row.label not in labels]
    tails = {row.label: row.tail for row in matrix.rows}
    draft = Draft(notes=list(matrix.notes))
    for label in labels:
        if label.startswith("GPU"):
            tail = tails.get(label, Tail())
            index = int(label[3:])
            numa = tail.numa
            if numa is not None and not numa.isdecimal():
                draft.notes.append(f"GPU {index}: several NUMA nodes ({numa}): its own is unknown")
                numa = None
            draft.gpus[index] = Gpu(
                index=index, numa_node=None if numa is None else int(numa), cpu_affinity=tail.cpu
            )
        else:
            name = matrix.names.get(label, label)
            draft.nics[name] = Nic(name=name)
    missing = [index for index in draft.gpus if f"GPU{index}" not in tails]
    draft.notes += [f"no row for GPUs {', '.join(map(str, missing))}"] if missing else []
    return draft


def _cells(matrix: Matrix) -> Mapping[tuple[str, str], str]:
    return {
        (row.label, column): cell
        for row in matrix.rows
        for column, cell in zip(matrix.columns, row.cells, strict=True)
        if cell not in {"X", "..."} and column != "..."
    }


def _link(a: int, b: int, *, codes: set[str]) -> tuple[Link, str]:
    kinds = {_kind(code) for code in codes}
    if not codes:
        return Link(a=a, b=b), "not told"
    if len(kinds) > 1:
        return Link(a=a, b=b), f"the two rows disagree ({', '.join(sorted(codes))}): unknown"
    kind = kinds.pop()
    if kind is not LinkKind.NVLINK:
        return Link(a=a, b=b, kind=kind), ""
    lanes = {int(code[2:]) for code in codes}
    if len(lanes) > 1 or 0 in lanes:
        shown = ", ".join(sorted(codes))
        return Link(a=a, b=b, kind=kind), f"the two rows see {shown}: number of NVLinks unknown"
    count = lanes.pop()
    odd = "3 NVLinks: if this is a bridge of 4, one is down" if count == _ODD_LANES else ""
    return Link(a=a, b=b, kind=kind, lanes=count), odd


def _kind(code: str) -> LinkKind:
    return LinkKind.NVLINK if code.startswith("NV") else _KINDS[code]


def _place_nics(
    draft: Draft,
    *,
    cells: Mapping[tuple[str, str], str],
    names: Mapping[str, str],
    odd: list[tuple[str, str]],
) -> None:
    seen: dict[tuple[int, str], set[str]] = {}
    for (row, column), code in cells.items():
        gpu, nic = (row, column) if row.startswith("GPU") else (column, row)
        if gpu.startswith("GPU") and not nic.startswith("GPU"):
            seen.setdefault((int(gpu[3:]), names.get(nic, nic)), set()).add(code)
    for (index, nic), codes in seen.items():
        kinds = {_KINDS.get(code) for code in codes}
        if len(kinds) == 1:
            draft.near[index, nic] = kinds.pop()
        else:
            odd.append((f"{index}-{nic}", f"the two rows disagree ({', '.join(sorted(codes))})"))


def _read_p2p(matrix: Matrix, *, capability: str | None, source: SourceText) -> Reading:
    draft = _devices(matrix)
    cells = _cells(matrix)
    asked = capability or ""
    nvlink, peer = asked == "n", asked in {"", "r", "w", "rw", "n", "p"}
    denies = asked in {"", "r", "w", "rw"}  # a no for one path is no for the others
    told: list[tuple[str, str]] = []
    for a, b in combinations(sorted(draft.gpus), 2):
        codes = [cells.get((f"GPU{x}", f"GPU{y}")) for x, y in ((a, b), (b, a))]
        good = codes == ["OK", "OK"]
        bad = sorted({code for code in codes if code not in {None, "OK", "U"}})
        p2p = True if good and peer else False if bad and denies else None
        kind = LinkKind.NVLINK if good and nvlink else None
        draft.links[a, b] = Link(a=a, b=b, kind=kind, p2p=p2p)
        if not good:
            told.append((f"{a}-{b}", ", ".join(bad) or "not told or unknown (both ways are asked)"))
    what = {"r": "reads", "w": "writes", "n": "NVLink", "a": "atomics", "p": "PCIe"}.get(asked)
    draft.notes.append(f"peer access asked for: {what or 'not told in the text'}")
    if asked == "a":
        draft.notes.append("peer atomics are no fact here, and in no hash: no placement uses them")
    draft.notes += fold_notes("GPUs", told)
    return Reading(source="nvidia-smi", kind="topo -p2p", nodes=(draft.build(source),), named=False)
