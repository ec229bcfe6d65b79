"""Two ways of running that the sweep of the playbook mixes, told apart by a row's peak memory.

nanotron keeps the inputs that tensor parallelism gathered, or gathers them again in backward
(`tp_recompute_allgather`); no row says which, and a peak does: between the two footprints nothing
lies from 0.14 to 0.27 of the way. Rows of the smaller one are slow wherever tensor parallelism is
wide, with and without pipelines, so two campaigns were merged. What the slow one adds is the same
for every message: a wait at each collective that grows with its ranks, as a check before each one
makes (torch's TORCH_DISTRIBUTED_DEBUG=DETAIL runs a gloo barrier; nanotron's slurm_launcher.py at
033644d6 sets it), and with the root of the nodes, for which no cause is known.
A plan is told so by `[stack] tp_wait_s`. A row's own time never sets it: the wait is that of the
other sizes, and the peak is never used to predict memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from math import sqrt
from statistics import median

from bench.published import Published
from bench.record import Table
from bench.scoring import error_row, ratio
from cptune.predict.activations import EAGER, HEAVY
from cptune.predict.memory import MemoryModel

Told = Callable[[Published], Published]

_TELLING = 1.2  # footprints that lie closer tell nothing of a row
_LOWEST = 0.25  # of the way from the smaller footprint to the larger one
_FAR = 0.30
_LONGEST_S = 0.1
_HALVINGS = 20


class Kind(StrEnum):
    """What a row's peak says of the inputs that tensor parallelism gathered."""

    KEPT = "kept"
    AGAIN = "gathered again"
    UNTOLD = "not told"


def kind_of(one: Published) -> Kind:
    """By where a row's measured peak lies between the two footprints."""
    memory = MemoryModel(one.case)
    small, large = (memory.worst(one.candidate, kept).allocated_bytes for kept in (EAGER, HEAVY))
    if one.peak_bytes is None or large < _TELLING * small:
        return Kind.UNTOLD
    share = (one.peak_bytes - small) / (large - small)
    return Kind.AGAIN if share < _LOWEST else Kind.KEPT


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


def with_wait(rows: Sequence[Published]) -> tuple[Table, Told]:
    """One constant, the wait of each further rank at each collective, held out by size.

    Rows of one number of GPUs get the median of what explains the rows of the other sizes, over
    the root of their nodes.

    Args:
        rows: Those that say how long the wait is, without pipelines.

    Returns:
        The table by size, and a row with what its peak tells of its stack.
    """
    slow = [one for one in rows if kind_of(one) is Kind.AGAIN]
    explains = {id(one): wait_that_explains(one) / sqrt(_nodes(one)) for one in slow}
    every = median(explains.values()) if slow else 0.0
    unit = dict[int, float]()
    for world in {one.world_size for one in slow}:
        others = [explains[id(one)] for one in slow if one.world_size != world]
        unit[world] = median(others) if others else every

    def told(one: Published) -> Published:
        if kind_of(one) is not Kind.AGAIN:
            return one
        wait_s = unit.get(one.world_size, every) * sqrt(_nodes(one))
        return replace(one, case=replace(one.case, tp_wait_s=wait_s))

    lines = list[list[str]]()
    for world in sorted(unit):
        here = [one for one in slow if one.world_size == world]
        before = [abs(ratio(one) - 1) for one in here]
        after = sorted(abs(ratio(told(one)) - 1) for one in here)
        cells = (str(len(here)), f"{unit[world] * 1e6:.0f}", f"{median(before):.1%}")
        lines.append([f"{world} GPUs", *cells, f"{median(after):.1%}", f"{after[-1]:.1%}"])
    table = Table(
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
    return table, told


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
