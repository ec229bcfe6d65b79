"""What the ranks of a measurement are given and what they give back, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cptune.balance.asked import Packing
from cptune.balance.histogram import Histogram
from cptune.balance.pack import cut_stream, pack
from cptune.balance.simulate import Setting
from cptune.balance.spread import Spread, SpreadMeter
from cptune.balance.work import Reals, Tokens

RANKS = 4
_WORLD = 16  # ranks of the job that is sampled; the processes take turns at its rows
_STEPS = 3
_CALIBRATION = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048)  # tokens, the last where needed
_TOKENS = 1024  # of a rank: all lengths shrink alike until a rank has no more


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Sampled steps, packed for every CP.

    Args:
        rows: By CP: the documents of each row, step after step.
        steps: How many steps they are.
        scale: By how much the lengths were shrunk.
    """

    rows: Mapping[int, Sequence[Sequence[int]]]
    steps: int
    scale: float

    @property
    def longest(self) -> int:
        """Tokens of the longest document of rows and calibration."""
        longest = max(max(row) for rows in self.rows.values() for row in rows)
        return max(longest, _CALIBRATION[-2])

    @property
    def calibration(self) -> tuple[int, ...]:
        """Lengths of the documents that each rank times alone."""
        return tuple(tokens for tokens in _CALIBRATION if tokens <= self.longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One rank's seconds, by CP: of each row that it had a part in, and of single documents."""

    rows_s: Mapping[int, Mapping[int, float]]
    alone_s: Mapping[int, Mapping[int, float]]  # by tokens
    kernel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The spread of the same groups at one CP: measured, and summed from single documents."""

    cp: int
    dp: int
    measured: Spread
    counted: Spread
    correlation: float  # Pearson, over groups


def sample_batches(histogram: Histogram, *, setting: Setting, seed: int) -> Batches:
    """Some steps of documents, small enough for a CPU; CPs that four processes can form."""
    tokens = min(setting.tokens_per_gpu, _TOKENS)
    scale = tokens / setting.tokens_per_gpu
    need = _STEPS * _WORLD * tokens
    rng = np.random.default_rng(seed)
    drawn: list[Tokens] = []
    while sum(int(one.sum()) for one in drawn) < need:
        full = histogram.draw(1024, rng)
        drawn.append(np.maximum(1, np.rint(full * scale)).astype(np.int64))
    documents, _ = cut_stream(np.concatenate(drawn), need)
    rows: dict[int, list[list[int]]] = {}
    for cp in (cp for cp in setting.cps if RANKS % cp == 0):
        pieces, counts = pack(
            documents,
            rows=_STEPS * _WORLD // cp,
            row_tokens=cp * tokens,
            packing=Packing.SEQUENTIAL,
            work=setting.work,
        )
        rows[cp] = [one.tolist() for one in np.split(pieces, np.cumsum(counts)[:-1])]
    return Batches(rows=rows, steps=_STEPS, scale=scale)


def time_batches(batches: Batches) -> Timed:
    """This rank's part of every row, on a kernel of its device; collective over all ranks."""
    from cptune.balance.measure import time_rank

    return time_rank(batches)


def compare(batches: Batches, timed: Sequence[Timed]) -> list[Compared]:
    """Join what all ranks timed; a group is as slow as its slowest rank."""
    found = []
    for cp, rows in batches.rows.items():
        slowest = [max(one.rows_s[cp].get(row, 0.0) for one in timed) for row in range(len(rows))]
        alone_s = {
            tokens: float(np.median([one.alone_s[cp][tokens] for one in timed]))
            for tokens in batches.calibration
        }
        counted = [document_seconds(row, alone_s=alone_s).sum() for row in rows]
        by_step = np.array([slowest, counted]).reshape(2, batches.steps, -1)
        found.append(
            Compared(
                cp=cp,
                dp=by_step.shape[2],
                measured=_spread(by_step[0]),
                counted=_spread(by_step[1]),
                correlation=pearson(by_step[0].ravel(), by_step[1].ravel()),
            )
        )
    return found


def document_seconds(documents: Sequence[int], *, alone_s: Mapping[int, float]) -> Reals:
    """The time of each document, between those timed alone; longer ones by their square."""
    tokens = np.array(documents, dtype=np.float64)
    known, seconds = np.array(list(alone_s)), np.array(list(alone_s.values()))
    within = np.exp(np.interp(np.log(tokens), np.log(known), np.log(seconds)))
    return within * np.maximum(tokens / known[-1], 1.0) ** 2


def pearson(one: Reals, two: Reals) -> float:
    """Pearson's correlation; 1 where nothing varies."""
    if one.std() == 0 or two.std() == 0:
        return 1.0
    return float(np.corrcoef(one, two)[0, 1])


def _spread(times: Reals) -> Spread:
    meter = SpreadMeter()
    meter.add(times)
    return meter.spread()
