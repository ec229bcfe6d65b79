"""Host ranges as Slurm writes them: node[001-004,9],login, rack[0-1]n[0-3]."""

import re

from topology.errors import TopologyError

MOST_HOSTS = 200_000
_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")


def expand_hosts(text: str) -> list[str]:
    """All names, in the order written.

    Raises:
        TopologyError: Brackets or a range that are wrong, or more names than any cluster has.
    """
    hosts: list[str] = []
    for part in _split(text):
        hosts += _expand(part, room=MOST_HOSTS - len(hosts))
    return hosts


def _split(text: str) -> list[str]:
    """The parts between commas that are outside brackets."""
    parts = [""]
    depth = 0
    for sign in text:
        depth += (sign == "[") - (sign == "]")
        if depth not in (0, 1):
            raise TopologyError(f"saw {text[:80]!r}, wanted brackets in pairs, as node[0-3]")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    if depth:
        raise TopologyError(f"saw {text[:80]!r}, wanted a closing bracket, as node[0-3]")
    return [part.strip() for part in parts if part.strip()]


def _expand(part: str, *, room: int) -> list[str]:
    names = [""]
    for fixed, inner in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", part):
        endings = [fixed] if fixed else _numbers(inner, part=part, room=room)
        if len(names) * len(endings) > room:
            raise TopologyError(f"saw {part[:80]!r}, wanted at most {MOST_HOSTS} names")
        names = [name + ending for name in names for ending in endings]
    if any(re.search(r"\s|=", name) for name in names[:1]):
        raise TopologyError(f"saw {part[:80]!r}, wanted host names")
    return names


def _numbers(inner: str, *, part: str, room: int) -> list[str]:
    found: list[str] = []
    for piece in inner.split(","):
        match = _RANGE.fullmatch(piece.strip())
        if match is None:
            raise TopologyError(f"saw {part[:80]!r}, wanted a range as node[0-3,7]")
        first, last = int(match.group(1)), int(match.group(2) or match.group(1))
        if last < first or last - first >= room:
            wanted = f"a rising range of at most {MOST_HOSTS} names"
            raise TopologyError(f"saw {part[:80]!r}, wanted {wanted}")
        width = len(match.group(1))
        found += [str(number).zfill(width) for number in range(first, last + 1)]
    return found
