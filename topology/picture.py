"""The wiring and the chosen rings as one SVG: a link matrix for each kind of node, then the rings.

Every colour has its word beside it, and every mark a title, so nothing is told by colour alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from topology.nouns import Link, LinkKind, Node, Topology
from topology.picture_rings import RING_INK, draw_rings
from topology.ring_plan import RingPlan
from topology.svg import CHAR_PX, FAINT, INK, PAPER, Block, frame, group, label, page, rect

__all__ = ["COLOURS", "render_svg"]

# Fill and ink of each kind: green is near, purple is far (ColorBrewer PRGn, colour-blind safe)
COLOURS: Mapping[str, tuple[str, str]] = {
    LinkKind.NVLINK: ("#1b7837", PAPER),
    LinkKind.PIX: ("#7fbf7b", INK),
    LinkKind.PXB: ("#d9f0d3", INK),
    LinkKind.PHB: ("#f7f7f7", INK),
    LinkKind.NODE: ("#e7d4e8", INK),
    LinkKind.SYS: ("#af8dc3", INK),
    "NET": ("#762a83", PAPER),
}
_UNKNOWN = (PAPER, INK)
_ROW_PX, _LEAST_COLUMN_PX = 22.0, 40.0
_MOST_KINDS = 8  # of nodes, drawn
_FRAMED = "matrix: used by a ring; ring: slowest edge"
_GIGA = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """What joins two devices, for people."""

    word: str
    kind: str | None
    title: str


def render_svg(topology: Topology, plan: RingPlan | None = None) -> str:
    """Draw a topology, and the rings of a plan over it.

    Args:
        topology: Nodes that are wired alike are drawn once.
        plan: Made from the same topology; links its rings use are framed in the matrix.

    Returns:
        One SVG document that ends in a newline; it needs nothing beside it.
    """
    nodes, gpus = len(topology.nodes), sum(len(node.gpus) for node in topology.nodes)
    title = f"Topology: {_count(nodes, 'node')}, {_count(gpus, 'GPU')}"
    kinds = _alike(topology.nodes)
    blocks = [_heading(title), _legend(framed=plan is not None)]
    blocks += [_matrix(same, used=_used(same, plan)) for same in kinds[:_MOST_KINDS]]
    if len(kinds) > _MOST_KINDS:
        blocks.append(_heading(f"and {len(kinds) - _MOST_KINDS} other kinds of node"))
    if plan is not None:
        colours = {kind: fill for kind, (fill, _) in COLOURS.items()}
        blocks += draw_rings(plan, colours=colours, short=nodes == 1)
        title += f"; rings for tp {plan.tp}, cp {plan.cp}"
    description = f"Link matrix of each kind of node. Source {topology.source}."
    return page(blocks, title=title, description=description)


def _alike(nodes: Iterable[Node]) -> list[list[Node]]:
    """Nodes by what their matrix shows, in order of the first of each kind."""
    kinds: dict[tuple[object, ...], list[Node]] = {}
    for node in nodes:
        names = tuple(nic.name for nic in node.nics)
        indices = tuple(gpu.index for gpu in node.gpus)
        kinds.setdefault((indices, names, node.gpu_links, node.gpu_nics), []).append(node)
    return list(kinds.values())


def _used(nodes: Sequence[Node], plan: RingPlan | None) -> set[tuple[int, int]]:
    """Pairs of GPUs inside any of the nodes that a ring joins, both ways round."""
    names = {node.name for node in nodes}
    pairs = {
        (edge.a.gpu, edge.b.gpu)
        for ring in (plan.rings if plan is not None else ())
        for edge in ring.edges
        if edge.a.node == edge.b.node and edge.a.node in names
    }
    return pairs | {(b, a) for a, b in pairs}


def _matrix(nodes: Sequence[Node], *, used: set[tuple[int, int]]) -> Block:
    """GPUs against GPUs and NICs, as `nvidia-smi topo -m` shows them."""
    node = nodes[0]
    cells = _cells(node)
    rows = [f"GPU{gpu.index}" for gpu in node.gpus]
    columns = [*rows, *(nic.name for nic in node.nics)]
    indices = [gpu.index for gpu in node.gpus]
    targets: list[int | str] = [*indices, *(nic.name for nic in node.nics)]
    edges = _column_edges(columns, rows=rows)
    marks = [label(0, _ROW_PX / 2, _named(nodes), bold=True)]
    for column, left, right in zip(columns, edges, edges[1:], strict=False):
        marks.append(label((left + right) / 2, 1.5 * _ROW_PX, column, anchor="middle"))
    for place, (index, name) in enumerate(zip(indices, rows, strict=True)):
        top = (place + 2) * _ROW_PX
        marks.append(label(0, top + _ROW_PX / 2, name))
        for target, (left, right) in zip(targets, pairwise(edges), strict=True):
            size = (right - left, _ROW_PX)
            framed = isinstance(target, int) and (index, target) in used
            marks.append(_draw(cells.get((index, target)), at=(left, top), size=size, used=framed))
    width = max(edges[-1], len(_named(nodes)) * CHAR_PX)
    return Block(width=width, height=(len(rows) + 2) * _ROW_PX, marks="\n".join(marks) + "\n")


def _column_edges(columns: Sequence[str], *, rows: Sequence[str]) -> list[float]:
    edges = [max((len(name) for name in rows), default=0) * CHAR_PX + 8]
    for column in columns:
        edges.append(edges[-1] + max(_LEAST_COLUMN_PX, len(column) * CHAR_PX + 8))
    return edges


def _cells(node: Node) -> dict[tuple[int, int | str], _Cell]:
    cells: dict[tuple[int, int | str], _Cell] = {}
    for link in node.gpu_links:
        for a, b in ((link.a, link.b), (link.b, link.a)):
            cells[a, b] = _Cell(word=_word(link), kind=link.kind, title=_link_title(a, b, link))
    for pair in node.gpu_nics:
        word = "?" if pair.kind is None else str(pair.kind)
        title = f"GPU{pair.gpu} to NIC {pair.nic}: {word}"
        cells[pair.gpu, pair.nic] = _Cell(word=word, kind=pair.kind, title=title)
    return cells


def _draw(
    cell: _Cell | None, *, at: tuple[float, float], size: tuple[float, float], used: bool
) -> str:
    x, y = at
    if cell is None:  # a GPU and itself
        return rect(x, y, size=size, fill=FAINT)
    fill, ink = COLOURS.get(cell.kind or "", _UNKNOWN)
    marks = [
        rect(x, y, size=size, fill=fill, stroke=FAINT),
        label(x + size[0] / 2, y + size[1] / 2, cell.word, anchor="middle", fill=ink),
    ]
    marks += [frame(x, y, size=size, stroke=RING_INK)] if used else []
    return group(marks, title=cell.title + (", used by a ring" if used else ""))


def _word(link: Link) -> str:
    if link.kind is None:
        return "?"
    return f"NV{link.lanes}" if link.lanes is not None else str(link.kind)


def _link_title(a: int, b: int, link: Link) -> str:
    rate = "" if link.bytes_per_s is None else f", {link.bytes_per_s / _GIGA:.1f} GB/s"
    peer = {True: ", peer access", False: ", no peer access", None: ""}[link.p2p]
    return f"GPU{a} to GPU{b}: {'not told' if link.kind is None else _word(link)}{rate}{peer}"


def _named(nodes: Sequence[Node]) -> str:
    more = f" and {len(nodes) - 1} wired alike" if len(nodes) > 1 else ""
    none = "" if nodes[0].gpus else ": no GPU"
    return f"node {nodes[0].name}{more}{none}"


def _heading(words: str) -> Block:
    marks = label(0, _ROW_PX / 2, words, bold=True) + "\n"
    return Block(width=len(words) * CHAR_PX, height=_ROW_PX, marks=marks)


def _legend(*, framed: bool) -> Block:
    """Each kind in its colour, nearest first."""
    marks: list[str] = []
    left = 0.0
    for word, (fill, ink) in {**COLOURS, "?": _UNKNOWN}.items():
        width = max(_LEAST_COLUMN_PX, len(word) * CHAR_PX + 12)
        marks.append(rect(left, 0, size=(width, _ROW_PX), fill=fill, stroke=INK))
        marks.append(label(left + width / 2, _ROW_PX / 2, word, anchor="middle", fill=ink))
        left += width + 6
    if framed:
        marks.append(frame(left, 0, size=(_LEAST_COLUMN_PX, _ROW_PX), stroke=RING_INK))
        marks.append(label(left + _LEAST_COLUMN_PX + 6, _ROW_PX / 2, _FRAMED))
        left += _LEAST_COLUMN_PX + 6 + len(_FRAMED) * CHAR_PX
    return Block(width=left, height=_ROW_PX, marks="\n".join(marks) + "\n")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
