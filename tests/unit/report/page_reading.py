"""A page read as a browser without scripts reads it."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "input", "br", "link", "img"}
LOADING = {"src", "href", "action", "data", "poster", "srcset", "xlink:href"}


@dataclass
class Page(HTMLParser):
    """Its text by section, its tables, its scripts, and what it would load."""

    text: str
    tables: list[list[list[str]]] = field(default_factory=list)
    scripts: list[tuple[str | None, str]] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    handlers: list[str] = field(default_factory=list)
    policy: str = ""
    sections: dict[str, str] = field(default_factory=dict)
    unbalanced: list[str] = field(default_factory=list)

    def __post_init__(self):
        super().__init__(convert_charrefs=True)
        self._open, self._section, self._kind = [], "", None
        self.feed(self.text)
        self.close()
        self.unbalanced += self._open

    def handle_starttag(self, tag, attrs):
        told = dict(attrs)
        self.loads += [v for k, v in attrs if k in LOADING and not (v or "").startswith("#")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if told.get("http-equiv") == "Content-Security-Policy":
            self.policy = told["content"]
        if tag == "section":
            self._section = told["id"]
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag == "script":
            self.scripts.append((told.get("type"), ""))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.loads += [v for k, v in attrs if k in LOADING]

    def handle_endtag(self, tag):
        if not self._open or self._open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data):
        if "script" in self._open:
            kind, before = self.scripts[-1]
            self.scripts[-1] = (kind, before + data)
            return
        if self._open and self._open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data
        if self._section and "style" not in self._open:
            self.sections[self._section] = self.sections.get(self._section, "") + data

    def table(self, *columns: str) -> list[dict[str, str]]:
        """The rows of the first table that has these columns."""
        found = next(rows for rows in self.tables if set(columns) <= set(rows[0]))
        return [dict(zip(found[0], row, strict=True)) for row in found[1:]]
