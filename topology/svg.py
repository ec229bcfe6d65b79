"""The few marks a picture needs, as SVG text that is valid whatever a name holds."""

from collections.abc import Iterable
from dataclasses import dataclass
from xml.sax.saxutils import escape

FONT_PX = 12
CHAR_PX = 7.2  # about as wide as a letter of the font gets
INK, PAPER, FAINT = "#1a1a1a", "#ffffff", "#e6e6e6"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of the picture, drawn from its own upper left corner."""

    width: float
    height: float
    marks: str

    def at(self, x: float, y: float) -> str:
        """The block moved to a place."""
        return f'<g transform="translate({x:.1f} {y:.1f})">\n{self.marks}</g>\n'


def clean(text: str) -> str:
    """Text that XML may hold, in ASCII; a character that XML forbids becomes a question mark."""
    allowed = "".join(char if _is_allowed(char) else "?" for char in text)
    return escape(allowed, {'"': "&quot;"}).encode("ascii", "xmlcharrefreplace").decode()


def group(marks: Iterable[str], *, title: str) -> str:
    """Marks that belong together; the title is read out and shown on hover."""
    return f"<g><title>{clean(title)}</title>{''.join(marks)}</g>\n"


def rect(x: float, y: float, *, size: tuple[float, float], fill: str, stroke: str = PAPER) -> str:
    """A filled box with a thin border."""
    width, height = size
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )


def frame(x: float, y: float, *, size: tuple[float, float], stroke: str) -> str:
    """A thick border around a box, drawn inside it."""
    width, height = size
    return (
        f'<rect x="{x + 1.5:.1f}" y="{y + 1.5:.1f}" width="{width - 3:.1f}" '
        f'height="{height - 3:.1f}" fill="none" stroke="{stroke}" stroke-width="3"/>'
    )


def line(start: tuple[float, float], end: tuple[float, float], *, stroke: str, width: float) -> str:
    """A straight line."""
    (x1, y1), (x2, y2) = start, end
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{stroke}" stroke-width="{width:g}"/>'
    )


def dot(x: float, y: float, *, radius: float, fill: str) -> str:
    """A filled circle."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}"/>'


def label(
    x: float, y: float, words: str, *, anchor: str = "start", fill: str = INK, bold: bool = False
) -> str:
    """One line of text; y is its middle."""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y + FONT_PX * 0.35:.1f}" text-anchor="{anchor}" '
        f'fill="{fill}"{weight}>{clean(words)}</text>'
    )


def page(blocks: Iterable[Block], *, title: str, description: str) -> str:
    """The blocks under each other as one document that ends in a newline."""
    margin, gap = 16.0, 20.0
    y, width, parts = margin, 0.0, list[str]()
    for block in blocks:
        parts.append(block.at(margin, y))
        y += block.height + gap
        width = max(width, block.width)
    width, height = width + 2 * margin, y - gap + margin
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'font-family="sans-serif" font-size="{FONT_PX}">\n'
        f"<title>{clean(title)}</title>\n<desc>{clean(description)}</desc>\n"
        f'<rect width="100%" height="100%" fill="{PAPER}"/>\n{"".join(parts)}</svg>\n'
    )


def _is_allowed(char: str) -> bool:
    """The characters of XML 1.0."""
    code = ord(char)
    return char in "\t\n\r" or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code > 0xFFFF
