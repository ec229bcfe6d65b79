"""Memory and time by sequence length and CP degree, and what they say about where CP helps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cptune.domain.candidate import Candidate
from cptune.domain.growth import SUSPICIOUS_EXPONENT, exponent
from cptune.domain.memory import MemorySplit
from cptune.domain.outcome import Failure, Measurement, MemoryShortage, OutcomeKind

BASELINE = 1  # the CP degree that the others are compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveGrid:
    """What a curve is asked: these lengths of these degrees, each ascending; then it bisects."""

    seq_lens: tuple[int, ...]
    cp: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRow:
    """One length at one degree, tried once. Sizes are those of the worst rank."""

    seq_len: int
    candidate: Candidate
    outcome: Measurement | Failure

    @property
    def cp(self) -> int:
        """The degree."""
        return self.candidate.layout.cp

    @property
    def kind(self) -> OutcomeKind:
        """The outcome in one word."""
        return self.outcome.kind if isinstance(self.outcome, Failure) else OutcomeKind.MEASURED

    @property
    def measurement(self) -> Measurement | None:
        """The measurement, where there is one."""
        return self.outcome if isinstance(self.outcome, Measurement) else None

    @property
    def peak_bytes(self) -> int | None:
        """The highest peak; None where there is none."""
        return None if self.measurement is None else self.measurement.peak_allocated_bytes

    @property
    def split(self) -> MemorySplit | None:
        """What the peak was made of."""
        return None if self.measurement is None else self.measurement.memory

    @property
    def shortage(self) -> MemoryShortage | None:
        """The allocation that failed, where memory ran out."""
        return self.outcome.shortage if isinstance(self.outcome, Failure) else None

    @property
    def reason(self) -> str:
        """What went wrong; empty for a measurement."""
        return self.outcome.message if isinstance(self.outcome, Failure) else ""

    def to_json(self) -> dict[str, object]:
        """The row as `cptune curve` prints it; what was not measured is null."""
        seen = self.measurement
        return {
            "cp": self.cp,
            "seq_len": self.seq_len,
            "peak_bytes": self.peak_bytes,
            "forward_peak_bytes": None if seen is None else seen.forward_peak_bytes,
            "backward_peak_bytes": None if seen is None else seen.backward_peak_bytes,
            "allocated_bytes": self.peak_bytes,
            "reserved_bytes": None if seen is None else seen.peak_reserved_bytes,
            "outcome": self.kind.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """All rows of one study, by degree and length.

    Args:
        capacity_bytes: What a device holds.
        granule: Two lengths closer than this were not told apart.
        rows: In any order.
    """

    capacity_bytes: int
    granule: int
    rows: tuple[CurveRow, ...]

    @property
    def cps(self) -> list[int]:
        """The degrees, ascending."""
        return sorted({row.cp for row in self.rows})

    def of(self, cp: int) -> list[CurveRow]:
        """The rows of one degree by length."""
        return sorted((row for row in self.rows if row.cp == cp), key=lambda row: row.seq_len)

    def exponent(self, cp: int) -> float | None:
        """How what is no state grows with the sequence: 1 is a line, 2 a square."""
        return exponent(
            (row.seq_len, row.split.peak_bytes - row.split.states_bytes)
            for row in self.of(cp)
            if row.split is not None
        )

    def longest_fitting(self, cp: int) -> int | None:
        """The longest length that was run within the capacity; None when none was."""
        return max((row.seq_len for row in self.of(cp) if self._fits(row)), default=None)

    def shortest_helping(self) -> int | None:
        """The shortest length at which CP=1 ran out of memory and another degree fits."""
        most = max((self.longest_fitting(cp) or 0 for cp in self.cps if cp != BASELINE), default=0)
        misses = (
            row.seq_len
            for row in self.of(BASELINE)
            if row.kind is OutcomeKind.OUT_OF_MEMORY and row.seq_len <= most
        )
        return min(misses, default=None)

    def shortest_faster(self) -> int | None:
        """The shortest length at which a degree is faster than CP=1, beyond the spread of both.

        Its 90th percentile lies below the 10th of CP=1: steps that overlap decide nothing.
        """
        baseline = {row.seq_len: row.measurement for row in self.of(BASELINE)}
        found = [
            row.seq_len
            for row in self.rows
            if row.cp != BASELINE and _is_faster(row.measurement, baseline.get(row.seq_len))
        ]
        return min(found, default=None)

    def warnings(self) -> list[str]:
        """What a reader must know before believing the figures."""
        found = [
            f"what grows with the sequence at CP={cp} grows with its power {power:.2f}: "
            "an attention that writes its scores is suspected"
            for cp in self.cps
            if (power := self.exponent(cp)) is not None and power >= SUSPICIOUS_EXPONENT
        ]
        odd = (row for row in self.rows if row.kind not in _EXPECTED)
        return found + [
            f"CP={row.cp} at {row.seq_len} tokens: {row.kind}: {row.reason}" for row in odd
        ]

    def to_json(self) -> dict[str, object]:
        """As `cptune curve --format json` prints it."""
        return {
            "rows": [row.to_json() for cp in self.cps for row in self.of(cp)],
            "exponent": {str(cp): self.exponent(cp) for cp in self.cps},
            "longest_fitting_seq_len": {str(cp): self.longest_fitting(cp) for cp in self.cps},
            "shortest_helping_seq_len": {
                "fits": self.shortest_helping(),
                "faster": self.shortest_faster(),
            },
        }

    def _fits(self, row: CurveRow) -> bool:
        return row.peak_bytes is not None and row.peak_bytes <= self.capacity_bytes


_EXPECTED = frozenset({OutcomeKind.MEASURED, OutcomeKind.OUT_OF_MEMORY})


def peaks_by_length(rows: Iterable[CurveRow]) -> dict[int, int | None]:
    """Peak bytes by tokens as a `LengthSearch` reads them; None where memory ran out."""
    return {row.seq_len: row.peak_bytes for row in rows if row.kind in _EXPECTED}


def _is_faster(seen: Measurement | None, baseline: Measurement | None) -> bool:
    return seen is not None and baseline is not None and seen.step_p90_s < baseline.step_p10_s
