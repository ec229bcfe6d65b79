"""The lines of a pasted GPU matrix, made regular: no colours, fences, Markdown or wrapped rows."""

import re
from dataclasses import dataclass

_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]")
_AFFINITY = {"cpu affinity": "CPU Affinity", "numa affinity": "NUMA Affinity"}
_RULE = re.compile(r":?-+:?|")
CODE = re.compile(r"X|NV[0-9]+|PIX|PXB|PHB|NODE|SYS|SOC|PSB|OK|CNS|GNS|TNS|NS|DR|U|\.\.\.")
_ROW = re.compile(rf"\s*(?!N?V?[0-9]+\s)(?=\S*[0-9])[A-Za-z]\S*\s+(?:{CODE.pattern})(?:\s|$)")
_CHUNK = re.compile(r"(?:[A-Z0-9_a-z]*[0-9]|[A-Z]+|N/A|[0-9][0-9,-]*|Affinity|X)(?:\s|$)")
_WORDS = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "OK", "CNS", "GNS", "TNS")
_LABEL = re.compile(r"GPU|NIC|[a-z]")
_STOPS = re.compile(r"\s*(?:NIC )?Legend\s*:|.*\s=\s|\s*NIC[0-9]+\s*:|[^a-z]*[$#>]\s")
_LEAST_WRAP = 40  # columns of the narrowest terminal anybody copies from


@dataclass(frozen=True, slots=True)
class Line:
    """A line and its number in the file; the number of its first part if it was wrapped."""

    number: int
    text: str


def regular_lines(lines: list[str]) -> tuple[list[Line], list[str]]:
    """The lines to read, and notes on what was repaired."""
    clean = [Line(n, _TERMINAL.sub("", text)) for n, text in enumerate(lines, start=1)]
    clean = [line for line in clean if not line.text.strip().startswith("```")]
    notes: list[str] = []
    if sum(line.text.strip().startswith("|") for line in clean) > 1:
        return [_plain(line) for line in _reordered(clean)], ["read from a Markdown table"]
    joined = _unwrapped(clean)
    if len(joined) < len(clean):
        notes.append("wrapped lines were joined")
    return joined, notes


def is_row(text: str) -> bool:
    """Does the line start like a row: a label, then a cell?"""
    return bool(_ROW.match(text))


def is_cut_code(word: str) -> bool:
    """May the word be the beginning of a cell, cut by the end of the text?"""
    return any(code.startswith(word) for code in _WORDS)


def _plain(line: Line) -> Line:
    return Line(line.number, line.text.rstrip("\t"))


def _cells(text: str) -> list[str]:
    return [cell.strip(" `*") for cell in text.strip().strip("|").split("|")]


def _reordered(lines: list[Line]) -> list[Line]:
    """Markdown rows as tab-separated ones, affinity columns last, which is how they are printed."""
    order: list[int] | None = None
    made: list[Line] = []
    for line in lines:
        cells = _cells(line.text)
        if not line.text.strip().startswith("|"):
            made.append(line)
            continue
        if all(_RULE.fullmatch(cell) for cell in cells):
            continue
        if order is None:
            order = _print_order(cells)
            names = [_AFFINITY.get(cells[place].lower(), cells[place]) for place in order[1:]]
            made.append(Line(line.number, "\t" + "\t".join(names)))
            continue
        padded = cells + [""] * (max(order) + 1 - len(cells))
        made.append(Line(line.number, "\t".join(padded[place] for place in order)))
    return made


def _print_order(header: list[str]) -> list[int]:
    places = list(range(1, len(header)))
    tail = ["cpu affinity", "numa affinity", "gpu numa id"]
    last = [place for name in tail for place in places if header[place].lower() == name]
    return [0, *(place for place in places if place not in last), *last]


def _unwrapped(lines: list[Line]) -> list[Line]:
    """Joins what a terminal or an editor wrapped: a part is no row and holds only cells."""
    starts = {line.number: is_row(line.text) or "GPU0" in line.text for line in lines}
    width = max((len(line.text) for line in lines if starts[line.number]), default=0)
    made: list[Line] = []
    last, is_open = 0, False  # length of the part before; may the line go on?
    for line in lines:
        # Only a header goes on with labels.
        labels = bool(made) and not is_row(made[-1].text)
        if is_open and not starts[line.number] and _continues(line.text, labels=labels):
            before = made.pop()
            glue = "" if last == width >= _LEAST_WRAP else " "
            made.append(Line(before.number, before.text + glue + line.text))
        else:
            is_open = starts[line.number]
            made.append(line)
        last = len(line.text)
    return made


def _continues(text: str, *, labels: bool) -> bool:
    if not text.strip() or _STOPS.match(text):
        return False
    words = text.split()
    return all(_CHUNK.match(word) for word in words) and (
        labels or not any(_LABEL.match(word) for word in words)
    )
