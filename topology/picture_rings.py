"""The rings of a plan as circles of devices, the slowest edges marked."""

import math
from collections.abc import Mapping, Sequence

from topology.graph import Device, DeviceEdge
from topology.ring_plan import Ring, RingPlan
from topology.svg import CHAR_PX, INK, PAPER, Block, dot, group, label, line

__all__ = ["RING_INK", "draw_rings"]

RING_INK = "#d95f02"  # against green and purple alike
_MOST_RINGS, _MOST_DEVICES = 16, 64  # drawn
_PAGE_PX = 1200.0
_LEAST_RADIUS_PX, _STEP_PX, _DOT_PX = 60.0, 18.0, 5.0
_LINE_PX = 18.0
_MOST_LETTERS = 20  # of a device's name
_GIGA = 1e9


def draw_rings(
    plan: RingPlan, *, colours: Mapping[str, str], short: bool, noun: str = "GPUs"
) -> list[Block]:
    """The rings, side by side as far as a page is wide.

    Args:
        plan: The first of its rings are drawn.
        colours: Of an edge, by its kind.
        short: Name a device by its GPU alone.
        noun: What the devices are.
    """
    panels = [
        _panel(f"ring {number}: {len(ring.order)} {noun}", ring, colours=colours, short=short)
        for number, ring in enumerate(plan.rings[:_MOST_RINGS])
    ]
    rows: list[list[Block]] = []
    for panel in panels:
        if not rows or sum(one.width for one in rows[-1]) + panel.width > _PAGE_PX:
            rows.append([])
        rows[-1].append(panel)
    blocks = [_beside(row) for row in rows]
    if len(plan.rings) > _MOST_RINGS:
        blocks.append(_text([f"and {len(plan.rings) - _MOST_RINGS} more rings"]))
    return blocks


def _panel(title: str, ring: Ring, *, colours: Mapping[str, str], short: bool) -> Block:
    slowest, crossings = ring.slowest, ring.crossings
    lines = [title]
    if slowest is not None:
        lines.append(f"slowest edge {_edge(slowest)}")
    is_told = any(edge.kind is not None for edge in ring.edges)  # else nobody told of islands
    islands = f"islands {crossings.island}, " if is_told else ""
    lines.append(f"crosses {islands}nodes {crossings.node}")
    words = _text(lines)
    if len(ring.order) > _MOST_DEVICES:
        return words
    names = [_name(device, short=short) for device in ring.order]
    radius = max(_LEAST_RADIUS_PX, len(names) * _STEP_PX / math.tau)
    beside = radius + _DOT_PX + 6 + max(map(len, names)) * CHAR_PX
    width = max(words.width, 2 * beside)
    height = 2 * (radius + 1.5 * _LINE_PX)
    middle = (width / 2, words.height + height / 2)
    circle = _circle(ring, names=names, middle=middle, radius=radius, colours=colours)
    return Block(width=width, height=words.height + height, marks=words.marks + circle)


def _circle(
    ring: Ring,
    *,
    names: Sequence[str],
    middle: tuple[float, float],
    radius: float,
    colours: Mapping[str, str],
) -> str:
    turns = [math.tau * place / len(names) - math.pi / 2 for place in range(len(names))]
    spots = {
        device: _spot(middle, radius=radius, turn=turn)
        for device, turn in zip(ring.order, turns, strict=True)
    }
    worths = [edge.worth for edge in ring.edges]
    least = min(worths) if len(set(worths)) > 1 else None  # where all are alike, none stands out
    marks: list[str] = []
    for edge in ring.edges:
        ends = (spots[edge.a], spots[edge.b])
        is_slowest = edge.worth == least
        drawn = [line(*ends, stroke=RING_INK, width=8)] if is_slowest else []
        drawn.append(line(*ends, stroke=colours.get(edge.kind or "", INK), width=4))
        note = ", the slowest of the ring" if is_slowest else ""
        marks.append(group(drawn, title=f"{edge.a} to {edge.b}: {_edge(edge)}{note}"))
    for device, name, turn in zip(ring.order, names, turns, strict=True):
        x, y = spots[device]
        far_x, far_y = _spot(middle, radius=radius + _DOT_PX + 6, turn=turn)
        drawn = [
            dot(x, y, radius=_DOT_PX + 2, fill=PAPER),
            dot(x, y, radius=_DOT_PX, fill=INK),
            label(far_x, far_y, name, anchor=_anchor(turn)),
        ]
        marks.append(group(drawn, title=str(device)))
    return "".join(marks)


def _spot(middle: tuple[float, float], *, radius: float, turn: float) -> tuple[float, float]:
    return middle[0] + radius * math.cos(turn), middle[1] + radius * math.sin(turn)


def _anchor(turn: float) -> str:
    """Text grows away from the circle."""
    side = math.cos(turn)
    if abs(side) < 0.1:
        return "middle"
    return "start" if side > 0 else "end"


def _name(device: Device, *, short: bool) -> str:
    if short:
        return str(device.gpu)
    name = str(device)
    return name if len(name) <= _MOST_LETTERS else f"..{name[2 - _MOST_LETTERS :]}"


def _edge(edge: DeviceEdge) -> str:
    rate = "rate not told" if edge.bytes_per_s is None else f"{edge.bytes_per_s / _GIGA:.1f} GB/s"
    return f"{edge.label} {rate}"


def _text(lines: Sequence[str]) -> Block:
    marks = "\n".join(
        label(0, (place + 0.5) * _LINE_PX, words, bold=place == 0)
        for place, words in enumerate(lines)
    )
    width = max(map(len, lines)) * CHAR_PX
    return Block(width=width, height=len(lines) * _LINE_PX, marks=marks + "\n")


def _beside(panels: Sequence[Block]) -> Block:
    gap, left, parts = 24.0, 0.0, list[str]()
    for panel in panels:
        parts.append(panel.at(left, 0))
        left += panel.width + gap
    return Block(
        width=left - gap, height=max(panel.height for panel in panels), marks="".join(parts)
    )
