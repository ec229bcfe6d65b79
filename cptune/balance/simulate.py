"""Steps of training counted out: documents into rows, rows onto context groups, work per group."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from cptune.balance.asked import Packing, Split
from cptune.balance.pack import StepCutter, cut_rows, cut_stream, pack
from cptune.balance.spread import SpreadMeter
from cptune.balance.work import Reals, Tokens, Work, rank_work
from cptune.domain.checks import MOST_RANKS, MOST_TOKENS
from cptune.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Equal hardware and equal global tokens for every CP.

    Args:
        world: Ranks of the job, of one data-parallel step: dp x cp.
        tokens_per_gpu: Tokens of one rank; a row holds cp times as many.
        cps: Sizes of a context group; each divides `world`.
        work: The cost of a document.
        split: How a row goes over the ranks of its group.
    """

    world: int
    tokens_per_gpu: int
    cps: tuple[int, ...]
    work: Work = field(default_factory=Work)
    split: Split = Split.DOCUMENT

    def __post_init__(self) -> None:
        limits = (
            ("world", self.world, MOST_RANKS),
            ("tokens-per-gpu", self.tokens_per_gpu, MOST_TOKENS),
        )
        for name, value, most in limits:
            if not 1 <= value <= most:
                raise SpecError(f"{name} is {value}; wanted 1 to {most:,}")
        if not self.cps:
            raise SpecError("cp is empty; wanted sizes like 1,2,4,8")
        for cp in self.cps:
            if cp < 1 or self.world % cp:
                near = [size for size in range(1, self.world + 1) if self.world % size == 0]
                near.sort(key=lambda size: (abs(size - cp), size))
                raise SpecError(
                    f"cp is {cp}; wanted a divisor of world = {self.world}; nearest is {near[0]}"
                )

    @property
    def step_tokens(self) -> int:
        """Tokens of all groups together."""
        return self.world * self.tokens_per_gpu


def parse_cps(text: str) -> tuple[int, ...]:
    """Sizes of a context group from a text like 1,2,4,8, ascending.

    Raises:
        SpecError: when a part is no whole number.
    """
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError as exc:
        raise SpecError(f"cp is {text!r}; wanted whole numbers like 1,2,4,8") from exc


class Simulation:
    """Takes the stream of documents and keeps the spread of every CP.

    Args:
        setting: The hardware and the batch.
        packing: Which documents share a row.
        max_steps: Steps after which the stream is no longer looked at; None for all.
        work: What is counted; the setting's own, by which rows are packed, if omitted.
    """

    def __init__(
        self,
        setting: Setting,
        packing: Packing,
        *,
        max_steps: int | None = None,
        work: Work | None = None,
    ) -> None:
        self.setting, self.packing = setting, packing
        self._counted = replace(setting, work=work or setting.work)
        self._left = max_steps
        self._cutter = StepCutter(setting.step_tokens)
        self.meters = {cp: SpreadMeter() for cp in setting.cps}

    @property
    def steps(self) -> int:
        """Steps simulated so far."""
        return next(iter(self.meters.values())).steps

    @property
    def is_done(self) -> bool:
        """Whether `max_steps` were simulated."""
        return self._left == 0

    def feed(self, documents: Tokens) -> None:
        """Take more of the stream."""
        if self._left == 0:
            return
        ready = self._cutter.feed(documents)
        if ready is None:
            return
        if self._left is not None:
            steps = min(self._left, int(ready.sum()) // self.setting.step_tokens)
            ready, _ = cut_stream(ready, steps * self.setting.step_tokens)
            self._left -= steps
        if self.packing is Packing.SEQUENTIAL and self.setting.split is Split.DOCUMENT:
            for cp, times in sequential_times(ready, setting=self._counted).items():
                self.meters[cp].add(times)
        else:
            self._add_packed(ready)

    def _add_packed(self, documents: Tokens) -> None:
        setting, work = self.setting, self._counted.work
        pieces, counts = cut_rows(documents, row_tokens=setting.step_tokens)
        for step in np.split(pieces, np.cumsum(counts)[:-1]):
            for cp, meter in self.meters.items():
                packed, in_row = pack(
                    step,
                    rows=setting.world // cp,
                    row_tokens=cp * setting.tokens_per_gpu,
                    packing=self.packing,
                    work=setting.work,
                )
                ranks = rank_work(packed, in_row, cp=cp, split=setting.split, work=work)
                meter.add(ranks.max(axis=1)[None], even=ranks.mean()[None])


def sequential_times(documents: Tokens, *, setting: Setting) -> dict[int, Reals]:
    """Time of every group under sequential packing, every document over all ranks of its group.

    No piece is written down: a row is the whole documents inside it, by a difference of running
    sums, and what it cuts at both ends. Cuts of CP=1 hold those of every other CP.

    Args:
        documents: Of whole steps.
        setting: The hardware and the batch.

    Returns:
        By CP: one line a step, one column a group.
    """
    tokens, work = setting.tokens_per_gpu, setting.work
    ends = np.cumsum(documents)
    before = np.concatenate([[0.0], np.cumsum(work.of(documents))])
    cuts = np.arange(ends[-1] // tokens + 1) * tokens
    begun = np.searchsorted(ends, cuts, side="right")  # the document of the token after each cut
    at_end = ends[np.maximum(begun - 1, 0)] == cuts
    ended = begun - (at_end & (begun > 0))  # the document of the token before each cut
    found = {}
    for cp in setting.cps:
        first, last = begun[:-1:cp], ended[cp::cp]
        start, stop = cuts[:-1:cp], cuts[cp::cp]
        head = np.minimum(ends[first], stop) - start
        tail = np.maximum(stop - np.concatenate([[0], ends])[last], 0)
        inside = before[last] - before[np.minimum(first + 1, last)]
        rows = work.of(head) + np.where(first == last, 0.0, inside + work.of(tail))
        found[cp] = rows.reshape(-1, setting.world // cp) / cp
    return found
