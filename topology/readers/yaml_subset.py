"""The part of YAML that topology files use: maps, lists, plain and quoted words, comments.

No anchors, tags, multi-line text or several documents: those are refused with their line.
"""

import re
from dataclasses import dataclass

from topology.readers.reading import SourceText

Yaml = dict[str, "Yaml"] | list["Yaml"] | str | None
_MOST_DEPTH = 40
_KEY = re.compile(
    r"(\"[^\"]*\"|'[^']*'|[^\s\[\]{},:#&*!|>'\"%@`-][^:#]*?|-[^\s:]+)\s*:(?:\s+(.*))?$"
)
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_ITEM = re.compile(r"\s*(?:\"[^\"]*\"|'[^']*'|[^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)*)")
_REFUSED = ("&", "*", "!", "|", ">", "%", "@", "`")


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    indent: int
    text: str


def read_yaml(source: SourceText) -> Yaml:
    """The document as dicts, lists, text and None.

    Raises:
        TopologyError: Anything outside the subset; the message names the line.
    """
    lines = [
        _Line(number, len(bare) - len(bare.lstrip(" ")), bare.strip())
        for number, raw in enumerate(source.lines, start=1)
        if (bare := _without_comment(raw).rstrip()).strip() not in {"", "---", "..."}
    ]
    for line in lines:
        if "\t" in source.lines[line.number - 1][: line.indent + 1]:
            raise source.refusal(f"line {line.number}", saw="a tab", wanted="spaces to indent")
    reader = _Reader(source, lines)
    value = reader.block(lines[0].indent if lines else 0, depth=0)
    if reader.at < len(lines):
        raise reader.wrong("the indentation of the lines above")
    return value


def _without_comment(text: str) -> str:
    if "#" not in text:
        return text
    if '"' not in text and "'" not in text:
        return _COMMENT.sub("", text)
    quote = ""
    for place, sign in enumerate(text):
        if sign in "\"'" and not quote:
            quote = sign
        elif sign == quote:
            quote = ""
        elif sign == "#" and not quote and text[:place].rstrip(" \t") != text[:place]:
            return text[:place]
    return text


@dataclass(slots=True)
class _Reader:
    source: SourceText
    lines: list[_Line]
    at: int = 0

    def wrong(self, wanted: str) -> Exception:
        line = self.lines[min(self.at, len(self.lines) - 1)]
        return self.source.refusal(f"line {line.number}", saw=line.text, wanted=wanted)

    def block(self, indent: int, *, depth: int) -> Yaml:
        if self.at >= len(self.lines):
            return None
        if depth > _MOST_DEPTH:
            raise self.wrong(f"at most {_MOST_DEPTH} levels")
        if self.lines[self.at].text.startswith(("- ", "-")) and self._is_item():
            return self._list(indent, depth=depth)
        return self._map(indent, depth=depth)

    def _is_item(self) -> bool:
        text = self.lines[self.at].text
        return text == "-" or text.startswith("- ")

    def _list(self, indent: int, *, depth: int) -> Yaml:
        items: list[Yaml] = []
        while (
            self.at < len(self.lines) and self.lines[self.at].indent == indent and self._is_item()
        ):
            line = self.lines[self.at]
            rest = line.text[1:].lstrip()
            if not rest:
                self.at += 1
                items.append(self._below(indent, depth=depth))
            elif _KEY.match(rest):
                inner = indent + len(line.text) - len(rest)
                self.lines[self.at] = _Line(line.number, inner, rest)
                items.append(self._map(inner, depth=depth + 1))
            else:
                items.append(self._scalar(rest))
                self.at += 1
        return items

    def _map(self, indent: int, *, depth: int) -> Yaml:
        if depth > _MOST_DEPTH:
            raise self.wrong(f"at most {_MOST_DEPTH} levels")
        found: dict[str, Yaml] = {}
        while self.at < len(self.lines) and self.lines[self.at].indent == indent:
            match = _KEY.match(self.lines[self.at].text)
            if match is None or self._is_item():
                raise self.wrong("`key: value`")
            key, rest = match.group(1).strip("\"'"), (match.group(2) or "").strip()
            if key in found:
                raise self.wrong(f"the key {key!r} once")
            if rest:
                found[key] = self._scalar(rest)
                self.at += 1
            else:
                self.at += 1
                found[key] = self._below(indent, depth=depth)
        return found

    def _below(self, indent: int, *, depth: int) -> Yaml:
        """The block of a key or item: deeper, or a list at the same depth as its key."""
        if self.at >= len(self.lines):
            return None
        deeper = self.lines[self.at].indent
        if deeper > indent or (deeper == indent and self._is_item()):
            return self.block(deeper, depth=depth + 1)
        return None

    def _scalar(self, text: str) -> Yaml:
        if text.startswith(_REFUSED):
            raise self.wrong("a plain word, number, quoted text or [list]")
        if text.startswith("["):
            return self._inline(text)
        if text == "{}":
            return {}
        if text.startswith("{") or (text[0] in "\"'" and (len(text) < 2 or text[-1] != text[0])):
            raise self.wrong("a plain word, number, quoted text or [list]")
        return text[1:-1] if text[0] in "\"'" else text

    def _inline(self, text: str) -> Yaml:
        if not text.endswith("]"):
            raise self.wrong("a list that ends on its line")
        parts = _ITEM.findall(text[1:-1])
        return [part.strip().strip("\"'") for part in parts if part.strip()]
