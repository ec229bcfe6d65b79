"""Two ways of running that the sweep of the playbook mixes, told apart by a row's peak memory.

nanotron keeps the inputs that tensor parallelism gathered, or gathers them again in backward
(`tp_recompute_allgather`); no row says which, and a peak may: where the two footprints lie apart by
a fifth, 29 peaks of 121 lie below 0.15 of the way, one at 0.25, the others from 0.27 up. Most rows
of the smaller one are slow. Two campaigns were merged: nanotron's scaling_benchmarks.py (0e0a27ea)
runs rows with pipelines again where their job is older than 14097150, and rows without only where
there was no result. In the later one every collective is checked by the hosts before it starts
(`cptune.predict.checks`; nanotron's slurm_launcher.py at 033644d6 sets what makes torch do so).
A plan is told so by `[stack] check_s`. What a check takes for each rank is one constant, of rows
with pipelines alone: none that is scored here, and none of the same number of GPUs. A row's peak is
not used to predict its memory. What tells a row, a fifth between the footprints and the widest gap
of the peaks, was chosen with times in sight: the table by rule shows how much hangs on it, and what
is left where rows of other sizes choose. (Without tensor parallelism nine peaks in ten lie within
0.094 of a footprint, in logarithm: twice that is a fifth.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import log
from statistics import mean, median

from bench.published import Published
from bench.record import Table
from bench.scoring import (
    by,
    error_row,
    ranked_rate,
    ratio,
    real_rate,
    spearman,
    tail,
    workload,
)
from cptune.predict.activations import EAGER, HEAVY
from cptune.predict.memory import MemoryModel

Told = Callable[[Published], Published]
Loss = Callable[[Sequence[float]], float]

_FAR = 0.30
_LONGEST_S = 0.01
_HALVINGS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What tells a row. Footprints closer than `telling`, one over the other, tell nothing of it.

    `lowest` of the way from the smaller to the larger one is where gathered again ends.
    """

    telling: float
    lowest: float


_RULE = Rule(telling=1.2, lowest=0.25)
_OTHER_RULES = tuple(
    Rule(telling=telling, lowest=lowest)
    for telling in (1.1, 1.15, 1.2, 1.25, 1.3, 1.5)
    for lowest in (0.15, 0.25, 0.40)
)


class Kind(StrEnum):
    """What a row's peak says of the inputs that tensor parallelism gathered."""

    KEPT = "kept"
    AGAIN = "gathered again"
    UNTOLD = "not told"


def kind_of(one: Published, rule: Rule = _RULE) -> Kind:
    """By where a row's measured peak lies between the two footprints."""
    memory = MemoryModel(one.case)
    small, large = (memory.worst(one.candidate, kept).allocated_bytes for kept in (EAGER, HEAVY))
    if one.peak_bytes is None or large < rule.telling * small:
        return Kind.UNTOLD
    share = (one.peak_bytes - small) / (large - small)
    return Kind.AGAIN if share < rule.lowest else Kind.KEPT


def by_kind(groups: dict[str, Sequence[Published]], told: Told) -> Table:
    """The error by kind of row as published and as told, and how many lie beyond a third.

    Args:
        groups: Rows by name.
        told: A row with what its peak tells of its stack.
    """
    lines = list[list[str]]()
    for name, rows in groups.items():
        for kind in Kind:
            same = [one for one in rows if kind_of(one) is kind]
            if not same:
                continue
            found, waited = [ratio(one) for one in same], [ratio(told(one)) for one in same]
            over = sum(abs(one - 1) > _FAR for one in found)
            texts = (*error_row("", found)[1:], str(over), *error_row("", waited)[2:])
            lines.append([name, kind.value, *texts])
    return Table(
        title="hf-playbook by what its peak says of gathered inputs, which no row publishes",
        columns=(
            "rows",
            "inputs",
            "n",
            "median error",
            "90th percentile",
            "bias",
            f"over {_FAR:.0%}",
            "with the check: median",
            "90th",
            "bias",
        ),
        rows=lines,
    )


def with_check(
    rows: Sequence[Published], pipelines: Sequence[Published]
) -> tuple[list[Table], Told, float]:
    """One constant, what a check takes for each rank of its group, from rows that are not scored.

    Rows of one number of GPUs get the median of what explains the pipelines of other numbers.

    Args:
        rows: Those that are scored, without pipelines.
        pipelines: Those that say what a check takes.

    Returns:
        The tables by size and by rule, a row with what its peak tells of its stack, and the 90th
        percentile where rows of other sizes chose what tells.
    """
    check_s = _held_out(rows, pipelines)
    told = _teller(check_s, _RULE)
    slow = [one for one in rows if kind_of(one) is Kind.AGAIN]
    lines = list[list[str]]()
    for world in sorted({one.world_size for one in slow}):
        here = [one for one in slow if one.world_size == world]
        before = [abs(ratio(one) - 1) for one in here]
        after = sorted(abs(ratio(told(one)) - 1) for one in here)
        cells = (str(len(here)), f"{told(here[0]).case.check_s * 1e6:.0f}", f"{median(before):.1%}")
        lines.append([f"{world} GPUs", *cells, f"{median(after):.1%}", f"{after[-1]:.1%}"])
    by_size = Table(
        title="PP=1, gathered again: a check of each collective, as long as pipelines say",
        columns=(
            "rows",
            "n",
            "a rank, from pipelines of other sizes, us",
            "median error",
            "with it",
            "worst",
        ),
        rows=lines,
    )
    by_rule, chosen_tail = _by_rule(rows, check_s)
    return [by_size, by_rule], told, chosen_tail


