"""The rings NCCL says it made; its ring lines stop at 20 ranks, the edge lines tell the rest."""

from dataclasses import dataclass, field

_SHOWN = 64  # ranks of a ring in a note


@dataclass(slots=True)
class Rings:
    """Ring lines and edge lines of one job."""

    lines: dict[int, list[int]] = field(default_factory=dict)
    after: dict[int, dict[int, int]] = field(default_factory=dict)  # channel -> rank -> next
    nets: dict[tuple[int, int], dict[str, str]] = field(default_factory=dict)

    def add_line(self, channel: int, ranks: list[int]) -> None:
        """A `Channel 00/04 : 0 1 2 ...` line; the longest of a channel stands."""
        if len(ranks) > len(self.lines.get(channel, [])):
            self.lines[channel] = ranks

    def add_edge(self, channel: int, a: int, b: int, *, via: str, way: str) -> None:
        """A `Channel 00 : a -> b via` line; rings are joined before trees, so the first counts."""
        self.after.setdefault(channel, {}).setdefault(a, b)
        if via.startswith("NET"):
            self.nets.setdefault((a, b), {}).setdefault(way, via)

    def told(self) -> list[str]:
        """Notes: each ring in rank order, and the edges that leave a node."""
        shown: dict[str, list[int]] = {}
        for channel, ranks in sorted(self.lines.items()):
            whole = self._followed(channel, ranks)
            text = " ".join(map(str, whole[:_SHOWN])) + (" ..." if len(whole) > _SHOWN else "")
            if whole != ranks:
                text += " (the line is cut; the rest is from its edges)"
            shown.setdefault(text, []).append(channel)
        notes = [
            f"ring of ranks, channel {', '.join(f'{c:02d}' for c in channels)}: {text}"
            for text, channels in shown.items()
        ]
        for (a, b), ways in sorted(self.nets.items()):
            text = ", ".join(f"{way} via {via}" for way, via in sorted(ways.items()))
            notes.append(f"edge {a} -> {b}: {text}")
        return notes

    def _followed(self, channel: int, ranks: list[int]) -> list[int]:
        after = self.after.get(channel, {})
        whole = list(ranks)
        seen = set(whole)
        while (following := after.get(whole[-1])) is not None and following not in seen:
            whole.append(following)
            seen.add(following)
        return whole if after.get(whole[-1]) == whole[0] else ranks
