"""A small, closed XML reader: elements with line numbers, no entities, no external files."""

from dataclasses import dataclass, field
from xml.parsers import expat

from topology.readers.reading import SourceText

_MOST_ELEMENTS = 200_000
_MOST_DEPTH = 64


@dataclass(slots=True)
class Element:
    """One element."""

    tag: str
    facts: dict[str, str]
    line: int
    children: list["Element"] = field(default_factory=list)
    text: str = ""

    def every(self, tag: str) -> list["Element"]:
        """All elements of this tag below, in document order."""
        found: list[Element] = []
        waiting = list(reversed(self.children))
        while waiting:
            element = waiting.pop()
            if element.tag == tag:
                found.append(element)
            waiting += reversed(element.children)
        return found


@dataclass(slots=True)
class _Builder:
    source: SourceText
    parser: expat.XMLParserType
    allow_doctype: bool
    root: Element = field(default_factory=lambda: Element("", {}, 0))
    stack: list[Element] = field(default_factory=list)
    count: int = 0

    def start(self, tag: str, facts: dict[str, str]) -> None:
        self.count += 1
        place = f"line {self.parser.CurrentLineNumber}, element {tag}"
        if self.count > _MOST_ELEMENTS or len(self.stack) > _MOST_DEPTH:
            wanted = f"at most {_MOST_ELEMENTS} elements, {_MOST_DEPTH} deep"
            raise self.source.refusal(place, saw="more", wanted=wanted)
        element = Element(tag, facts, self.parser.CurrentLineNumber)
        self.stack[-1].children.append(element)
        self.stack.append(element)

    def end(self, _tag: str) -> None:
        self.stack.pop()

    def data(self, text: str) -> None:
        self.stack[-1].text += text

    def doctype(self, name: str, system: str | None, _public: str | None, inner: int) -> None:
        if inner or not self.allow_doctype or not system or "/" in system:
            raise self.source.refusal(
                f"line {self.parser.CurrentLineNumber}",
                saw=f"<!DOCTYPE {name}",
                wanted="XML without a document type and entities",
            )

    def entity(self, name: str, *_facts: object) -> None:
        place = f"line {self.parser.CurrentLineNumber}"
        raise self.source.refusal(place, saw=f"<!ENTITY {name}", wanted="XML without entities")


def read_xml(source: SourceText, *, allow_doctype: bool = False) -> Element:
    """The root element.

    Args:
        source: The text.
        allow_doctype: Is a document type that only names a local file let through, unread?

    Raises:
        TopologyError: It is not well formed, too large, or has entities or a document type.
    """
    parser = expat.ParserCreate()
    parser.buffer_text = True
    builder = _Builder(source, parser, allow_doctype)
    builder.stack.append(builder.root)
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = builder.doctype
    parser.EntityDeclHandler = builder.entity
    text = source.text.lstrip()
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as exc:
        skipped = source.text[: len(source.text) - len(text)].count("\n")
        place = f"line {exc.lineno + skipped}, column {exc.offset + 1}"
        saw = expat.ErrorString(exc.code)
        raise source.refusal(place, saw=saw, wanted="well-formed XML") from exc
    return builder.root.children[0]
