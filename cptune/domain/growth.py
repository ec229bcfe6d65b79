"""How memory grows with the sequence, and which length to try next; pure arithmetic.

An attention that writes its scores grows with the square of the sequence, a fused one with the
sequence: the slope of bytes over tokens, both as logarithms, tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log

#: The growth is that of the long end: lengths down to this share of the longest.
_LONG_END = 0.25
_LEAST_RATIO = 1.4  # between the longest and the shortest that a slope is read from
#: From here on scores are more than half of what grows.
SUSPICIOUS_EXPONENT = 1.6
_MOST_GROWTH = 4  # times the longest length that fitted, from one try to the next


def exponent(points: Iterable[tuple[int, int]]) -> float | None:
    """The slope of log(bytes) over log(tokens), least squares over the long end.

    Args:
        points: (tokens, bytes that depend on tokens).

    Returns:
        The exponent; None with fewer than two lengths far enough apart to tell.
    """
    known = {tokens: size for tokens, size in points if size > 0}
    longest = max(known, default=0)
    used = {tokens: size for tokens, size in known.items() if tokens >= longest * _LONG_END}
    if len(used) < 2 or longest < _LEAST_RATIO * min(used):
        return None
    xs, ys = [log(tokens) for tokens in used], [log(size) for size in used.values()]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSearch:
    """Finds the longest sequence that fits, to within `granule`, in few tries.

    Args:
        capacity_bytes: What the peak must not exceed.
        granule: Lengths tried are multiples of it.
        most: No length above it is tried.
    """

    capacity_bytes: int
    granule: int
    most: int

    def next_length(self, known: Mapping[int, int | None]) -> int | None:
        """The next length to try; None when the longest is known.

        Args:
            known: Peak bytes by tokens; None where it ran out of memory.
        """
        fits = sorted(tokens for tokens, peak in known.items() if self._is_in(peak))
        misses = sorted(tokens for tokens, peak in known.items() if not self._is_in(peak))
        if not fits:
            return self._shorter(misses[0]) if misses else self.granule
        low, high = fits[-1], misses[0] if misses else self._step_up(fits[-1])
        if high - low <= self.granule:
            return None if misses or low >= self.most else self._round(self.most, above=low)
        guess = self._round(self._reach(fits, known), above=low)
        # A guess outside the bracket, or next to what it was made from, has nothing more to say.
        adjacent = len(fits) > 1 and fits[-1] - fits[-2] <= self.granule
        if guess >= high or (adjacent and guess == low + self.granule):
            guess = self._round((low + high) / 2, above=low) if misses else high
        return guess if guess not in known else None

    def longest(self, known: Mapping[int, int | None]) -> int | None:
        """The longest length that fitted; None when none did."""
        return max((tokens for tokens, peak in known.items() if self._is_in(peak)), default=None)

    def _is_in(self, peak: int | None) -> bool:
        return peak is not None and peak <= self.capacity_bytes

    def _shorter(self, shortest_miss: int) -> int | None:
        half = shortest_miss // 2 // self.granule * self.granule
        return max(half, self.granule) if shortest_miss > self.granule else None

    def _step_up(self, low: int) -> int:
        return min(_MOST_GROWTH * low, self.most) // self.granule * self.granule

    def _reach(self, fits: list[int], known: Mapping[int, int | None]) -> float:
        """Where the line through the two longest that fitted meets the capacity."""
        longest, peak = fits[-1], known[fits[-1]] or 0
        before = fits[-2] if len(fits) > 1 else 0
        base = (known[before] or 0) if before else 0
        slope = (peak - base) / (longest - before)
        return longest + (self.capacity_bytes - peak) / slope if slope > 0 else float(self.most)

    def _round(self, tokens: float, *, above: int) -> int:
        """A multiple of the granule, not above `most`, and beyond `above`."""
        whole = int(min(tokens, self.most)) // self.granule * self.granule
        return max(whole, (above // self.granule + 1) * self.granule)
