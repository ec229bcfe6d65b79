"""`cptune replay`: samplers on stored landscapes, and how far each is from the best after N trials.

Several seeds tell the luck of the draw; `p90` and `worst` are over seeds and landscapes together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from pathlib import Path
from statistics import fmean

from cptune.domain.study import SamplerName
from cptune.errors import SpecError
from cptune.offline.landscape import Landscape
from cptune.offline.run_rows import read_run
from cptune.offline.table import Sifted, sift
from cptune.offline.walk import AFTER, WITHIN, Walk, open_sampler, walk
from cptune.seams import Sampler
from cptune.store.plain_table import read_plain_table

REPLAY_SCHEMA = 1

#: Makes the sampler of a landscape for a seed.
OpenSampler = Callable[[Landscape, int], Sampler]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayAsked:
    """How to replay: who searches, how often, and how noisy a trial reads a step."""

    samplers: tuple[SamplerName, ...] = (SamplerName.RESIDUAL_GP,)
    seeds: int = 20
    noise: float = 0.0


def read_landscapes(path: Path) -> Sifted:
    """The landscapes of a table or of a run directory.

    Raises:
        SpecError: when it cannot be read, or no row of it can be used.
        LedgerError: when a run's ledger cannot be read.
    """
    if path.is_dir():
        return read_run(path)
    found = sift(read_plain_table(path))
    if not found.landscapes:
        why = [*found.unreadable, *found.illegal, *found.notes]
        raise SpecError(
            f"{path} has {found.rows} rows and none that can be replayed: "
            f"{len(found.unreadable)} unreadable, {len(found.illegal)} illegal",
            hint=f"the first, {why[0]}" if why else "wanted a row for each candidate",
        )
    return found


def replay(found: Sifted, asked: ReplayAsked) -> dict[str, object]:
    """The answer of `cptune replay`, with the first sampler's figures also at the top."""
    figures = {
        name.value: score(found.landscapes, _opener(name), asked=asked) for name in asked.samplers
    }
    first = asked.samplers[0].value
    return {
        "schema": REPLAY_SCHEMA,
        "sampler": first,
        **figures[first],
        "samplers": figures,
        "seeds": asked.seeds,
        "noise": asked.noise,
        "table": {
            "rows": found.rows,
            "candidates": sum(len(one.results) for one in found.landscapes),
            "unreadable": found.unreadable,
            "illegal": found.illegal,
            "duplicates": found.duplicates,
            "notes": found.notes,
        },
    }


def _opener(name: SamplerName) -> OpenSampler:
    return lambda landscape, seed: open_sampler(landscape, name, seed=seed)


def score(
    landscapes: Iterable[Landscape], opened: OpenSampler, *, asked: ReplayAsked
) -> dict[str, dict[str, object]]:
    """Figures of one sampler over all landscapes and seeds, and for each landscape."""
    walks = {
        one: [
            walk(one, opened(one, seed), noise=asked.noise, seed=seed)
            for seed in range(asked.seeds)
        ]
        for one in landscapes
    }
    return {
        "overall": _figures(walks),
        "workloads": {
            one.name: _figures({one: found})
            | {"candidates": len(one.results), "best_step_s": one.best_s}
            for one, found in walks.items()
        },
    }


def _figures(walks: Mapping[Landscape, Sequence[Walk]]) -> dict[str, object]:
    every = [one for found in walks.values() for one in found]
    spent = [one.out_of_memory for one in every]
    regrets = {after: [one.regret_after(after) for one in every] for after in AFTER}
    return {
        "regret": {str(after): _spread(values) for after, values in regrets.items()},
        "trials_to": {
            f"{within:.0%}": _trials([one.trials_to(within) for one in every]) for within in WITHIN
        },
        "duplicates": sum(one.duplicates for one in every),
        "illegal_asks": sum(one.illegal_asks for one in every),
        "out_of_memory": {"mean": fmean(spent), "worst": max(spent)},
        "false_prunes": sum(one.false_prunes for one in walks),
        "best_pruned": sum(one.prunes_best for one in walks),
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": fmean(values), "p90": _ranked(values, 0.9), "worst": max(values)}


def _trials(values: Sequence[int | None]) -> dict[str, float | None]:
    """Median and 90th percentile of trials; None where so many searches never came there."""
    found = [inf if one is None else one for one in values]
    quantiles = {"median": _ranked(found, 0.5), "p90": _ranked(found, 0.9)}
    told = {name: None if value == inf else value for name, value in quantiles.items()}
    return told | {"reached_share": sum(one is not None for one in values) / len(values)}


def _ranked(values: Sequence[float], share: float) -> float:
    """The nearest rank: the least value that so many values do not exceed."""
    return sorted(values)[ceil(share * len(values)) - 1]
