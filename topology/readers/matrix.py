"""The GPU matrix of `nvidia-smi topo`: header, labelled rows, affinity columns.

Cells come from a closed vocabulary, so rows are split by words and checked by their X: column
positions in pasted text cannot be trusted.
"""

import re
from dataclasses import dataclass

from topology.readers.matrix_lines import CODE, Line, is_row, regular_lines
from topology.readers.matrix_rows import ELIDED, Row, check_self, is_whole, once
from topology.readers.matrix_tail import split_tail
from topology.readers.reading import MOST_GPUS, SourceText

_RUN = re.compile(r"(?:X|NV[0-9]+|PIX|PXB|PHB|NODE|SYS|SOC|PSB){2,}")
_GPU = re.compile(r"GPU[0-9]{1,4}")
_NIC = re.compile(r"(?!(?i:g?p?u?\.?[0-9]+)$)[A-Za-z][\w.:-]*[0-9][\w.:-]*")
_MISSPELT = re.compile(r"(?i)(g?p?u|gp?)\.?[0-9]+\.?")
_LABELS = re.compile(r"(?:^|\s)((?:[GPU]{0,2}[0-9]+\s+)?GPU[0-9]+(?:\s*CPU|\s*NIC|\s|$).*)")
_RUN_LABELS = re.compile(r"(?:GPU[0-9]+|NIC[0-9]+|mlx[0-9]+_(?:bond_?)?[0-9]+){2,}")
_ONE_LABEL = re.compile(r"GPU[0-9]+|NIC[0-9]+|mlx[0-9]+_(?:bond_?)?[0-9]+")
_TAIL_NAMES = (
    (re.compile(r"CPU\s*Affinity"), " <cpu> "),
    (re.compile(r"NUMA\s*Affinity|NUMA\s*$"), " <numa> "),
    (re.compile(r"GPU\s*NUMA(\s*ID?)?|GPU\s*$"), " <gpu-numa> "),
)
_LEGEND = re.compile(r"\s*(NIC[0-9]+)\s*:\s*(\S+)\s*$")
_END = re.compile(r"\s*(NIC )?Legend\s*:")


@dataclass(slots=True, kw_only=True)
class Matrix:
    """The table as it stands; `columns` has one label a cell, `...` where it is not known."""

    columns: list[str]
    rows: list[Row]
    names: dict[str, str]  # NIC3 -> mlx5_5
    notes: list[str]


def read_matrix(source: SourceText) -> Matrix:
    """Split the text into a table.

    Raises:
        TopologyError: No table, two tables, or a label, row or cell that is not understood.
    """
    lines, notes = regular_lines(source.lines)
    names = {m.group(1): m.group(2) for line in lines if (m := _LEGEND.match(line.text))}
    end = next((at for at, line in enumerate(lines) if _END.match(line.text)), len(lines))
    header, tail_names, rows = _table(lines[:end], source=source, notes=notes)
    last = max((line.number for line in lines if line.text.strip()), default=0)
    columns = _columns(header, rows=rows, source=source, notes=notes)
    if (
        len(columns) > 2 * MOST_GPUS
        or sum(label.startswith("GPU") for label in columns) > MOST_GPUS
    ):
        raise source.refusal("header", saw=len(columns), wanted=f"at most {MOST_GPUS} GPUs")
    kept = [row for row in rows if is_whole(row, columns, source=source, notes=notes)]
    if not kept:
        place = f"line {rows[0].line}, row {rows[0].label}" if rows else "table"
        seen = len(rows[0].cells) if rows else "no row"
        raise source.refusal(place, saw=seen, wanted=f"a whole row of {len(columns)} cells")
    check_self(kept, columns=columns, source=source)
    kept = once(kept, source=source, notes=notes)
    notes += split_tail(kept, names=tail_names, last=last)
    return Matrix(columns=columns, rows=kept, names=names, notes=notes)


def _table(
    lines: list[Line], *, source: SourceText, notes: list[str]
) -> tuple[list[str] | None, list[str], list[Row]]:
    header: list[str] | None = None
    tail_names: list[str] = []
    rows: list[Row] = []
    for line in lines:
        if is_row(line.text):
            rows.append(_row(line, source=source, notes=notes))
        elif (found := _header_text(line.text, first=not rows and header is None)) is not None:
            labels, tail = _header(found, line=line.number, source=source, notes=notes)
            if header is not None and (labels != header or rows):
                wanted = "one table (one node) in a text"
                raise source.refusal(f"line {line.number}", saw="a second table", wanted=wanted)
            header, tail_names = labels, tail
        elif line.text.strip() in {ELIDED, "....", "[...]"}:
            notes.append(f"line {line.number}: rows are left out (...)")
        elif re.match(r"\s*GPU[0-9]+(\s|$)", line.text):
            rows.append(_row(line, source=source, notes=notes))  # its first cell is no code
        elif _is_unlabelled(line.text):
            wanted = "a row label GPU<n> or a NIC name"
            raise source.refusal(f"line {line.number}, row label", saw=line.text, wanted=wanted)
    return header, tail_names, rows