def every_pipeline(rows: Sequence[Published], pipelines: Sequence[Published]) -> Table:
    """Rows with pipelines, which the later campaign ran again: each as it is and with the check.

    Args:
        rows: With pipelines, of every size.
        pipelines: Those that say what a check takes.
    """
    check_s = _held_out(rows, pipelines)
    lines = list[list[str]]()
    for name, here in sorted(by(rows, workload).items()):
        cells, real = [name.partition(": ")[2], str(len(here))], [*map(real_rate, here)]
        for told in (here, [_checked(one, check_s) for one in here]):
            rank = spearman([*map(ranked_rate, told)], real)
            cells += [*error_row("", [*map(ratio, told)])[2::2], f"{rank:.3f}"]
        lines.append(cells)
    found = ("median error", "bias", "Spearman")
    return Table(
        title="Pipelines: every row as it is, and with the check that other sizes say",
        columns=("rows", "n", *found, *(f"with it: {name}" for name in found)),
        rows=lines,
    )


def _held_out(rows: Sequence[Published], pipelines: Sequence[Published]) -> Mapping[int, float]:
    """What a check takes, by number of GPUs, as pipelines of other numbers explain it."""
    explains = [(one.world_size, check_that_explains(one)) for one in pipelines]
    return {
        world: median([check_s for other, check_s in explains if other != world] or [0.0])
        for world in {one.world_size for one in rows}
    }


def _checked(one: Published, check_s: Mapping[int, float]) -> Published:
    return replace(one, case=replace(one.case, check_s=check_s[one.world_size]))


def _teller(check_s: Mapping[int, float], rule: Rule) -> Told:
    """What a rule makes of a row: checked, where its peak says gathered again."""

    def told(one: Published) -> Published:
        return _checked(one, check_s) if kind_of(one, rule) is Kind.AGAIN else one

    return told


def _by_rule(rows: Sequence[Published], check_s: Mapping[int, float]) -> tuple[Table, float]:
    """How the error of all rows depends on what tells them, and what it is where others chose that.

    The rows of each number of GPUs are told by the rule that does best on all other rows.
    """
    plain = {id(one): ratio(one) for one in rows}
    checked = {id(one): ratio(_checked(one, check_s)) for one in rows}
    by_rule = {
        rule: [(checked if kind_of(one, rule) is Kind.AGAIN else plain)[id(one)] for one in rows]
        for rule in _OTHER_RULES
    }
    lines = list[list[str]]()
    for rule, ratios in by_rule.items():
        told = sum(kind_of(one, rule) is Kind.AGAIN for one in rows)
        cells = (f"{rule.telling:g}", f"{rule.lowest:g}", str(told), f"{tail(ratios):.1%}")
        lines.append([*cells, "used" if rule == _RULE else ""])
    worlds = [one.world_size for one in rows]
    chosen = [tail(_chosen_elsewhere(worlds, by_rule, loss)) for loss in (tail, _mean_log)]
    for name, value in zip(("90th percentile", "mean logarithm"), chosen, strict=True):
        lines.append(["-", "-", "-", f"{value:.1%}", f"chosen on other sizes, by the {name}"])
    table = Table(
        title="PP=1, all rows: the 90th percentile by the rule that tells which gathered again",
        columns=("footprints apart, x", "lowest share", "told", "90th percentile", ""),
        rows=lines,
    )
    return table, chosen[0]


def _chosen_elsewhere(
    worlds: Sequence[int], by_rule: Mapping[Rule, Sequence[float]], loss: Loss
) -> list[float]:
    """Each row's ratio by the rule whose loss over the rows of other sizes is least."""
    best = {
        world: min(
            by_rule.values(),
            key=lambda ratios: loss(
                [one for one, other in zip(ratios, worlds, strict=True) if other != world]
            ),
        )
        for world in set(worlds)
    }
    return [best[world][place] for place, world in enumerate(worlds)]


def _mean_log(ratios: Sequence[float]) -> float:
    return mean(abs(log(one)) for one in ratios)


def check_that_explains(one: Published) -> float:
    """The seconds a rank with which the prediction says what was measured; 0 where none does."""
    low, high = 0.0, _LONGEST_S
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        checked = replace(one, case=replace(one.case, check_s=middle))
        low, high = (middle, high) if ratio(checked) < 1 else (low, middle)
    return low
