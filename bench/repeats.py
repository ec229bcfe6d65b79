"""How far two published runs of nearly one layout lie apart: below that no prediction can go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from bench.floor import twins
from bench.published import Published
from bench.record import Table

_FAR = 1.5  # runs of one layout that lie farther apart were not the same machine


def by_size(
    rows: Sequence[Published], ratio: Callable[[Published], float], worlds: Iterable[int]
) -> Table:
    """The error by number of GPUs, beside what twins differ by: layouts that differ in ZeRO alone.

    Args:
        rows: Published steps.
        ratio: Predicted over measured of one.
        worlds: Numbers of GPUs, one line each.
    """
    lines = list[list[str]]()
    for world in worlds:
        found = [one for one in rows if one.world_size == world]
        errors = sorted(abs(ratio(one) - 1) for one in found)
        apart = sorted(_apart(pair) for pair in twins(found))
        lines.append(
            [
                f"{world} GPUs",
                str(len(found)),
                f"{median(errors):.1%}",
                f"{errors[int(0.9 * (len(errors) - 1))]:.1%}",
                str(sum(error > 0.30 for error in errors)),
                str(len(apart)),
                str(sum(one > _FAR for one in apart)),
                f"{apart[-1]:.2f}" if apart else "-",
            ]
        )
    return Table(
        title="hf-playbook, PP=1, by size; twins differ in the ZeRO stage alone, or in nothing",
        columns=(
            "rows",
            "n",
            "median error",
            "90th percentile",
            "over 30%",
            "twins",
            f"over {_FAR}x apart",
            "farthest, x",
        ),
        rows=lines,
    )


def _apart(pair: Sequence[Published]) -> float:
    times = [one.step_s for one in pair]
    return max(times) / min(times)
