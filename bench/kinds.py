"""Two ways of running that the sweep of the playbook mixes, told apart by a row's peak memory.

nanotron keeps the inputs that tensor parallelism gathered, or gathers them again in backward
(`tp_recompute_allgather`); no row says which, and a peak may: where the two footprints lie apart by
a fifth, 29 peaks of 121 lie below 0.15 of the way, one at 0.25, the others from 0.27 up. Most rows
of the smaller one are slow, with and without pipelines, so two campaigns were likely merged. What
the slow one adds is a wait at each collective that grows with its ranks, as a check before each
makes (torch's TORCH_DISTRIBUTED_DEBUG=DETAIL runs a gloo barrier; nanotron's slurm_launcher.py at
033644d6 sets it), and with the root of the nodes, for which no cause is known.
A plan is told so by `[stack] tp_wait_s`. The wait of a row is that of the other sizes, and its peak
is not used to predict memory. But what tells a row, and that root, were chosen with the times of
these very rows in sight: what they bring is an explanation, and no accuracy that was tested. The
table by rule shows how much hangs on the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import sqrt
from statistics import median

from bench.published import Published
from bench.record import Table
from bench.scoring import error_row, ratio, tail
from cptune.predict.activations import EAGER, HEAVY
from cptune.predict.memory import MemoryModel

Told = Callable[[Published], Published]

_FAR = 0.30
_LONGEST_S = 0.1
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
            "with the wait: median",
            "90th",
            "bias",
        ),
        rows=lines,
    )


def with_wait(rows: Sequence[Published]) -> tuple[list[Table], Told]:
    """One constant, the wait of each further rank at each collective, held out by size.

    Rows of one number of GPUs get the median of what explains the rows of the other sizes, over
    the root of their nodes.

    Args:
        rows: Those that say how long the wait is, without pipelines.

    Returns:
        The tables by size and by rule, and a row with what its peak tells of its stack.
    """
    explains = {
        id(one): wait_that_explains(one) / sqrt(_nodes(one))
        for one in rows
        if any(kind_of(one, rule) is Kind.AGAIN for rule in (_RULE, *_OTHER_RULES))
    }
    told = _teller(rows, _RULE, explains)
    slow = [one for one in rows if kind_of(one) is Kind.AGAIN]
    lines = list[list[str]]()
    for world in sorted({one.world_size for one in slow}):
        here = [one for one in slow if one.world_size == world]
        unit_s = told(here[0]).case.tp_wait_s / sqrt(_nodes(here[0]))
        before = [abs(ratio(one) - 1) for one in here]
        after = sorted(abs(ratio(told(one)) - 1) for one in here)
        cells = (str(len(here)), f"{unit_s * 1e6:.0f}", f"{median(before):.1%}")
        lines.append([f"{world} GPUs", *cells, f"{median(after):.1%}", f"{after[-1]:.1%}"])
    by_size = Table(
        title="PP=1, gathered again: one wait a further rank and collective, held out by size",
        columns=(
            "rows",
            "n",
            "wait of the other sizes on one node, us",
            "median error",
            "with it",
            "worst",
        ),
        rows=lines,
    )
    return [by_size, _by_rule(rows, explains)], told


def _teller(rows: Sequence[Published], rule: Rule, explains: Mapping[int, float]) -> Told:
    """What a rule makes of a row: a wait, where its peak says gathered again."""
    slow = [one for one in rows if kind_of(one, rule) is Kind.AGAIN]
    worlds = {one.world_size for one in rows}
    unit_s = {
        world: median([explains[id(one)] for one in slow if one.world_size != world] or [0.0])
        for world in worlds
    }

    def told(one: Published) -> Published:
        if kind_of(one, rule) is not Kind.AGAIN:
            return one
        wait_s = unit_s[one.world_size] * sqrt(_nodes(one))
        return replace(one, case=replace(one.case, tp_wait_s=wait_s))

    return told


def _by_rule(rows: Sequence[Published], explains: Mapping[int, float]) -> Table:
    """How the error of all rows depends on what was chosen to tell them."""
    plain = {id(one): ratio(one) for one in rows}
    lines = list[list[str]]()
    for rule in _OTHER_RULES:
        told = _teller(rows, rule, explains)
        slow = [one for one in rows if kind_of(one, rule) is Kind.AGAIN]
        ratios = {**plain, **{id(one): ratio(told(one)) for one in slow}}
        cells = (f"{rule.telling:g}", f"{rule.lowest:g}", str(len(slow)))
        lines.append([*cells, f"{tail(ratios.values()):.1%}", "used" if rule == _RULE else ""])
    return Table(
        title="PP=1, all rows: the 90th percentile by the rule that tells which gathered again",
        columns=("footprints apart, x", "lowest share", "told", "90th percentile", ""),
        rows=lines,
    )


def wait_that_explains(one: Published) -> float:
    """The seconds of wait with which the prediction says what was measured; 0 where none does."""
    low, high = 0.0, _LONGEST_S
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        waits = replace(one, case=replace(one.case, tp_wait_s=middle))
        low, high = (middle, high) if ratio(waits) < 1 else (low, middle)
    return low


def _nodes(one: Published) -> float:
    return max(1.0, one.world_size / one.case.machine.node_size)
