"""The rows of a GPU matrix: whole ones are kept, cut ones left out, wrong ones refused."""

from dataclasses import dataclass, field

from topology.readers.matrix_lines import is_cut_code
from topology.readers.matrix_tail import AFFINITY, Tail
from topology.readers.reading import SourceText

ELIDED = "..."  # a column whose name is not known


@dataclass(slots=True, kw_only=True)
class Row:
    """One labelled line of the table."""

    line: int
    label: str
    cells: list[str]
    rest: str  # what follows the cells, tabs kept
    tail: Tail = field(default_factory=Tail)


def is_whole(row: Row, columns: list[str], *, source: SourceText, notes: list[str]) -> bool:
    """Does the row have all cells? A row that just ends is left out; a wrong one is refused."""
    place = f"line {row.line}, row {row.label}"
    words = row.rest.split()
    if not columns:
        raise source.refusal(place, saw="no column before it", wanted="a header with GPU0 ...")
    if len(row.cells) > len(columns):
        raise source.refusal(place, saw=f"{len(row.cells)} cells", wanted=f"{len(columns)}")
    if len(row.cells) == len(columns):
        if words and not AFFINITY.fullmatch(words[0]):
            column = f"column {len(columns) + 1} (after {columns[-1]})"
            wanted = "CPUs as 0-47,96-143, a NUMA node or N/A"
            raise source.refusal(f"{place}, {column}", saw=words[0], wanted=wanted)
        return True
    if words and not (len(words) == 1 and is_cut_code(words[0])):
        column = columns[len(row.cells)]
        wanted = "X, NV<n>, PIX, PXB, PHB, NODE or SYS (-p2p: OK, CNS, GNS, TNS, NS, DR or U)"
        raise source.refusal(f"{place}, column {column}", saw=words[0], wanted=wanted)
    seen, whole = len(row.cells), len(columns)
    notes.append(f"row {row.label} has {seen} of {whole} cells and is left out")
    return False


def check_self(rows: list[Row], *, columns: list[str], source: SourceText) -> None:
    """X stands where a device meets itself and nowhere else; else cells are missing or moved."""
    for row in rows:
        place = f"line {row.line}, row {row.label}"
        if row.label not in columns:
            if ELIDED in columns:
                continue
            wanted = f"one of {', '.join(columns)}"
            raise source.refusal(f"{place}, row label", saw=row.label, wanted=wanted)
        for column, cell in zip(columns, row.cells, strict=True):
            if (cell == "X") != (column == row.label) and column != ELIDED:
                wanted = "X" if column == row.label else "any cell but X"
                raise source.refusal(f"{place}, column {column}", saw=cell, wanted=wanted)


def once(rows: list[Row], *, source: SourceText, notes: list[str]) -> list[Row]:
    """The rows without those that stand twice.

    Raises:
        TopologyError: The second one says something else.
    """
    kept: dict[str, Row] = {}
    for row in rows:
        before = kept.setdefault(row.label, row)
        if before.cells != row.cells or before.rest.split() != row.rest.split():
            wanted = f"the cells of line {before.line}"
            raise source.refusal(
                f"line {row.line}, row {row.label} again", saw=row.cells, wanted=wanted
            )
        if before is not row:
            notes.append(f"row {row.label} stands twice (lines {before.line} and {row.line})")
    return list(kept.values())