def _is_unlabelled(text: str) -> bool:
    """Mostly cells, but no row: to pass it over would lose links."""
    words = text.split()
    count = sum(CODE.fullmatch(word) is not None for word in words)
    return count > 1 and 2 * count >= len(words)


def _header_text(text: str, *, first: bool) -> str | None:
    """The labels of a header line, also behind the command that printed it.

    Args:
        text: The line.
        first: Is there neither a header nor a row yet? One label alone may then be a header.
    """
    words = text.split()
    if len(words) > 1 and all(_MISSPELT.fullmatch(word) for word in words[:2]):
        return text
    match = _LABELS.search(text)
    if match is None or ("=" in text and "topo" not in text):
        return None
    before, labels = text[: match.start(1)], match.group(1)
    if before.strip() and "topo" not in before:
        return None
    others = labels.split()[1:]
    if "Affinity" in labels or any(word.startswith(("GPU", "CPU", "NIC")) for word in others):
        return labels
    return labels if first and all(_NIC.fullmatch(word) for word in others) else None


def _header(
    text: str, *, line: int, source: SourceText, notes: list[str]
) -> tuple[list[str], list[str]]:
    for name, sign in _TAIL_NAMES:
        text = name.sub(sign, text)
    labels: list[str] = []
    tail: list[str] = []
    for word in text.split():
        if word.startswith("<"):
            tail.append(word)
        elif _RUN_LABELS.fullmatch(word):
            labels += _ONE_LABEL.findall(word)
            notes.append(f"line {line}: the labels {word} ran together and were split")
        else:
            labels.append(word)
    for column, label in enumerate(labels, start=1):
        if not (_GPU.fullmatch(label) or _NIC.fullmatch(label) or label == ELIDED):
            if column == 1 and len(labels) > 1 and label != "GPU" and _GPU.fullmatch(labels[1]):
                labels[0] = ELIDED
                continue
            wanted = "GPU<n>, a NIC name, CPU Affinity, NUMA Affinity or GPU NUMA ID"
            raise source.refusal(f"line {line}, header column {column}", saw=label, wanted=wanted)
    return labels, tail


def _row(line: Line, *, source: SourceText, notes: list[str]) -> Row:
    match = re.match(r"\s*(\S+)\s*", line.text)
    label = match.group(1) if match else ""
    place = f"line {line.number}, row {label}"
    if not (_GPU.fullmatch(label) or _NIC.fullmatch(label)):
        raise source.refusal(place, saw=label, wanted="a row label GPU<n> or a NIC name")
    rest = line.text[match.end() if match else 0 :]
    cells: list[str] = []
    while word := re.match(r"\s*(\S+)", rest):
        if CODE.fullmatch(word.group(1)):
            cells.append(word.group(1))
        elif _RUN.fullmatch(word.group(1)):
            cells += CODE.findall(word.group(1))
            notes.append(f"{place}: the cells {word.group(1)} ran together and were split")
        else:
            break
        rest = rest[word.end() :]
    return Row(line=line.number, label=label, cells=cells, rest=rest)


def _columns(
    header: list[str] | None, *, rows: list[Row], source: SourceText, notes: list[str]
) -> list[str]:
    widths = {len(row.cells) for row in rows}
    if header is not None and header[:1] == [ELIDED] and rows:
        header = None  # cut: its first label is a piece of one
    if header is not None and max(widths, default=0) <= len(header):
        return header
    if header is not None and len(header) in widths:
        return header  # the rows that are longer are refused
    if header is None and not rows:
        raise source.refusal("table", saw="no row", wanted="rows as `GPU0  X  NV4`")
    notes.append("the header is missing or cut: columns are named by the X of each row")
    return _columns_by_self(rows, source=source)


def _columns_by_self(rows: list[Row], *, source: SourceText) -> list[str]:
    """Name each column by the row that has its X there; GPUs not shown come in order of index."""
    columns = [ELIDED] * max(len(row.cells) for row in rows)
    in_order = True
    last_gpu = -1
    for row in rows:
        if row.cells.count("X") != 1:
            continue
        place = row.cells.index("X")
        if columns[place] not in {ELIDED, row.label}:
            where = f"line {row.line}, row {row.label}"
            raise source.refusal(where, saw=f"X in column {place + 1}", wanted="another column")
        columns[place] = row.label
        if _GPU.fullmatch(row.label):
            in_order = in_order and row.label == f"GPU{place}"
            last_gpu = max(last_gpu, place)
    if in_order:
        columns[: last_gpu + 1] = [f"GPU{place}" for place in range(last_gpu + 1)]
    return columns
