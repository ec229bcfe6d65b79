"""What no prediction can beat: published rows of one layout that do not agree with each other.

A row of the playbook is one step, nanotron's fourth (`NANOTRON_BENCHMARK` in its trainer.py), so
twins, which differ in the ZeRO stage alone or in nothing, tell how noisy one is. Two floors:
the oracle knows both times of a pair, and its ZeRO stages differ by what they cost at that size;
the omniscient knows every true time, measured under the noise of twins of the size, drawn again.
Kinder than any prediction to come: rows without a twin count as known, and what twins share, as
one setting of both, counts as no noise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from random import Random
from statistics import median

from bench.published import Published
from bench.record import Table
from cptune.domain.candidate import DataParallelKind, Recompute

Rank = Callable[[Sequence[float], Sequence[float]], float]
Tail = Callable[[Sequence[float]], float]

_DRAWS = 1000
_SEED = 20261130


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Of one number of GPUs: what ZeRO costs, as a factor, and logs of measured over true time."""

    sharded: float = 1.0
    drawn: tuple[float, ...] = (0.0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The least tail of the error and the greatest rank correlation of one group of rows.

    `drawn_*` are the 5th, 50th and 95th percentile over draws of the noise.
    """

    rows: int
    paired: int
    oracle_tail: float
    oracle_rank: float
    drawn_tail: tuple[float, float, float]
    drawn_rank: tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What the prediction comes to on the same rows, as it is and with the check of slow rows."""

    tail: float
    checked_tail: float
    rank: float
    checked_rank: float


def twins(rows: Sequence[Published]) -> list[list[Published]]:
    """Rows of one size that are one layout but for the ZeRO stage."""
    found: dict[tuple[object, ...], list[Published]] = defaultdict(list)
    for one in rows:
        plain = replace(one.candidate, data_parallel=DataParallelKind.DDP, recompute=Recompute.NONE)
        found[one.model, one.world_size, plain.key].append(one)
    return [pair for pair in found.values() if len(pair) > 1]


def noise_of(rows: Sequence[Published]) -> dict[int, Noise]:
    """What twins say of each number of GPUs.

    The ZeRO stage costs the median of the pairs; what remains two rows share, so that each has a
    part by the square root of two, either way.
    """
    logs: dict[int, list[float]] = defaultdict(list)
    for pair in twins(rows):
        plain, other = sorted(pair, key=_is_sharded)[:2]
        logs[plain.world_size].append(log(other.step_s / plain.step_s))
    found = dict[int, Noise]()
    for world, values in logs.items():
        own = median(values)
        drawn = tuple(sign * (one - own) / sqrt(2) for one in values for sign in (1, -1))
        found[world] = Noise(sharded=exp(own), drawn=drawn)
    return found


def floor_of(
    rows: Sequence[Published], noise: dict[int, Noise], *, rank: Rank, tail: Tail
) -> Floor:
    """Both floors of a group.

    Args:
        rows: Of one workload, or of many.
        noise: `noise_of` all rows of the source.
        rank: Rank correlation of two sequences.
        tail: The percentile of the errors, of predicted over measured.
    """
    said = _oracle(rows, noise)
    real = [one.step_s for one in rows]
    random, tails, ranks = Random(_SEED), list[float](), list[float]()
    for _ in range(_DRAWS):
        drawn = [exp(random.choice(noise.get(one.world_size, Noise()).drawn)) for one in rows]
        tails.append(tail([1 / one for one in drawn]))
        ranks.append(rank(real, [time * one for time, one in zip(real, drawn, strict=True)]))
    return Floor(
        rows=len(rows),
        paired=sum(len(pair) for pair in twins(rows)),
        oracle_tail=tail([p / m for p, m in zip(said, real, strict=True)]),
        oracle_rank=rank(said, real),
        drawn_tail=_percentiles(tails),
        drawn_rank=_percentiles(ranks),
    )


def floor_table(floors: dict[str, Floor], reached: dict[str, Reached], *, whole: str) -> Table:
    """One line a group: the least and the greatest there is, and what the prediction reached.

    Args:
        floors: By name.
        reached: By the same names.
        whole: The name of all rows together, among which ranks mean nothing.
    """
    lines = list[list[str]]()
    for name, one in floors.items():
        got = reached[name]
        drawn = "{1:.1%} ({0:.1%} to {2:.1%})".format(*one.drawn_tail)
        tails = (f"{one.oracle_tail:.1%}", drawn, f"{got.tail:.1%}", f"{got.checked_tail:.1%}")
        ranks = ["-"] * 4
        if name != whole:
            drawn = "{1:.3f} ({0:.3f} to {2:.3f})".format(*one.drawn_rank)
            ranks = [f"{one.oracle_rank:.3f}", drawn, f"{got.rank:.3f}", f"{got.checked_rank:.3f}"]
        lines.append([name, f"{one.paired} of {one.rows}", *tails, *ranks])
    columns = ("oracle", "omniscient", "reached", "with the check")
    return Table(
        title="hf-playbook, PP=1: the floor that twins set, in brackets the 5th to 95th of draws",
        columns=(
            "rows",
            "in twins",
            *(f"90th: {name}" for name in columns),
            *(f"Spearman: {name}" for name in columns),
        ),
        rows=lines,
    )


def _is_sharded(one: Published) -> bool:
    return one.candidate.data_parallel is not DataParallelKind.DDP


def _oracle(rows: Sequence[Published], noise: dict[int, Noise]) -> list[float]:
    """For the rows of a pair the one time whose larger error is least, else the time itself."""
    known = {id(one): one.step_s for one in rows}
    for pair in twins(rows):
        cost = noise[pair[0].world_size].sharded
        times = [one.step_s / (cost if _is_sharded(one) else 1.0) for one in pair]
        said = 2 * min(times) * max(times) / (min(times) + max(times))
        known |= {id(one): said * (cost if _is_sharded(one) else 1.0) for one in pair}
    return [known[id(one)] for one in rows]


def _percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    at = [ordered[int(share * (len(ordered) - 1))] for share in (0.05, 0.50, 0.95)]
    return at[0], at[1], at[2]
