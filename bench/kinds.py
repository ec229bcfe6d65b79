"""Two ways of running that the sweep of the playbook mixes, told apart by a row's peak memory.

nanotron keeps the inputs that tensor parallelism gathered, or gathers them again in backward
(`tp_recompute_allgather`); no row says which. Rows that lie nearer to the smaller footprint are
slow wherever tensor parallelism is wide, at any size, with and without pipelines, so two campaigns
were merged. What the slow one adds is the same for every message: a wait at each collective that
grows with its ranks, as a check before each one makes (torch's TORCH_DISTRIBUTED_DEBUG=DETAIL runs
a gloo barrier; nanotron's slurm_launcher.py at 033644d6 sets it).
The prediction knows nothing of this: a peak is an outcome. The tables say what it would be worth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from math import sqrt
from statistics import median

from bench.published import Published
from bench.record import Table
from cptune.predict.activations import EAGER, HEAVY
from cptune.predict.memory import MemoryModel
from cptune.predict.shares import micro_batches

Ratio = Callable[[Published], float]
Errors = Callable[[Sequence[float]], tuple[float, float]]

_TELLING = 1.1  # footprints that lie closer tell nothing of a row
_FAR = 0.30
_COLLECTIVES = 8  # of tensor parallelism, a layer and micro-batch, both passes
_SLOW_WORLD = 512


class Kind(StrEnum):
    """What a row's peak says of the inputs that tensor parallelism gathered."""

    KEPT = "kept"
    AGAIN = "gathered again"
    UNTOLD = "not told"


def kind_of(one: Published) -> Kind:
    """The footprint that a row's measured peak is nearer to."""
    memory = MemoryModel(one.case)
    small, large = (memory.worst(one.candidate, kept).allocated_bytes for kept in (EAGER, HEAVY))
    if one.peak_bytes is None or large < _TELLING * small:
        return Kind.UNTOLD
    return Kind.KEPT if one.peak_bytes > sqrt(small * large) else Kind.AGAIN


def by_kind(groups: dict[str, Sequence[Published]], ratio: Ratio, errors: Errors) -> Table:
    """The error by kind of row, and how many are slower than predicted by a third and more."""
    lines = list[list[str]]()
    for name, rows in groups.items():
        for kind in Kind:
            found = [ratio(one) for one in rows if kind_of(one) is kind]
            if not found:
                continue
            middle, tail = errors(found)
            over = sum(abs(one - 1) > _FAR for one in found)
            slow = sum(one < 1 - _FAR for one in found)
            texts = (f"{middle:.1%}", f"{tail:.1%}", f"{median(found):.3f}", str(over), str(slow))
            lines.append([name, kind.value, str(len(found)), *texts])
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
            "of them slower",
        ),
        rows=lines,
    )


def is_slow(one: Published) -> bool:
    """A row of the kind whose every collective waits, at the size where most of them are."""
    return one.world_size == _SLOW_WORLD and kind_of(one) is Kind.AGAIN


def with_wait(rows: Sequence[Published], ratio: Ratio) -> tuple[Table, Ratio]:
    """One constant, the wait of each rank at each collective, for rows that it was not fitted on.

    Rows of one tensor-parallel size get what the other sizes say.

    Returns:
        The table by size, and predicted over measured with the wait added to the slow rows.
    """
    slow = [one for one in rows if is_slow(one)]
    lines, found = list[list[str]](), dict[int, float]()
    for size in sorted({one.candidate.layout.tp for one in slow}):
        here = [one for one in slow if one.candidate.layout.tp == size]
        others = [one for one in slow if one.candidate.layout.tp != size]
        wait_s = median(one.step_s * (1 - ratio(one)) / _waits(one) for one in others)
        held_out = [ratio(one) + wait_s * _waits(one) / one.step_s for one in here]
        before = median(abs(ratio(one) - 1) for one in here)
        after = sorted(abs(one - 1) for one in held_out)
        cells = (str(len(here)), f"{wait_s * 1e6:.0f}", f"{before:.1%}")
        lines.append([f"tp {size}", *cells, f"{median(after):.1%}", f"{after[-1]:.1%}"])
        found |= {id(one): value for one, value in zip(here, held_out, strict=True)}
    table = Table(
        title=f"PP=1, gathered again, {_SLOW_WORLD} GPUs: one wait a rank and collective, held out",
        columns=("rows", "n", "wait of the other sizes, us", "median error", "with it", "worst"),
        rows=lines,
    )
    return table, lambda one: found.get(id(one)) or ratio(one)


def _waits(one: Published) -> float:
    """Ranks waited for in a step: by each collective of tensor parallelism, the others of it."""
    passes = micro_batches(one.candidate, one.case.workload)
    return passes * one.case.model.layers * _COLLECTIVES * (one.candidate.layout.tp - 1)
