"""What a memory curve tries: lengths, degrees, and the candidate of each degree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cptune.domain.asked import CurveAsked
from cptune.domain.candidate import Candidate, ulysses_degrees
from cptune.domain.checks import MOST_TOKENS
from cptune.domain.curve import CurveGrid, CurveRow
from cptune.domain.growth import LengthSearch
from cptune.domain.layout import ParallelLayout
from cptune.domain.study import SweepSpec, TraceKind
from cptune.domain.workload import divisors
from cptune.errors import SpecError

#: A peak is the same in every step after the first; the time needs a few.
_WARMUP_STEPS, _STEPS = 1, 3
_GRANULES = 8  # in the shortest length asked for
_MOST_GROWTH = 64  # times the longest length asked for


class CurvePlan:
    """The lengths, the degrees and the candidate of each, from a resolved spec.

    Raises:
        SpecError: when a length or a degree cannot be used.
    """

    def __init__(self, spec: SweepSpec, asked: CurveAsked) -> None:
        self.spec = spec
        own = spec.workload.seq_len
        parts = {max(1, own // 4), max(1, own // 2), own}
        self.grid = CurveGrid(
            seq_lens=tuple(_numbers("--seq-lens", asked.seq_lens) or sorted(parts)),
            cp=tuple(_numbers("--cp", asked.cp) or sorted({*spec.axes.cp})),
        )
        if odd := self._no_divisors(_numbers("--cp", asked.cp)):
            raise SpecError(f"--cp {odd}")

    def why_not(self, grid: CurveGrid) -> list[str]:
        """Everything for which the ranks cannot try a grid that was not asked on this start."""
        odd = self._no_divisors(grid.cp)
        return [f"cp {odd}"] if odd else []

    def _no_divisors(self, cps: Iterable[int]) -> str:
        ranks = divisors(self.spec.cluster.world_size or 1)
        odd = ", ".join(str(cp) for cp in cps if cp not in ranks)
        return f"has {odd}; wanted a divisor of {ranks[-1]} ranks: {ranks}" if odd else ""

    @property
    def granule(self) -> int:
        """Lengths closer than this are not told apart."""
        return max(1, self.grid.seq_lens[0] // _GRANULES)

    def at(self, seq_len: int) -> SweepSpec:
        """The spec at another length, with the few steps that a curve needs."""
        spec = self.spec
        return replace(
            spec,
            workload=replace(spec.workload, seq_len=seq_len),
            budget=replace(
                spec.budget,
                warmup_steps=_WARMUP_STEPS,
                steps=_STEPS,
                max_steps=_STEPS,
                trace=TraceKind.OFF,
            ),
        )

    def search(self, capacity_bytes: int) -> LengthSearch:
        """The search for the longest length of one degree."""
        most = self.grid.seq_lens[-1] * _MOST_GROWTH // self.granule * self.granule
        return LengthSearch(capacity_bytes=capacity_bytes, granule=self.granule, most=most)

    def candidate(self, cp: int) -> Candidate:
        """The baseline's layout, or the first values of the axes, at one degree; dp is the rest."""
        axes, given = self.spec.axes, self.spec.baseline
        tp, pp = given.tp or axes.tp[0], given.pp or axes.pp[0]
        strategy = axes.strategy[0]
        ulysses = next(iter(ulysses_degrees(strategy, cp)), 1)
        layout = ParallelLayout(
            tp=tp,
            cp=cp,
            pp=pp,
            vpp=axes.vpp[0],
            dp=max(1, (self.spec.cluster.world_size or 1) // (tp * cp * pp)),
            ulysses=ulysses,
        )
        return Candidate(
            layout=layout,
            sharding=axes.sharding[0],
            strategy=strategy,
            stages=(axes.stages[0] if axes.stages else layout.ring - 1) if layout.ring > 1 else 0,
            micro_batch=given.micro_batch or axes.micro_batch[0],
            recompute=axes.recompute[0],
            loss=axes.loss[0],
            data_parallel=axes.data_parallel[0],
        ).canonical()


def why_not_of(grid: CurveGrid, rows: Sequence[CurveRow]) -> list[str]:
    """Everything for which the rows of a curve cannot have come from a grid.

    Each degree tries the lengths of the grid, ascending, up to the first that gives no figure.
    """
    wrong: list[str] = []
    by_degree: dict[int, list[CurveRow]] = {}
    for row in rows:
        by_degree.setdefault(row.cp, []).append(row)
    for cp, own in by_degree.items():
        if cp not in grid.cp:
            wrong.append(f"cp has no {cp}, of which there are rows")
            continue
        for row, wanted in zip(own, grid.seq_lens, strict=False):
            if row.seq_len != wanted:
                wrong.append(f"seq_lens has {wanted} where the rows of CP={cp} have {row.seq_len}")
                break
            if row.measurement is None:
                break
    return wrong


def _numbers(word: str, text: str) -> list[int]:
    """Whole numbers above 0 of a list like 1024,2048, ascending, each once.

    Raises:
        SpecError: when it holds anything else.
    """
    try:
        found = sorted({int(part) for part in text.split(",")}) if text.strip() else []
    except ValueError:
        raise SpecError(f"{word} is {text!r}; wanted whole numbers, as in 1024,2048") from None
    if found and found[0] < 1:
        raise SpecError(f"{word} has {found[0]}; wanted 1 or more")
    if found and found[-1] > MOST_TOKENS:
        raise SpecError(f"{word} has {found[-1]}; wanted {MOST_TOKENS} or less")
    return found
